#include "base/holes.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "base/descriptor.h"
#include "base/own_process.h"

namespace gdx {
namespace {

// Opens a userfaultfd for faults of user mode, which needs no right.
Descriptor open_faults() {
  const auto file = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY));
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = UFFD_FEATURE_SIGBUS | UFFD_FEATURE_MISSING_SHMEM;
  if (file < 0 || ioctl(file, UFFDIO_API, &api) == 0) return Descriptor::keep(file);
  const int error = errno;
  ::close(file);
  errno = error;
  return {};
}

}  // namespace

bool refuse_holes(void* first, std::size_t length_bytes) {
  struct Faults {
    Descriptor file = open_faults();
    int error = errno;
    OwnProcess process;
  };
  static const auto& faults = *new Faults;  // never closed, because that would end all refusals
  if (!faults.file || !faults.process.is_here()) {
    errno = faults.file ? ECHILD : faults.error;
    return false;
  }
  uffdio_register pages{};
  pages.range = {reinterpret_cast<std::uintptr_t>(first), length_bytes};
  pages.mode = UFFDIO_REGISTER_MODE_MISSING;
  return ioctl(faults.file.value(), UFFDIO_REGISTER, &pages) == 0;
}

bool copy_present(void* to, const void* from, std::size_t length_bytes) {
  const iovec here{to, length_bytes};
  const iovec there{const_cast<void*>(from), length_bytes};
  const ssize_t copied = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
  if (copied >= 0 && static_cast<std::size_t>(copied) < length_bytes) errno = EFAULT;
  return copied >= 0 && static_cast<std::size_t>(copied) == length_bytes;
}

}  // namespace gdx
