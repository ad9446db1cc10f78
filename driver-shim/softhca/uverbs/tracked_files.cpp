#include "driver-shim/softhca/uverbs/tracked_files.h"

#include <array>
#include <atomic>
#include <charconv>
#include <filesystem>
#include <limits>
#include <string>

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

// The node whose file this is, and which open of it `fd` is: see PageFile::open().
DeviceFile identify(int fd, const FileIdentity& identity) {
  if (identity == FileIdentity{}) return {};
  for (std::size_t hca = 0; hca < nodes.size(); ++hca) {
    if (nodes[hca].load() != identity) continue;
    const long context = syscall(SYS_lseek, fd, 0L, SEEK_CUR);
    if (context <= 0 || context > std::numeric_limits<std::uint32_t>::max()) return {};
    return {FileKind::kNode, static_cast<std::uint8_t>(hca), static_cast<std::uint32_t>(context)};
  }
  return {};
}

}  // namespace

bool track_file(int fd, DeviceFile role) {
  if (fd < 0 || static_cast<std::size_t>(fd) >= kTrackedFiles) return false;
  TrackedFile& file = tracked_files[static_cast<std::size_t>(fd)];
  file.identity.store(role.kind == FileKind::kForeign ? FileIdentity{} : identity_of(fd));
  file.role.store(role, std::memory_order_release);
  return true;
}

DeviceFile tracked_file(int fd) {
  if (fd < 0 || static_cast<std::size_t>(fd) >= kTrackedFiles) return {};
  const TrackedFile& file = tracked_files[static_cast<std::size_t>(fd)];
  const DeviceFile role = file.role.load(std::memory_order_acquire);
  if (role.kind == FileKind::kForeign) return role;
  return identity_of(fd) == file.identity.load() ? role : DeviceFile{};
}

void announce_node(std::uint8_t hca, const FileIdentity& identity) { nodes[hca].store(identity); }

DeviceFile recognise_duplicate(int fd, const FileIdentity& identity) {
  const DeviceFile role = identify(fd, identity);
  return role.kind == FileKind::kNode && track_file(fd, role) ? role : DeviceFile{};
}

std::optional<std::set<std::uint32_t>> open_contexts(int closing) {
  std::set<std::uint32_t> open;
  std::error_code error;
  std::filesystem::directory_iterator files("/proc/self/fd", error);
  for (; !error && files != std::filesystem::directory_iterator(); files.increment(error)) {
    const std::string name = files->path().filename();
    int fd = -1;
    std::from_chars(name.data(), name.data() + name.size(), fd);
    if (fd < 0 || fd == closing) continue;
    const DeviceFile tracked = tracked_file(fd);
    const DeviceFile role = tracked.kind == FileKind::kForeign ? identify(fd, identity_of(fd)) : tracked;
    if (role.kind == FileKind::kNode) open.insert(role.context);
  }
  if (error) return std::nullopt;
  return open;
}

}  // namespace gdx::softhca::uverbs
