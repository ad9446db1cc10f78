// Kinds of this process's pages, as /proc reports them. The kind decides whether a GPU maps them as memory or
// as a device's registers.
// Source: proc(5), /proc/pid/smaps, VmFlags: "io" is VM_IO, "pf" VM_PFNMAP.
#pragma once

#include <cstddef>
#include <cstdint>
#include <istream>

#include "base/result.h"

namespace gdx {

// kDevice: pages of a BAR, such as a ConnectX's doorbells and staging memory. The software HCA's are
// ordinary.
enum class PageKind { kOrdinary, kDevice };

// Finds the kind in `smaps`. Errors: kInvalidArgument when a part of the range is not mapped, or it has pages
// of both kinds.
[[nodiscard]] Result<PageKind> parse_page_kind(std::istream& smaps, std::uintptr_t first, std::size_t bytes);

// Finds the kind in this process's smaps. Errors: those of parse_page_kind; kSystem when /proc cannot be
// read. Threads: any.
[[nodiscard]] Result<PageKind> page_kind(const void* address, std::size_t bytes);

}  // namespace gdx
