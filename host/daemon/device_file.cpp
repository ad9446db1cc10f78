#include "host/daemon/device_file.h"

#include <fmt/format.h>

#include <fstream>
#include <sstream>
#include <string>

namespace gdx::daemon {

Result<std::uint64_t> file_offset_of(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    // FIRST-END RIGHTS OFFSET DEVICE INODE FILE
    std::istringstream fields(line);
    std::uint64_t first = 0;
    std::uint64_t end = 0;
    std::uint64_t offset = 0;
    char dash = 0;
    std::string rights;
    fields >> std::hex >> first >> dash >> end >> rights >> offset;
    if (fields && first <= wanted && wanted < end) return offset + (wanted - first);
  }
  return fail(Status::kSystem,
              fmt::format("/proc/self/maps shows no file at {}: mount /proc for gdxd", address));
}

}  // namespace gdx::daemon
