#include "driver-shim/softhca/uverbs/user_memory.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>

namespace gdx::softhca::uverbs {
namespace {

constexpr std::uint64_t kPageBytes = 4096;

std::mutex scratch_mutex;
int scratch_fd = -1;

// The kernel probes an address for us when it is the buffer of a read or write on a file of our own.
// Raw system calls: a sanitizer's wrapper would judge the program's pointer first.
Errno through_scratch(std::uint64_t to, std::uint64_t from, std::size_t length_bytes) {
  const std::lock_guard lock(scratch_mutex);
  if (scratch_fd < 0) scratch_fd = memfd_create("gdx-softhca-copy", MFD_CLOEXEC);
  if (scratch_fd < 0) return errno;
  const long written = syscall(SYS_pwrite64, scratch_fd, from, length_bytes, 0L);
  if (written < 0) return errno;
  if (static_cast<std::size_t>(written) != length_bytes) return EFAULT;
  const long read = syscall(SYS_pread64, scratch_fd, to, length_bytes, 0L);
  if (read < 0) return errno;
  return static_cast<std::size_t>(read) == length_bytes ? 0 : EFAULT;
}

}  // namespace

Errno copy_from_user(void* to, std::uint64_t from, std::size_t length_bytes) {
  if (length_bytes == 0) return 0;
  return through_scratch(reinterpret_cast<std::uintptr_t>(to), from, length_bytes);
}

Errno copy_to_user(std::uint64_t to, const void* from, std::size_t length_bytes) {
  if (length_bytes == 0) return 0;
  return through_scratch(to, reinterpret_cast<std::uintptr_t>(from), length_bytes);
}

Errno check_mapped(std::uint64_t address, std::uint64_t length_bytes) {
  if (address + length_bytes < address) return EINVAL;
  std::array<unsigned char, 4096> resident;
  constexpr std::uint64_t kStepBytes = resident.size() * kPageBytes;
  std::uint64_t page = address & ~(kPageBytes - 1);
  const std::uint64_t end = address + length_bytes;
  while (page < end) {
    const std::uint64_t step = std::min(kStepBytes, end - page);
    if (mincore(reinterpret_cast<void*>(page), step, resident.data()) != 0) return EFAULT;
    page += kStepBytes;
  }
  return 0;
}

}  // namespace gdx::softhca::uverbs
