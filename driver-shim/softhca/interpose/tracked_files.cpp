#include "driver-shim/softhca/interpose/tracked_files.h"

#include <array>
#include <atomic>

namespace gdx::softhca::uverbs {
namespace {

constexpr std::size_t kTrackedFiles = 1 << 16;

struct SharedIdentity {
  std::atomic<dev_t> device{0};
  std::atomic<ino_t> inode{0};

  void store(const FileIdentity& identity) {
    device.store(identity.device, std::memory_order_relaxed);
    inode.store(identity.inode, std::memory_order_relaxed);
  }
  [[nodiscard]] FileIdentity load() const {
    return {device.load(std::memory_order_relaxed), inode.load(std::memory_order_relaxed)};
  }
};
struct TrackedFile {
  std::atomic<DeviceFile> role{};
  SharedIdentity identity;
};
static_assert(std::atomic<DeviceFile>::is_always_lock_free);

std::array<TrackedFile, kTrackedFiles> tracked_files;
std::array<TrackedFile, kMaxRecognised> opens;
std::atomic<std::size_t> opens_used{0};  // all announced ones are among the first so many

// Returns the open of a node that this file is behind. Reads the identity again after the role, because
// another thread may reuse the place.
DeviceFile identify(const FileIdentity& identity) {
  if (identity == FileIdentity{}) return {};
  const std::size_t used = opens_used.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < used; ++i) {
    if (opens[i].identity.load() != identity) continue;
    const DeviceFile role = opens[i].role.load(std::memory_order_acquire);
    return opens[i].identity.load() == identity ? role : DeviceFile{};
  }
  return {};
}

bool track_as(int fd, DeviceFile role, const FileIdentity& identity) {
  if (fd < 0 || static_cast<std::size_t>(fd) >= kTrackedFiles) return false;
  TrackedFile& file = tracked_files[static_cast<std::size_t>(fd)];
  file.identity.store(identity);
  file.role.store(role, std::memory_order_release);
  return true;
}

}  // namespace

bool track_file(int fd, DeviceFile role) {
  return track_as(fd, role, role.kind == FileKind::kForeign ? FileIdentity{} : identity_of(fd));
}

DeviceFile tracked_file(int fd) {
  if (fd < 0 || static_cast<std::size_t>(fd) >= kTrackedFiles) return {};
  const TrackedFile& file = tracked_files[static_cast<std::size_t>(fd)];
  const DeviceFile role = file.role.load(std::memory_order_acquire);
  if (role.kind == FileKind::kForeign) return role;
  return identity_of(fd) == file.identity.load() ? role : DeviceFile{};
}

void announce_open(const FileIdentity& identity, DeviceFile role) {
  const std::size_t used = opens_used.load(std::memory_order_relaxed);
  std::size_t place = 0;
  while (place < used && opens[place].identity.load() != FileIdentity{}) ++place;
  if (place == opens.size()) return;
  opens[place].role.store(role, std::memory_order_release);
  opens[place].identity.store(identity);
  if (place == used) opens_used.store(used + 1, std::memory_order_release);
}

void forget_open(const FileIdentity& identity) {
  for (std::size_t i = 0; i < opens_used.load(std::memory_order_relaxed); ++i) {
    if (opens[i].identity.load() == identity) opens[i].identity.store({});
  }
}

DeviceFile recognise_duplicate(int fd, const FileIdentity& identity) {
  const DeviceFile role = identify(identity);
  return role.kind == FileKind::kNode && track_as(fd, role, identity) ? role : DeviceFile{};
}

}  // namespace gdx::softhca::uverbs
