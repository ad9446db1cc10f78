// Which file a descriptor refers to: numbers are closed and reused behind this library's back (close_range,
// dup2, a program's own system calls), files are not.
#pragma once

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gdx {

struct FileIdentity {
  dev_t device = 0;
  ino_t inode = 0;
  bool operator==(const FileIdentity&) const = default;
};

// All zero, which no file is, for a descriptor that is not open. Async-signal-safe; not through interposed
// functions.
inline FileIdentity identity_of(int fd) {
  struct stat found {};
  if (syscall(SYS_fstat, fd, &found) != 0) return {};
  return {found.st_dev, found.st_ino};
}

}  // namespace gdx
