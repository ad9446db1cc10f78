// What the kernel says of this process's pages: whether a GPU maps them as memory or as a device's registers
// depends on it.
// Source: proc(5), /proc/pid/smaps, VmFlags: "io" is VM_IO, "pf" VM_PFNMAP.
#pragma once

#include <cstddef>
#include <cstdint>
#include <istream>

#include "base/result.h"

namespace gdx {

inline constexpr std::uintptr_t kHostPageBytes = 4096;

// kDevice: pages of a BAR, as a ConnectX's doorbells and staging memory are. The software HCA's are ordinary.
enum class PageKind { kOrdinary, kDevice };

// Errors: kInvalidArgument when a part of the range is not mapped, or it has pages of both kinds.
[[nodiscard]] Result<PageKind> parse_page_kind(std::istream& smaps, std::uintptr_t first, std::size_t bytes);

// The same of this process now. Errors: kSystem as well, when /proc cannot be read. Threads: any.
[[nodiscard]] Result<PageKind> page_kind(const void* address, std::size_t bytes);

}  // namespace gdx
