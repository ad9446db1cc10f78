#include "host/programs/daemon/device_file.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "proto/softhca.h"

namespace gdx::daemon {

Result<std::uint64_t> file_offset_of(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    // A line has the fields FIRST-END RIGHTS OFFSET DEVICE INODE FILE.
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

Result<Descriptor> file_for_clients(int command_file) {
  const std::string path = fmt::format("/proc/self/fd/{}", command_file);
  std::error_code error;
  const std::string target = std::filesystem::read_symlink(path, error);
  const bool in_memory = !error && target.starts_with("/memfd:");
  Descriptor file = Descriptor::keep(in_memory ? ::open(path.c_str(), O_RDWR | O_CLOEXEC)
                                               : ::fcntl(command_file, F_DUPFD_CLOEXEC, 0));
  const auto share = reinterpret_cast<SofthcaShare>(dlsym(RTLD_DEFAULT, kSofthcaShareSymbol));
  if (share != nullptr) share(command_file);
  if (file) return file;
  return fail(Status::kSystem,
              fmt::format("cannot open the file of an HCA's context again: {}", std::strerror(errno)));
}

std::uint64_t fillable_bytes(const Descriptor& file) {
  // The software HCA shows its file to stat(2) as a character device.
  const off_t end = lseek(file.value(), 0, SEEK_END);
  lseek(file.value(), 0, SEEK_SET);
  return end > 0 ? static_cast<std::uint64_t>(end) : 0;
}

}  // namespace gdx::daemon
