// Identity of the file behind a descriptor. Numbers can be closed and reused without this library
// (close_range, dup2, a program's own system calls), files cannot.
#pragma once

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <compare>

namespace gdx {

struct FileIdentity {
  dev_t device = 0;
  ino_t inode = 0;
  auto operator<=>(const FileIdentity&) const = default;
};

// Returns all zero, which no file has, for a descriptor that is not open. Async-signal-safe; calls no
// interposed function.
inline FileIdentity identity_of(int fd) {
  struct stat found {};
  if (syscall(SYS_fstat, fd, &found) != 0) return {};
  return {found.st_dev, found.st_ino};
}

}  // namespace gdx
