#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver-shim/cuda/fake/state.h"

namespace gdx::fake_cuda {
namespace {

// Small allocations share a block in the real driver: an address need not be a page's. Aligned as
// cuMemAlloc promises, "suitably for any kind of variable", in practice 512 B.
constexpr std::size_t kSmallBytes = 64 * 1024;
constexpr std::size_t kSmallOffset = 512;

}  // namespace

std::unique_ptr<DeviceMemory> DeviceMemory::allocate(CUdevice device, std::size_t bytes) {
  std::unique_ptr<DeviceMemory> memory(new DeviceMemory(device));
  memory->bytes_ = bytes;
  memory->offset_ = bytes < kSmallBytes ? kSmallOffset : 0;
  memory->page_bytes_ = (memory->offset_ + bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (memory->page_bytes_ < bytes) return nullptr;
  memory->file_ = memfd_create("fake GPU memory", MFD_CLOEXEC);
  if (memory->file_ < 0 || ftruncate(memory->file_, static_cast<off_t>(memory->page_bytes_)) != 0)
    return nullptr;
  void* const pages = mmap(nullptr, memory->page_bytes_, PROT_NONE, MAP_SHARED, memory->file_, 0);
  if (pages == MAP_FAILED) return nullptr;
  memory->pages_ = reinterpret_cast<std::uintptr_t>(pages);
  return memory;
}

DeviceMemory::~DeviceMemory() {
  if (pages_ != 0) munmap(reinterpret_cast<void*>(pages_), page_bytes_);
  if (file_ >= 0) close(file_);
}

int DeviceMemory::share_pages(std::uintptr_t first, std::size_t bytes) const {
  if (first % kPageBytes != 0 || bytes % kPageBytes != 0 || bytes == 0) return -1;
  if (first < pages_ || bytes > page_bytes_ || first - pages_ > page_bytes_ - bytes) return -1;
  return fcntl(file_, F_DUPFD_CLOEXEC, 0);
}

}  // namespace gdx::fake_cuda
