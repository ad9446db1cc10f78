// Holes of memory files that another process owns and this one maps.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>

namespace gdx {

// Returns the bytes of a file's pages that are there. `facts`: of fstat().
[[nodiscard]] inline std::uint64_t present_bytes(const struct stat& facts) {
  constexpr std::uint64_t kBlockBytes = 512;  // of st_blocks, whatever the file system
  return static_cast<std::uint64_t>(facts.st_blocks) * kBlockBytes;
}

// Makes an access to a page that the file lacks raise SIGBUS, and fail a system call with EFAULT. Without it
// the access adds a page, which counts as this process's memory: who owns the file could punch holes until
// this process has no memory left. The pages, whole ones, are of one shared mapping of a memfd; their end
// ends it. False, with errno: the system or another kind of file does not permit it, and accesses add pages.
// Errors: EPERM where a filter of system calls forbids userfaultfd, ECHILD in a child by fork. Threads: any.
// Source: userfaultfd(2), UFFD_FEATURE_SIGBUS.
bool refuse_holes(void* first, std::size_t length_bytes);

// Copies from memory whose pages may be holes by then. False, with errno: one is (EFAULT), or the system does
// not permit process_vm_readv (EPERM, ENOSYS). Threads: any.
[[nodiscard]] bool copy_present(void* to, const void* from, std::size_t length_bytes);

}  // namespace gdx
