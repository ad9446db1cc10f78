// The host's page size, which is 4 KiB on x86 and may be 64 KiB on Arm.
#pragma once

#include <unistd.h>

#include <cstddef>

namespace gdx {

// Returns a power of two. Threads: any.
[[nodiscard]] inline std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace gdx
