#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "driver-shim/cuda/fake/state.h"

namespace gdx::fake_cuda {
namespace {

// Small allocations share a block in the real driver, so an address need not be a page's. Aligned as
// cuMemAlloc's documentation requires, "suitably for any kind of variable", in practice 512 B.
constexpr std::size_t kSmallBytes = 64 * 1024;
constexpr std::size_t kSmallOffset = 512;

// Initial content of memory, which the driver does not clear.
constexpr int kGarbage = 0xa5;

void* map_file(int file, std::size_t bytes, int protection) {
  void* const pages = mmap(nullptr, bytes, protection, MAP_SHARED, file, 0);
  return pages == MAP_FAILED ? nullptr : pages;
}

}  // namespace

std::unique_ptr<DeviceBytes> DeviceBytes::make(std::size_t bytes) {
  std::unique_ptr<DeviceBytes> made(
      new DeviceBytes(memfd_create("dmabuf", MFD_CLOEXEC | MFD_ALLOW_SEALING), bytes));
  if (made->file_ < 0 || ftruncate(made->file_, static_cast<off_t>(bytes)) != 0 ||
      fcntl(made->file_, F_ADD_SEALS, F_SEAL_SHRINK) != 0 || !made->map())
    return nullptr;
  std::memset(made->copies_, kGarbage, bytes);
  return made;
}

std::unique_ptr<DeviceBytes> DeviceBytes::adopt(int file, std::size_t bytes) {
  std::unique_ptr<DeviceBytes> adopted(new DeviceBytes(file, bytes));
  return file >= 0 && adopted->map() ? std::move(adopted) : nullptr;
}

bool DeviceBytes::map() {
  copies_ = static_cast<std::byte*>(map_file(file_, bytes_, PROT_READ | PROT_WRITE));
  kernels_ = static_cast<std::byte*>(map_file(file_, bytes_, PROT_READ | PROT_WRITE));
  return copies_ != nullptr && kernels_ != nullptr;
}

DeviceBytes::~DeviceBytes() {
  for (std::byte* const mapped : {copies_, kernels_}) {
    if (mapped != nullptr) munmap(mapped, bytes_);
  }
  if (file_ >= 0) close(file_);
}

int DeviceBytes::share(std::size_t offset) const {
  if (setting("GDX_FAKE_CUDA_DMABUF", 1) == 2) {
    const int other = memfd_create("dmabuf", MFD_CLOEXEC);
    return other >= 0 && ftruncate(other, static_cast<off_t>(bytes_)) == 0 ? other : -1;
  }
  // Opened anew, so that it has a position of its own; a mapping needs the right to read.
  const bool mappable = setting("GDX_FAKE_CUDA_DMABUF_MAP", 1) != 0;
  const std::string path = "/proc/self/fd/" + std::to_string(file_);
  const int descriptor = open(path.c_str(), (mappable ? O_RDWR : O_WRONLY) | O_CLOEXEC);
  if (descriptor >= 0) lseek(descriptor, static_cast<off_t>(offset), SEEK_SET);
  return descriptor;
}

std::unique_ptr<DeviceMemory> DeviceMemory::allocate(CUdevice device, std::size_t bytes) {
  std::unique_ptr<DeviceMemory> memory(new DeviceMemory(device));
  memory->bytes_ = bytes;
  memory->offset_ = bytes < kSmallBytes ? kSmallOffset : 0;
  memory->page_bytes_ = (memory->offset_ + bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (memory->page_bytes_ < bytes) return nullptr;
  memory->content_ = DeviceBytes::make(memory->page_bytes_);
  if (!memory->content_) return nullptr;
  memory->pages_ = reinterpret_cast<std::uintptr_t>(map_file(memory->file(), memory->page_bytes_, PROT_NONE));
  return memory->pages_ != 0 ? std::move(memory) : nullptr;
}

DeviceMemory::~DeviceMemory() {
  if (pages_ != 0) munmap(reinterpret_cast<void*>(pages_), page_bytes_);
}

int DeviceMemory::share_pages(std::uintptr_t first, std::size_t bytes) const {
  if (first % kPageBytes != 0 || bytes % kPageBytes != 0 || bytes == 0) return -1;
  if (first < pages_ || bytes > page_bytes_ || first - pages_ > page_bytes_ - bytes) return -1;
  return content_->share(first - pages_);
}

}  // namespace gdx::fake_cuda
