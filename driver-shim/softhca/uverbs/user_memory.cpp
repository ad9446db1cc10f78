#include "driver-shim/softhca/uverbs/user_memory.h"

#include <rdma/ib_user_ioctl_verbs.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <string>

#include "base/descriptor.h"
#include "base/fork_mutex.h"
#include "driver-shim/softhca/devx/refusals.h"
#include "driver-shim/softhca/engine/paging.h"

namespace gdx::softhca::uverbs {
namespace {

constexpr std::uint32_t kRemoteStores = IB_UVERBS_ACCESS_REMOTE_WRITE | IB_UVERBS_ACCESS_REMOTE_ATOMIC;

pid_t scratch_owner = 0;  // a child has a file of its own, because both would copy through one place at once

// Never destroyed: libraries may still call after the last destructor of ours has run.
Descriptor& scratch_file() {
  static auto* const file = new Descriptor;
  return *file;
}

// The kernel probes an address when it is the buffer of a read or write on our own file.
// Raw system calls: a sanitizer's wrapper would judge the program's pointer first.
Errno through_scratch(std::uint64_t to, std::uint64_t from, std::size_t length_bytes) {
  static ForkMutex mutex;
  const std::lock_guard lock(mutex);
  Descriptor& scratch = scratch_file();
  if (!scratch.refers() || scratch_owner != getpid()) {
    scratch = Descriptor::keep(memfd_create("gdx-softhca-copy", MFD_CLOEXEC));
    scratch_owner = getpid();
  }
  if (!scratch) return errno;
  const long written = syscall(SYS_pwrite64, scratch.value(), from, length_bytes, 0L);
  if (written < 0) return errno;
  if (static_cast<std::size_t>(written) != length_bytes) return EFAULT;
  const long read = syscall(SYS_pread64, scratch.value(), to, length_bytes, 0L);
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

Errno check_rights(std::uint32_t access) {
  constexpr std::uint32_t kKnown = IB_UVERBS_ACCESS_LOCAL_WRITE | kRemoteStores |
                                   IB_UVERBS_ACCESS_REMOTE_READ | IB_UVERBS_ACCESS_ZERO_BASED |
                                   IB_UVERBS_ACCESS_MW_BIND | IB_UVERBS_ACCESS_HUGETLB |
                                   IB_UVERBS_ACCESS_ON_DEMAND | IB_UVERBS_ACCESS_OPTIONAL_RANGE;
  if ((access & IB_UVERBS_ACCESS_ON_DEMAND) != 0 && !can_page_in()) {
    return unsupported(
        "paging on demand, for which Linux must be 5.14 or later, and process_vm_writev permitted");
  }
  if ((access & ~kKnown) != 0) return EINVAL;
  return (access & kRemoteStores) != 0 && (access & IB_UVERBS_ACCESS_LOCAL_WRITE) == 0 ? EINVAL : 0;
}

bool may_be_written(std::uint32_t access) {
  return (access & (kRemoteStores | IB_UVERBS_ACCESS_LOCAL_WRITE)) != 0;
}

// By the kernel's list: a probe would have to store to memory that the program may be using.
Errno check_access(std::uint64_t address, std::uint64_t length_bytes, Use use) {
  const std::uint64_t end = address + length_bytes;
  if (end < address) return EINVAL;
  std::ifstream mappings("/proc/self/maps");
  std::uint64_t checked = address;
  for (std::string line; checked < end && std::getline(mappings, line);) {
    std::uint64_t first = 0;
    std::uint64_t past = 0;
    std::array<char, 5> rights{};
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %4s", &first, &past, rights.data()) != 3)
      return EFAULT;
    if (past <= checked) continue;
    const bool allowed =
        rights[use == Use::kRead ? 0 : 1] != '-';  // Linux pins what may be written by that alone
    if (first > checked || !allowed) return EFAULT;
    checked = past;
  }
  return checked < end ? EFAULT : 0;
}

}  // namespace gdx::softhca::uverbs
