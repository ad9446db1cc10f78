#include "driver-shim/softhca/wire/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace gdx::softhca::wire {
namespace {

// Without these a peer could shorten the file, and touching what is gone is a SIGBUS.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

std::size_t control_bytes() {
  static const auto page_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  static_assert(sizeof(RingControl) <= 4096);
  return page_bytes;
}

std::size_t file_bytes() { return control_bytes() + kRingDataBytes; }

tl::unexpected<Error> system_failure(const char* what) {
  return fail(Status::kSystem, std::string("shared memory of a ring: ") + what + ": " + std::strerror(errno) +
                                   "; peers on this host are reached over UDP");
}

}  // namespace

std::byte* SharedMemory::data() const { return base_.get() + control_bytes(); }

Result<SharedMemory> SharedMemory::map(int fd) {
  const std::size_t whole = file_bytes() + kRingDataBytes;
  void* const base = mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return system_failure("no address space");
  SharedMemory memory;
  memory.base_ = MappedPages(static_cast<std::byte*>(base), Unmap{whole});
  constexpr int kProtection = PROT_READ | PROT_WRITE;
  const auto data_offset = static_cast<off_t>(control_bytes());
  if (mmap(base, file_bytes(), kProtection, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED ||
      mmap(memory.data() + kRingDataBytes, kRingDataBytes, kProtection, MAP_SHARED | MAP_FIXED, fd,
           data_offset) == MAP_FAILED) {
    return system_failure("mmap");
  }
  madvise(base, whole, MADV_DONTFORK);  // a child is not an end of this ring
  return memory;
}

Result<SharedMemory::Made> SharedMemory::create() {
  Descriptor file = Descriptor::keep(memfd_create("gdx-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.value() < 0) return system_failure("memfd_create");
  if (ftruncate(file.value(), static_cast<off_t>(file_bytes())) != 0) return system_failure("ftruncate");
  if (fcntl(file.value(), F_ADD_SEALS, kSeals) != 0) return system_failure("F_ADD_SEALS");
  Result<SharedMemory> memory = map(file.value());
  if (!memory) return tl::unexpected<Error>(memory.error());
  return Made{std::move(*memory), std::move(file)};
}

Result<SharedMemory> SharedMemory::adopt(int fd) {
  const int seals = fcntl(fd, F_GET_SEALS);
  struct stat status {};
  if (seals < 0 || (seals & kSeals) != kSeals || fstat(fd, &status) != 0 ||
      status.st_size != static_cast<off_t>(file_bytes())) {
    return fail(Status::kInvalidArgument, "a peer's ring is no sealed memory of the right size; refused");
  }
  return map(fd);
}

}  // namespace gdx::softhca::wire
