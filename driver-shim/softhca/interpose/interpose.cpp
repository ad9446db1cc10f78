// The libc functions through which a program meets RDMA devices. A path or descriptor that is not ours
// goes straight on to libc: nothing is made, locked or allocated for it. The build leaves these functions
// uninstrumented by sanitizers, because they may be called before any constructor has run.
#include <dirent.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "base/descriptor.h"
#include "base/kept_descriptor.h"
#include "driver-shim/softhca/interpose/device.h"
#include "driver-shim/softhca/interpose/no_memory.h"
#include "driver-shim/softhca/uverbs/real.h"

#define GDX_EXPORT extern "C" __attribute__((visibility("default")))

namespace gdx::softhca::uverbs {

GDX_REAL_FUNCTION RealFunction<int(const char*, int, ...)> real_open("open");
GDX_REAL_FUNCTION RealFunction<int(int)> real_close("close");

namespace {

GDX_REAL_FUNCTION RealFunction<int(int, const char*, int, int)> real_faccessat("faccessat");

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

// Returns whether `path` is a target of links of the device's files, because realpath(1) reads them one by
// one. A bus that the host has belongs to the host.
bool is_link_target(const char* path) {
  constexpr char kBus[] = "/sys/devices/pci0000:";
  constexpr std::size_t kNumberAt = sizeof kBus - 1;
  if (path == nullptr || std::strncmp(path, kBus, kNumberAt) != 0 || !Device::exists()) return false;
  char bus[sizeof kBus + 2]{};
  std::snprintf(bus, sizeof bus, "%.*s", static_cast<int>(kNumberAt + 2), path);
  return real_faccessat(AT_FDCWD, bus, F_OK, 0) != 0;
}

// Target of `path`: itself, or its counterpart among the device's files.
class Path {
 public:
  explicit Path(const char* path) : path_(path) {
    if (!is_ours(path) && !is_link_target(path)) return;
    path_ = buffer_;
    error_ = or_no_memory(ENOMEM, [&] { return find(path); });
  }
  // False, with errno set, where the device has no files.
  [[nodiscard]] bool found() const {
    if (error_ != 0) errno = error_;
    return error_ == 0;
  }
  [[nodiscard]] const char* get() const { return path_; }

 private:
  int find(const char* path) {
    const std::string root = device().files_root();
    const int length = std::snprintf(buffer_, sizeof buffer_, "%s%s", root.c_str(), path);
    if (root.empty() || length <= 0 || static_cast<std::size_t>(length) >= sizeof buffer_) return ENOENT;
    if (std::strstr(path, "counters") != nullptr) device().refresh_counters();
    if (std::strstr(path, kFlightFolder) == nullptr) return 0;
    flight_ = device().make_flight_file(path);
    std::snprintf(buffer_, sizeof buffer_, "/proc/self/fd/%d", flight_.value());
    return flight_ ? 0 : errno;
  }

