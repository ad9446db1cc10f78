// The libc functions through which a program meets RDMA devices. A path or descriptor that is not ours
// goes straight on to libc: nothing is made, locked or allocated for it. These functions may be called
// before any constructor has run, and the build leaves them uninstrumented by sanitizers for that reason.
#include <dirent.h>
#include <fcntl.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "driver-shim/softhca/uverbs/device.h"
#include "driver-shim/softhca/uverbs/real.h"

#define GDX_EXPORT extern "C" __attribute__((visibility("default")))

namespace gdx::softhca::uverbs {

constinit RealFunction<int(const char*, int, ...)> real_open("open");
constinit RealFunction<int(int)> real_close("close");

namespace {

Device& device() { return Device::instance(); }

bool is_ours(const char* path) {
  constexpr char kClass[] = "/sys/class/infiniband";  // and infiniband_verbs, infiniband_mad, ...
  constexpr char kConnections[] = "/sys/class/misc/rdma_cm";
  constexpr char kPeerMemory[] = "/sys/module/nvidia_peermem";
  constexpr char kNodes[] = "/dev/infiniband";
  if (path == nullptr || path[0] != '/') return false;
  if (std::strncmp(path, kConnections, sizeof kConnections - 1) == 0) return true;
  if (std::strncmp(path, kPeerMemory, sizeof kPeerMemory - 1) == 0) return true;
  if (std::strncmp(path, kClass, sizeof kClass - 1) == 0) {
    const char next = path[sizeof kClass - 1];
    return next == '\0' || next == '/' || next == '_';
  }
  if (std::strncmp(path, kNodes, sizeof kNodes - 1) != 0) return false;
  const char next = path[sizeof kNodes - 1];
  return next == '\0' || next == '/';
}

// Where `path` leads: itself, or its counterpart among the device's files.
class Path {
 public:
  explicit Path(const char* path) : path_(path) {
    if (!is_ours(path)) return;
    const std::string root = device().files_root();
    const int length = std::snprintf(buffer_, sizeof buffer_, "%s%s", root.c_str(), path);
    found_ = !root.empty() && length > 0 && static_cast<std::size_t>(length) < sizeof buffer_;
    path_ = buffer_;
    if (found_ && std::strstr(path, "counters") != nullptr) device().refresh_counters();
  }
  // False, with errno set, where the device has no files.
  [[nodiscard]] bool found() const {
    if (!found_) errno = ENOENT;
    return found_;
  }
  [[nodiscard]] const char* get() const { return path_; }

 private:
  const char* path_;
  bool found_ = true;
  char buffer_[PATH_MAX];
};

// Which of the devices' nodes a path names, kForeign for any other file. The HCA need not be there.
DeviceFile node_at(const char* path) {
  constexpr std::size_t kPrefix = sizeof kDeviceNodes - 1;
  if (path == nullptr) return {};
  if (std::strcmp(path, kConnectionsNode) == 0) return {FileKind::kConnections};
  if (std::strncmp(path, kDeviceNodes, kPrefix) != 0) return {};
  std::uint8_t index = 0;
  const char* const end = path + std::strlen(path);
  const auto [rest, error] = std::from_chars(path + kPrefix, end, index);
  const bool plain = path[kPrefix] != '0' || rest == path + kPrefix + 1;
  return error == std::errc{} && rest == end && plain ? DeviceFile{FileKind::kNode, index} : DeviceFile{};
}

int open_node(DeviceFile node, int flags) {
  const bool close_on_exec = (flags & O_CLOEXEC) != 0;
  const Answer<int> fd = node.kind == FileKind::kNode ? device().open_node(node.hca, close_on_exec)
                                                      : device().open_connections(close_on_exec);
  if (fd) return *fd;
  errno = fd.error();
  return -1;
}

bool takes_mode(int flags) { return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE; }

// What the kernel's device node looks like.
template <typename Stat>
int as_node(DeviceFile node, int result, Stat* status) {
  if (result != 0 || (node.kind != FileKind::kNode && node.kind != FileKind::kConnections)) return result;
  status->st_mode = S_IFCHR | 0666;
  status->st_rdev = node.kind == FileKind::kNode ? makedev(kCharDeviceMajor, kCharDeviceMinor + node.hca)
                                                 : makedev(kConnectionsMajor, kConnectionsMinor);
  status->st_size = 0;
  return 0;
}

template <typename Real, typename Stat>
int stat_path(Real& real, const char* path, Stat* status) {
  const Path target(path);
  if (!target.found()) return -1;
  return as_node(node_at(path), real(target.get(), status), status);
}

template <typename Real, typename Stat>
int stat_file(Real& real, int fd, Stat* status) {
  const int result = real(fd, status);
  DeviceFile file = tracked_file(fd);
  if (result == 0 && file.kind == FileKind::kForeign) {
    file = recognise_duplicate(fd, {status->st_dev, status->st_ino});
  }
  return as_node(file, result, status);
}

template <typename Real>
int open_path(Real& real, const char* path, int flags, mode_t mode) {
  if (const DeviceFile node = node_at(path); node.kind != FileKind::kForeign) return open_node(node, flags);
  const Path target(path);
  return target.found() ? real(target.get(), flags, mode) : -1;
}

template <typename Real>
int openat_path(Real& real, int directory, const char* path, int flags, mode_t mode) {
  if (const DeviceFile node = node_at(path); node.kind != FileKind::kForeign) return open_node(node, flags);
  const Path target(path);
  return target.found() ? real(directory, target.get(), flags, mode) : -1;
}

mode_t mode_argument(int flags, va_list arguments) {
  return takes_mode(flags) ? va_arg(arguments, mode_t) : 0;
}

}  // namespace
}  // namespace gdx::softhca::uverbs

