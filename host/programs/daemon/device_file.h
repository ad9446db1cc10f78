// The file of an HCA's context, in which doorbell registers and device memory lie for another process to map.
#pragma once

#include <cstdint>

#include "base/descriptor.h"
#include "base/result.h"

namespace gdx::daemon {

// Returns the offset, in the file that is mapped at `address`, of the byte at `address`. Source: proc(5),
// /proc/PID/maps. Errors: kSystem.
[[nodiscard]] Result<std::uint64_t> file_offset_of(const void* address);

// Returns a descriptor of the context's file that clients may have. A character device is itself: whoever has
// it can send the context commands. A file in memory, the software HCA's, is opened anew: clients share no
// offset and no lock with gdxd, and can only map it. The context then ends with `command_file`. Errors:
// kSystem.
[[nodiscard]] Result<Descriptor> file_for_clients(int command_file);

// Returns the bytes that whoever has a context's file can fill with pages: none of a character device.
[[nodiscard]] std::uint64_t fillable_bytes(const Descriptor& file);

}  // namespace gdx::daemon
