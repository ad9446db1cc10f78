#include "host/memory/shared_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "base/fork_mutex.h"
#include "base/holes.h"

namespace gdx {
namespace {

Result<MappedPages> map_pages(std::size_t bytes, int flags, int file) {
  void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
  if (mapped != MAP_FAILED) return MappedPages(static_cast<std::byte*>(mapped), Unmap{bytes});
  return fail(Status::kNoMemory,
              fmt::format("no memory for a buffer of {} bytes: {}", bytes, std::strerror(errno)));
}

struct Listing {
  struct File {
    std::size_t bytes;
    int file;
  };
  ForkMutex mutex;
  std::map<const std::byte*, File> files;  // by address
};

// Never destroyed, because memory with static storage may end after all else.
Listing& listing() {
  static auto& instance = *new Listing;
  return instance;
}

}  // namespace

std::optional<SharedPlace> find_shared(const void* address, std::size_t bytes) {
  const auto* const first = static_cast<const std::byte*>(address);
  const std::lock_guard lock(listing().mutex);
  auto next = listing().files.upper_bound(first);
  if (next == listing().files.begin()) return std::nullopt;
  const auto& [begin, file] = *--next;
  const auto offset = static_cast<std::size_t>(first - begin);
  if (offset > file.bytes || bytes > file.bytes - offset) return std::nullopt;
  return SharedPlace{file.file, offset};
}

Result<MappedPages> map_own_pages(std::size_t bytes) {
  return map_pages(bytes, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1);
}

Result<SharedFile> make_shared_file(std::size_t bytes) {
  Descriptor file = Descriptor::keep(memfd_create("gdx memory", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) return fail(Status::kSystem, fmt::format("cannot make a memory file: {}", std::strerror(errno)));
  if (const int error = posix_fallocate(file.value(), 0, static_cast<off_t>(bytes)); error != 0) {
    return fail(Status::kNoMemory,
                fmt::format("no memory for a shareable buffer of {} bytes: {}", bytes, std::strerror(error)));
  }
  if (fcntl(file.value(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return fail(Status::kSystem, fmt::format("cannot seal a memory file: {}", std::strerror(errno)));
  }
  auto pages = GDX_TRY(map_pages(bytes, MAP_SHARED, file.value()));
  std::byte* const first = pages.get();
  const std::lock_guard lock(listing().mutex);
  listing().files[first] = {bytes, file.value()};
  std::shared_ptr<void> listed(nullptr, [first](void*) {
    const std::lock_guard end(listing().mutex);
    listing().files.erase(first);
  });
  return SharedFile{std::move(file), std::move(pages), std::move(listed)};
}

Result<void> check_shared_file(int file, std::size_t bytes) {
  struct statfs system {};
  // Refuses a file of huge pages, because it can be mapped and unmapped in whole huge pages only, and because
  // a hole in it kills the process that touches it.
  if (fstatfs(file, &system) != 0 || system.f_type != TMPFS_MAGIC)
    return fail(Status::kInvalidArgument, "a shared file must be a memfd without MFD_HUGETLB");
  const int seals = fcntl(file, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return fail(Status::kInvalidArgument,
                "a shared file must be a memfd sealed against shrinking (F_SEAL_SHRINK)");
  }
  if ((seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0)
    return fail(Status::kInvalidArgument, "a shared file must not be sealed against writes");
  struct stat facts {};
  if (fstat(file, &facts) != 0 || static_cast<std::uint64_t>(facts.st_size) < bytes) {
    return fail(Status::kInvalidArgument,
                fmt::format("a shared file is shorter than the {} bytes that were asked for", bytes));
  }
  if (present_bytes(facts) < bytes)
    return fail(Status::kInvalidArgument,
                "a shared file must have its pages allocated: call posix_fallocate first");
  return {};
}

}  // namespace gdx
