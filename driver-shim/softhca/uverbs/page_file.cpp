#include "driver-shim/softhca/uverbs/page_file.h"

#include <fcntl.h>
#include <rdma/mlx5-abi.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "driver-shim/softhca/uverbs/real.h"

namespace gdx::softhca::uverbs {
namespace {

// Page numbers in the file. mlx5's mmap encoding: command << 8 | index; for device memory the index's
// upper part would go on at bit 16, which config.cpp keeps from happening. Doorbell pages are found by
// the offset that UAR allocation returns, so any free range serves; the kernel takes this one too.
constexpr std::uint64_t kDeviceMemoryFirstPage = std::uint64_t{MLX5_IB_MMAP_DEVICE_MEM} << 8;
constexpr std::uint64_t kDoorbellFirstPage = std::uint64_t{9} << 16;
constexpr std::uint64_t kMaxDoorbellPages = 1 << 14;
constexpr std::uint64_t kFilePages = kDoorbellFirstPage + kMaxDoorbellPages;
constexpr std::uint32_t kLogPageBytes = 12;

// A lock of the open itself, on the byte of its number: it goes with the last that refers to the open.
struct flock lock_of(std::uint32_t context) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = context;
  lock.l_len = 1;
  return lock;
}

}  // namespace

ErrnoOr<PageFile> PageFile::create(std::size_t device_memory_bytes) {
  Descriptor file = Descriptor::keep(memfd_create("gdx-softhca", MFD_CLOEXEC));
  if (!file) return refuse(errno);
  MappedPages device_memory;
  if (ftruncate(file.value(), static_cast<off_t>(kFilePages * kPageBytes)) == 0) {
    if (device_memory_bytes == 0) return PageFile(std::move(file), nullptr);
    void* const mapped = mmap(nullptr, device_memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.value(),
                              static_cast<off_t>(kDeviceMemoryFirstPage * kPageBytes));
    if (mapped != MAP_FAILED)
      device_memory = MappedPages(static_cast<std::byte*>(mapped), Unmap{device_memory_bytes});
  }
  if (device_memory == nullptr) return refuse(errno);
  return PageFile(std::move(file), std::move(device_memory));
}

ErrnoOr<PageFile::Opened> PageFile::open(bool close_on_exec, std::uint32_t context) const {
  if (!refers()) return refuse(ENODEV);
  std::array<char, 32> path{};  // allocates nothing: the caller has reserved memory for opened objects
  std::snprintf(path.data(), path.size(), "/proc/self/fd/%d", fd());
  int opened = spare_standard_descriptors(real_open(path.data(), O_RDWR | (close_on_exec ? O_CLOEXEC : 0)),
                                          close_on_exec);
  if (opened >= 0) {
    lseek(opened, context, SEEK_SET);
    struct flock lock = lock_of(context);
    return Opened{opened, fcntl(opened, F_OFD_SETLK, &lock) == 0};
  }
  if (errno == EACCES || errno == ENOENT) {
    opened =
        spare_standard_descriptors(fcntl(fd(), close_on_exec ? F_DUPFD_CLOEXEC : F_DUPFD, 0), close_on_exec);
  }
  if (opened < 0) return refuse(errno);
  return Opened{opened, false};
}

bool PageFile::is_open(std::uint32_t context) const {
  struct flock lock = lock_of(context);
  return !refers() || fcntl(fd(), F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

ErrnoOr<PageFile::DoorbellPage> PageFile::add_doorbell_page() {
  std::uint64_t offset = 0;
  if (!refers()) return refuse(ENODEV);
  if (!free_doorbell_pages_.empty()) {
    offset = free_doorbell_pages_.back();
    free_doorbell_pages_.pop_back();
  } else {
    if (next_doorbell_page_ == kMaxDoorbellPages) return refuse(ENOMEM);
    offset = (kDoorbellFirstPage + next_doorbell_page_++) * kPageBytes;
  }
  void* const mapped =
      mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd(), static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) {
    free_doorbell_pages_.push_back(offset);
    return refuse(ENOMEM);
  }
  std::memset(mapped, 0, kPageBytes);
  return DoorbellPage{static_cast<std::byte*>(mapped), offset};
}

void PageFile::remove_doorbell_page(const DoorbellPage& page) {
  munmap(page.address, kPageBytes);
  free_doorbell_pages_.push_back(page.mmap_offset);
}

ErrnoOr<std::uint16_t> PageFile::allocate(std::uint64_t length_bytes, std::uint32_t log_alignment) {
  if (length_bytes == 0 || log_alignment > kLogPageBytes) return refuse(EINVAL);
  if (length_bytes > page_used_.size() * kPageBytes) return refuse(ENOMEM);
  const std::size_t pages = (length_bytes + kPageBytes - 1) / kPageBytes;
  std::size_t run = 0;
  for (std::size_t page = 0; page < page_used_.size(); ++page) {
    run = page_used_[page] ? 0 : run + 1;
    if (run < pages) continue;
    const std::size_t first = page + 1 - pages;
    for (std::size_t i = first; i <= page; ++i) page_used_[i] = true;
    std::memset(device_memory() + first * kPageBytes, 0, pages * kPageBytes);
    allocations_.emplace(static_cast<std::uint16_t>(first), pages);
    return static_cast<std::uint16_t>(first);
  }
  return refuse(ENOMEM);
}

void PageFile::release(std::uint16_t first_page) {
  const auto found = allocations_.find(first_page);
  if (found == allocations_.end()) return;
  for (std::size_t i = 0; i < found->second; ++i) page_used_[first_page + i] = false;
  allocations_.erase(found);
}

}  // namespace gdx::softhca::uverbs