using namespace gdx::softhca::uverbs;  // NOLINT: what follows are libc's names, outside any namespace

#define GDX_OPEN(name)                                                     \
  GDX_EXPORT int name(const char* path, int flags, ...) {                  \
    static constinit RealFunction<int(const char*, int, ...)> real(#name); \
    va_list arguments;                                                     \
    va_start(arguments, flags);                                            \
    const mode_t mode = mode_argument(flags, arguments);                   \
    va_end(arguments);                                                     \
    return open_path(real, path, flags, mode);                             \
  }

#define GDX_OPENAT(name)                                                        \
  GDX_EXPORT int name(int directory, const char* path, int flags, ...) {        \
    static constinit RealFunction<int(int, const char*, int, ...)> real(#name); \
    va_list arguments;                                                          \
    va_start(arguments, flags);                                                 \
    const mode_t mode = mode_argument(flags, arguments);                        \
    va_end(arguments);                                                          \
    return openat_path(real, directory, path, flags, mode);                     \
  }

// What _FORTIFY_SOURCE makes of an open without a mode.
#define GDX_OPEN_2(name)                                                        \
  GDX_EXPORT int name(const char* path, int flags) {                            \
    static constinit RealFunction<int(const char*, int)> real(#name);           \
    if (const DeviceFile node = node_at(path); node.kind != FileKind::kForeign) \
      return open_node(node, flags);                                            \
    const Path target(path);                                                    \
    return target.found() ? real(target.get(), flags) : -1;                     \
  }

#define GDX_OPENAT_2(name)                                                      \
  GDX_EXPORT int name(int directory, const char* path, int flags) {             \
    static constinit RealFunction<int(int, const char*, int)> real(#name);      \
    if (const DeviceFile node = node_at(path); node.kind != FileKind::kForeign) \
      return open_node(node, flags);                                            \
    const Path target(path);                                                    \
    return target.found() ? real(directory, target.get(), flags) : -1;          \
  }

#define GDX_STAT(name, type)                                            \
  GDX_EXPORT int name(const char* path, type* status) {                 \
    static constinit RealFunction<int(const char*, type*)> real(#name); \
    return stat_path(real, path, status);                               \
  }

#define GDX_FSTAT(name, type)                                   \
  GDX_EXPORT int name(int fd, type* status) {                   \
    static constinit RealFunction<int(int, type*)> real(#name); \
    return stat_file(real, fd, status);                         \
  }

#define GDX_FSTATAT(name, type)                                                                    \
  GDX_EXPORT int name(int directory, const char* path, type* status, int flags) {                  \
    static constinit RealFunction<int(int, const char*, type*, int)> real(#name);                  \
    auto bound = [&](const char* target, type* to) { return real(directory, target, to, flags); }; \
    if (path != nullptr && *path == '\0' && (flags & AT_EMPTY_PATH) != 0) {                        \
      auto whole = [&](int, type* to) { return real(directory, path, to, flags); };                \
      return stat_file(whole, directory, status);                                                  \
    }                                                                                              \
    return stat_path(bound, path, status);                                                         \
  }

// The forms that programs built against glibc before 2.33 call.
#define GDX_XSTAT(name, type)                                                             \
  GDX_EXPORT int name(int version, const char* path, type* status) {                      \
    static constinit RealFunction<int(int, const char*, type*)> real(#name);              \
    auto bound = [&](const char* target, type* to) { return real(version, target, to); }; \
    return stat_path(bound, path, status);                                                \
  }

#define GDX_FXSTAT(name, type)                                                \
  GDX_EXPORT int name(int version, int fd, type* status) {                    \
    static constinit RealFunction<int(int, int, type*)> real(#name);          \
    auto bound = [&](int file, type* to) { return real(version, file, to); }; \
    return stat_file(bound, fd, status);                                      \
  }

#define GDX_FOPEN(name)                                                         \
  GDX_EXPORT FILE* name(const char* path, const char* mode) {                   \
    static constinit RealFunction<FILE*(const char*, const char*)> real(#name); \
    const Path target(path);                                                    \
    return target.found() ? real(target.get(), mode) : nullptr;                 \
  }

GDX_OPEN(open)
GDX_OPEN(open64)
GDX_OPENAT(openat)
GDX_OPENAT(openat64)
GDX_OPEN_2(__open_2)
GDX_OPEN_2(__open64_2)
GDX_OPENAT_2(__openat_2)
GDX_OPENAT_2(__openat64_2)
GDX_STAT(stat, struct stat)
GDX_STAT(stat64, struct stat64)
GDX_STAT(lstat, struct stat)
GDX_STAT(lstat64, struct stat64)
GDX_FSTAT(fstat, struct stat)
GDX_FSTAT(fstat64, struct stat64)
GDX_FSTATAT(fstatat, struct stat)
GDX_FSTATAT(fstatat64, struct stat64)
GDX_XSTAT(__xstat, struct stat)
GDX_XSTAT(__xstat64, struct stat64)
GDX_XSTAT(__lxstat, struct stat)
GDX_XSTAT(__lxstat64, struct stat64)
GDX_FXSTAT(__fxstat, struct stat)
GDX_FXSTAT(__fxstat64, struct stat64)
GDX_FOPEN(fopen)
GDX_FOPEN(fopen64)

GDX_EXPORT int access(const char* path, int mode) {
  static constinit RealFunction<int(const char*, int)> real("access");
  const Path target(path);
  return target.found() ? real(target.get(), mode) : -1;
}

GDX_EXPORT DIR* opendir(const char* path) {
  static constinit RealFunction<DIR*(const char*)> real("opendir");
  const Path target(path);
  return target.found() ? real(target.get()) : nullptr;
}

GDX_EXPORT char* realpath(const char* path, char* resolved) {
  static constinit RealFunction<char*(const char*, char*)> real("realpath");
  const Path target(path);
  return target.found() ? real(target.get(), resolved) : nullptr;
}

GDX_EXPORT char* __realpath_chk(const char* path, char* resolved, size_t size) {
  static constinit RealFunction<char*(const char*, char*, size_t)> real("__realpath_chk");
  const Path target(path);
  return target.found() ? real(target.get(), resolved, size) : nullptr;
}

GDX_EXPORT ssize_t readlink(const char* path, char* buffer, size_t size) {
  static constinit RealFunction<ssize_t(const char*, char*, size_t)> real("readlink");
  const Path target(path);
  return target.found() ? real(target.get(), buffer, size) : -1;
}

GDX_EXPORT ssize_t __readlink_chk(const char* path, char* buffer, size_t size, size_t capacity) {
  static constinit RealFunction<ssize_t(const char*, char*, size_t, size_t)> real("__readlink_chk");
  const Path target(path);
  return target.found() ? real(target.get(), buffer, size, capacity) : -1;
}

GDX_EXPORT int close(int fd) {
  return tracked_file(fd).kind == FileKind::kForeign ? real_close(fd) : device().close(fd);
}

GDX_EXPORT int ioctl(int fd, unsigned long request, ...) {
  static constinit RealFunction<int(int, unsigned long, ...)> real("ioctl");
  va_list arguments;
  va_start(arguments, request);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  FileKind kind = tracked_file(fd).kind;
  if (kind == FileKind::kForeign && request == RDMA_VERBS_IOCTL) {
    kind = recognise_duplicate(fd, identity_of(fd)).kind;
  }
  if (kind != FileKind::kNode) return real(fd, request, argument);
  const gdx::softhca::Errno error =
      request == RDMA_VERBS_IOCTL ? device().request(fd, reinterpret_cast<std::uintptr_t>(argument)) : ENOTTY;
  if (error == 0) return 0;
  errno = error;
  return -1;
}

// A command of the connection manager; everything else a program writes is none of this library's business.
GDX_EXPORT ssize_t write(int fd, const void* buffer, size_t length) {
  static constinit RealFunction<ssize_t(int, const void*, size_t)> real("write");
  if (tracked_file(fd).kind != FileKind::kConnections) return real(fd, buffer, length);
  const gdx::softhca::Errno error =
      device().write_connections(fd, reinterpret_cast<std::uintptr_t>(buffer), length);
  if (error == 0) return static_cast<ssize_t>(length);
  errno = error;
  return -1;
}

GDX_EXPORT int gdx_softhca_progress() { return device().progress(); }

namespace {
__attribute__((destructor)) void shut_down_at_exit() {
  if (Device::exists()) Device::instance().shut_down();
}
}  // namespace
