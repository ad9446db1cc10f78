#include "driver-shim/softhca/uverbs/tracked_files.h"

#include <array>
#include <atomic>
#include <limits>

#include "driver-shim/softhca/uverbs/config.h"

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
std::array<SharedIdentity, kMaxHcas> nodes;

// Returns the number of the open that `fd` is of: see PageFile::open(). 0: unknown.
std::uint32_t context_of(int fd) {
  const long offset = syscall(SYS_lseek, fd, 0L, SEEK_CUR);
  const bool is_number = offset > 0 && offset <= std::numeric_limits<std::uint32_t>::max();
  return is_number ? static_cast<std::uint32_t>(offset) : 0;
}

// Returns the node of this file, and the number of the open that `fd` is of.
DeviceFile identify(int fd, const FileIdentity& identity) {
  if (identity == FileIdentity{}) return {};
  for (std::size_t hca = 0; hca < nodes.size(); ++hca) {
    if (nodes[hca].load() != identity) continue;
    const std::uint32_t context = context_of(fd);
    if (context == 0) return {};
    return {FileKind::kNode, static_cast<std::uint8_t>(hca), context};
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
  DeviceFile role = file.role.load(std::memory_order_acquire);
  if (role.kind == FileKind::kForeign) return role;
  if (identity_of(fd) != file.identity.load()) return {};
  // All opens of a node are of one file: a duplicate of another may have come to this number.
  if (role.kind == FileKind::kNode) {
    if (const std::uint32_t context = context_of(fd); context != 0) role.context = context;
  }
  return role;
}

void announce_node(std::uint8_t hca, const FileIdentity& identity) { nodes[hca].store(identity); }

DeviceFile recognise_duplicate(int fd, const FileIdentity& identity) {
  const DeviceFile role = identify(fd, identity);
  return role.kind == FileKind::kNode && track_as(fd, role, identity) ? role : DeviceFile{};
}

}  // namespace gdx::softhca::uverbs