  const char* path_;
  int error_ = 0;
  Descriptor flight_;  // the file, where it is one of events
  char buffer_[PATH_MAX];
};

// Returns the device node that a path names, kForeign for any other file. The HCA need not be there.
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
  return or_no_memory(-1, [&] {
    const ErrnoOr<int> fd = node.kind == FileKind::kNode
                                ? device().open_node(node.hca, (flags & O_CLOEXEC) != 0)
                                : device().open_connections(flags);
    if (fd) return *fd;
    errno = fd.error();
    return -1;
  });
}

bool takes_mode(int flags) { return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE; }

// Sets the attributes of the kernel's device node.
template <typename Stat>
void set_character_device(Stat& status, dev_t number) {
  status.st_mode = S_IFCHR | 0666;
  status.st_rdev = number;
  status.st_size = 0;
}
void set_character_device(struct statx& status, dev_t number) {
  status.stx_mode = S_IFCHR | 0666;
  status.stx_rdev_major = major(number);
  status.stx_rdev_minor = minor(number);
  status.stx_size = 0;
}

template <typename Stat>
FileIdentity identity_in(const Stat& status) {
  return {status.st_dev, status.st_ino};
}
FileIdentity identity_in(const struct statx& status) {
  return {makedev(status.stx_dev_major, status.stx_dev_minor), status.stx_ino};
}

template <typename Stat>
int as_node(DeviceFile node, int result, Stat* status) {
  if (result != 0 || (node.kind != FileKind::kNode && node.kind != FileKind::kConnections)) return result;
  set_character_device(*status, node.kind == FileKind::kNode
                                    ? makedev(kCharDeviceMajor, kCharDeviceMinor + node.hca)
                                    : makedev(kConnectionsMajor, kConnectionsMinor));
  return 0;
}

// Kernels since 6.11 take no path for an empty one.
bool names_the_descriptor(const char* path, int flags) {
  return (flags & AT_EMPTY_PATH) != 0 && (path == nullptr || *path == '\0');
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
    file = recognise_duplicate(fd, identity_in(*status));
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

// As close_range(2), but for the descriptors that this library keeps: a program has not opened them, and what
// it opens next would come to their numbers.
int close_around_kept(unsigned first, unsigned last, int flags) {
  const auto real = [flags](unsigned from, unsigned to) {
    return static_cast<int>(syscall(SYS_close_range, from, to, flags));
  };
  if (first > last || (flags & CLOSE_RANGE_CLOEXEC) != 0) return real(first, last);
  for (int kept = next_kept(static_cast<int>(std::min<unsigned>(first, INT_MAX)));
       kept >= 0 && static_cast<unsigned>(kept) <= last; kept = next_kept(kept + 1)) {
    const auto number = static_cast<unsigned>(kept);
    if (first < number && real(first, number - 1) != 0) return -1;
    first = number + 1;
  }
  return first > last ? 0 : real(first, last);
}

// Returns -1 if /proc is unreadable.
int highest_open_number() {
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return -1;
  int highest = -1;
  while (const dirent* const entry = readdir(folder)) {
    const char* const name = entry->d_name;
    int number = -1;
    std::from_chars(name, name + std::strlen(name), number);
    highest = std::max(highest, number);
  }
  closedir(folder);
  return highest;
}

mode_t mode_argument(int flags, va_list arguments) {
  return takes_mode(flags) ? va_arg(arguments, mode_t) : 0;
}

}  // namespace
}  // namespace gdx::softhca::uverbs

using namespace gdx::softhca::uverbs;  // NOLINT: what follows are libc's names, outside any namespace

