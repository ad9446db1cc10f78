// Holes of memory files that another process owns and this one maps.
#pragma once

#include <cstddef>

namespace gdx {

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
