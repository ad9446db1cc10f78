// The file of an HCA's context, in which doorbell registers and device memory lie for another process to map.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace gdx::daemon {

// Returns the offset, in the file that is mapped at `address`, of the byte at `address`. Source: proc(5),
// /proc/PID/maps. Errors: kSystem.
[[nodiscard]] Result<std::uint64_t> file_offset_of(const void* address);

}  // namespace gdx::daemon