#define GDX_OPEN(name)                                                             \
  GDX_EXPORT int name(const char* path, int flags, ...) {                          \
    static GDX_REAL_FUNCTION RealFunction<int(const char*, int, ...)> real(#name); \
    va_list arguments;                                                             \
    va_start(arguments, flags);                                                    \
    const mode_t mode = mode_argument(flags, arguments);                           \
    va_end(arguments);                                                             \
    return open_path(real, path, flags, mode);                                     \
  }

#define GDX_OPENAT(name)                                                                \
  GDX_EXPORT int name(int directory, const char* path, int flags, ...) {                \
    static GDX_REAL_FUNCTION RealFunction<int(int, const char*, int, ...)> real(#name); \
    va_list arguments;                                                                  \
    va_start(arguments, flags);                                                         \
    const mode_t mode = mode_argument(flags, arguments);                                \
    va_end(arguments);                                                                  \
    return openat_path(real, directory, path, flags, mode);                             \
  }

// Form of an open without a mode under _FORTIFY_SOURCE.
#define GDX_OPEN_2(name)                                                        \
  GDX_EXPORT int name(const char* path, int flags) {                            \
    static GDX_REAL_FUNCTION RealFunction<int(const char*, int)> real(#name);   \
    if (const DeviceFile node = node_at(path); node.kind != FileKind::kForeign) \
      return open_node(node, flags);                                            \
    const Path target(path);                                                    \
    return target.found() ? real(target.get(), flags) : -1;                     \
  }

#define GDX_OPENAT_2(name)                                                         \
  GDX_EXPORT int name(int directory, const char* path, int flags) {                \
    static GDX_REAL_FUNCTION RealFunction<int(int, const char*, int)> real(#name); \
    if (const DeviceFile node = node_at(path); node.kind != FileKind::kForeign)    \
      return open_node(node, flags);                                               \
    const Path target(path);                                                       \
    return target.found() ? real(directory, target.get(), flags) : -1;             \
  }

#define GDX_STAT(name, type)                                                    \
  GDX_EXPORT int name(const char* path, type* status) {                         \
    static GDX_REAL_FUNCTION RealFunction<int(const char*, type*)> real(#name); \
    return stat_path(real, path, status);                                       \
  }

#define GDX_FSTAT(name, type)                                           \
  GDX_EXPORT int name(int fd, type* status) {                           \
    static GDX_REAL_FUNCTION RealFunction<int(int, type*)> real(#name); \
    return stat_file(real, fd, status);                                 \
  }

#define GDX_FSTATAT(name, type)                                                                    \
  GDX_EXPORT int name(int directory, const char* path, type* status, int flags) {                  \
    static GDX_REAL_FUNCTION RealFunction<int(int, const char*, type*, int)> real(#name);          \
    auto bound = [&](const char* target, type* to) { return real(directory, target, to, flags); }; \
    if (names_the_descriptor(path, flags)) {                                                       \
      auto whole = [&](int, type* to) { return real(directory, path, to, flags); };                \
      return stat_file(whole, directory, status);                                                  \
    }                                                                                              \
    return stat_path(bound, path, status);                                                         \
  }

// The forms that programs built against glibc before 2.33 call.
#define GDX_XSTAT(name, type)                                                             \
  GDX_EXPORT int name(int version, const char* path, type* status) {                      \
    static GDX_REAL_FUNCTION RealFunction<int(int, const char*, type*)> real(#name);      \
    auto bound = [&](const char* target, type* to) { return real(version, target, to); }; \
    return stat_path(bound, path, status);                                                \
  }

#define GDX_FXSTAT(name, type)                                                \
  GDX_EXPORT int name(int version, int fd, type* status) {                    \
    static GDX_REAL_FUNCTION RealFunction<int(int, int, type*)> real(#name);  \
    auto bound = [&](int file, type* to) { return real(version, file, to); }; \
    return stat_file(bound, fd, status);                                      \
  }

// Defines a wrapper that changes the path alone: the parameters, and the arguments to pass on.
#define GDX_PATH(type, name, failed, parameters, ...)                   \
  GDX_EXPORT type name parameters {                                     \
    static GDX_REAL_FUNCTION RealFunction<type parameters> real(#name); \
    const Path target(path);                                            \
    if (!target.found()) return failed;                                 \
    path = target.get();                                                \
    return real(__VA_ARGS__);                                           \
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
GDX_PATH(FILE*, fopen, nullptr, (const char* path, const char* mode), path, mode)
GDX_PATH(FILE*, fopen64, nullptr, (const char* path, const char* mode), path, mode)
GDX_PATH(int, access, -1, (const char* path, int mode), path, mode)
GDX_PATH(int, eaccess, -1, (const char* path, int mode), path, mode)
GDX_PATH(int, euidaccess, -1, (const char* path, int mode), path, mode)
GDX_PATH(int, faccessat, -1, (int directory, const char* path, int mode, int flags), directory, path, mode,
         flags)
GDX_PATH(int, chdir, -1, (const char* path), path)
GDX_PATH(DIR*, opendir, nullptr, (const char* path), path)
GDX_PATH(int, scandir, -1,
         (const char* path, dirent*** list, int (*wanted)(const dirent*),
          int (*order)(const dirent**, const dirent**)),
         path, list, wanted, order)
GDX_PATH(int, scandir64, -1,
         (const char* path, dirent64*** list, int (*wanted)(const dirent64*),
          int (*order)(const dirent64**, const dirent64**)),
         path, list, wanted, order)
GDX_PATH(int, scandirat, -1,
         (int directory, const char* path, dirent*** list, int (*wanted)(const dirent*),
          int (*order)(const dirent**, const dirent**)),
         directory, path, list, wanted, order)
GDX_PATH(int, scandirat64, -1,
         (int directory, const char* path, dirent64*** list, int (*wanted)(const dirent64*),
          int (*order)(const dirent64**, const dirent64**)),
         directory, path, list, wanted, order)
GDX_PATH(char*, realpath, nullptr, (const char* path, char* resolved), path, resolved)
GDX_PATH(char*, __realpath_chk, nullptr, (const char* path, char* resolved, size_t size), path, resolved,
         size)
GDX_PATH(char*, canonicalize_file_name, nullptr, (const char* path), path)
GDX_PATH(ssize_t, readlink, -1, (const char* path, char* buffer, size_t size), path, buffer, size)
GDX_PATH(ssize_t, __readlink_chk, -1, (const char* path, char* buffer, size_t size, size_t capacity), path,
         buffer, size, capacity)
GDX_PATH(ssize_t, readlinkat, -1, (int directory, const char* path, char* buffer, size_t size), directory,
         path, buffer, size)
GDX_PATH(ssize_t, __readlinkat_chk, -1,
         (int directory, const char* path, char* buffer, size_t size, size_t capacity), directory, path,
         buffer, size, capacity)
GDX_PATH(int, statfs, -1, (const char* path, struct statfs* found), path, found)
GDX_PATH(int, statfs64, -1, (const char* path, struct statfs64* found), path, found)
GDX_PATH(int, statvfs, -1, (const char* path, struct statvfs* found), path, found)
GDX_PATH(int, statvfs64, -1, (const char* path, struct statvfs64* found), path, found)
// Interposed because ls reads access control lists.
GDX_PATH(ssize_t, getxattr, -1, (const char* path, const char* name, void* value, size_t size), path, name,
         value, size)
GDX_PATH(ssize_t, lgetxattr, -1, (const char* path, const char* name, void* value, size_t size), path, name,
         value, size)
GDX_PATH(ssize_t, listxattr, -1, (const char* path, char* list, size_t size), path, list, size)
GDX_PATH(ssize_t, llistxattr, -1, (const char* path, char* list, size_t size), path, list, size)

GDX_EXPORT int statx(int directory, const char* path, int flags, unsigned mask, struct statx* status) {
  static GDX_REAL_FUNCTION RealFunction<int(int, const char*, int, unsigned, struct statx*)> real("statx");
  if (names_the_descriptor(path, flags)) {
    // Requests the field that distinguishes a duplicate of a node from other files.
    const unsigned wanted = mask | STATX_INO;
    auto whole = [&](int, struct statx* to) { return real(directory, path, flags, wanted, to); };
    return stat_file(whole, directory, status);
  }
  auto bound = [&](const char* target, struct statx* to) { return real(directory, target, flags, mask, to); };
  return stat_path(bound, path, status);
}

GDX_EXPORT int close(int fd) {
  if (gdx::is_kept(fd)) {
    errno = EBADF;
    return -1;
  }
  return tracked_file(fd).kind == FileKind::kForeign ? real_close(fd) : device().close(fd);
}

GDX_EXPORT int close_range(unsigned int first, unsigned int last, int flags) noexcept {
  return close_around_kept(first, last, flags);
}

GDX_EXPORT void closefrom(int lowest) noexcept {
  const int first = lowest < 0 ? 0 : lowest;
  if (close_around_kept(static_cast<unsigned>(first), ~0u, 0) == 0) return;
  // Linux before 5.9, or a filter of system calls. A process may have a limit of 2^30.
  const int highest = highest_open_number();
  const long last = highest >= 0 ? highest : sysconf(_SC_OPEN_MAX) - 1;
  for (long fd = first; fd <= last; ++fd) close(static_cast<int>(fd));
}

GDX_EXPORT int ioctl(int fd, unsigned long request, ...) {
  static GDX_REAL_FUNCTION RealFunction<int(int, unsigned long, ...)> real("ioctl");
  va_list arguments;
  va_start(arguments, request);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  FileKind kind = tracked_file(fd).kind;
  if (kind == FileKind::kForeign && request == RDMA_VERBS_IOCTL) {
    kind = recognise_duplicate(fd, gdx::identity_of(fd)).kind;
  }
  if (kind != FileKind::kNode) return real(fd, request, argument);
  const gdx::softhca::Errno error =
      request == RDMA_VERBS_IOCTL ? device().request(fd, reinterpret_cast<std::uintptr_t>(argument)) : ENOTTY;
  if (error == 0) return 0;
  errno = error;
  return -1;
}

GDX_EXPORT int gdx_softhca_progress() { return device().progress(); }
GDX_EXPORT void gdx_softhca_wake() { device().wake(); }
GDX_EXPORT void gdx_softhca_share(int file) { device().share(file); }
GDX_EXPORT int gdx_softhca_raise(int event) { return device().raise(event); }

namespace {
extern "C" RealSymbol __start_gdx_real_functions[] __attribute__((visibility("hidden")));  // by the linker
extern "C" RealSymbol __stop_gdx_real_functions[] __attribute__((visibility("hidden")));

// Resolves at load, because dlsym() is not async-signal-safe, and clears dlerror()'s message for the program.
__attribute__((constructor)) void find_real_functions() {
  for (RealSymbol* symbol = __start_gdx_real_functions; symbol != __stop_gdx_real_functions; ++symbol)
    static_cast<void>(symbol->find());
  dlerror();  // clears the error of names that this libc does not have
}

__attribute__((destructor)) void shut_down_at_exit() {
  if (Device::exists()) Device::instance().shut_down();
}
}  // namespace
