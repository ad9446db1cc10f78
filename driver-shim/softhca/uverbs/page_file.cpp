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
// the offset that UAR allocation returns, so any free range serves. The file ends with what is used, because
// whoever has it can fill all of it with pages.
constexpr std::uint64_t kDeviceMemoryFirstPage = std::uint64_t{MLX5_IB_MMAP_DEVICE_MEM} << 8;
constexpr std::uint64_t kDoorbellFirstPage = kDeviceMemoryFirstPage + kMaxDeviceMemoryBytes / kPageBytes;
constexpr std::uint64_t kMaxDoorbellPages = 1 << 14;
constexpr std::uint64_t kFilePages = kDoorbellFirstPage + kMaxDoorbellPages;
constexpr std::uint32_t kLogPageBytes = 12;

// A lock of the open itself: it goes with the last that refers to the open.
struct flock whole_file() {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

off_t device_memory_offset(std::size_t page) {
  return static_cast<off_t>((kDeviceMemoryFirstPage + page) * kPageBytes);
}

}  // namespace

ErrnoOr<DevicePages> DevicePages::create(std::size_t bytes) {
  if (bytes == 0) return DevicePages(nullptr);
  void* const mapped =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return refuse(errno);
  return DevicePages(MappedPages(static_cast<std::byte*>(mapped), Unmap{bytes}));
}

ErrnoOr<std::uint16_t> DevicePages::allocate(int file, std::uint64_t length_bytes,
                                             std::uint32_t log_alignment) {
  if (length_bytes == 0 || log_alignment > kLogPageBytes) return refuse(EINVAL);
  if (length_bytes > page_used_.size() * kPageBytes) return refuse(ENOMEM);
  const std::size_t pages = (length_bytes + kPageBytes - 1) / kPageBytes;
  std::size_t run = 0;
  for (std::size_t page = 0; page < page_used_.size(); ++page) {
    run = page_used_[page] ? 0 : run + 1;
    if (run < pages) continue;
    const std::size_t first = page + 1 - pages;
    if (mmap(memory() + first * kPageBytes, pages * kPageBytes, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_FIXED, file, device_memory_offset(first)) == MAP_FAILED)
      return refuse(ENOMEM);
    for (std::size_t i = first; i <= page; ++i) page_used_[i] = true;
    allocations_.emplace(static_cast<std::uint16_t>(first), pages);
    return static_cast<std::uint16_t>(first);
  }
  return refuse(ENOMEM);
}

// A program may have the pages of its file mapped still: it sees zeroes, and nobody reads what it stores.
void DevicePages::release(int file, std::uint16_t first_page) {
  const auto found = allocations_.find(first_page);
  if (found == allocations_.end()) return;
  const std::size_t bytes = found->second * kPageBytes;
  // A range of addresses that cannot be had back stays used, because a file's pages are behind it.
  if (mmap(memory() + first_page * kPageBytes, bytes, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
    return;
  for (std::size_t i = 0; i < found->second; ++i) page_used_[first_page + i] = false;
  allocations_.erase(found);
  static_cast<void>(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                              device_memory_offset(first_page), static_cast<off_t>(bytes)));
}

// Sealed, because a program that has the file must not be able to take pages from under the engine.
ErrnoOr<PageFile> PageFile::create(DevicePages& device_memory) {
  Descriptor file = Descriptor::keep(memfd_create("gdx-softhca", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) return refuse(errno);
  if (ftruncate(file.value(), static_cast<off_t>(kFilePages * kPageBytes)) != 0 ||
      fcntl(file.value(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return refuse(errno);
  return PageFile(std::move(file), device_memory);
}

ErrnoOr<PageFile::Opened> PageFile::open(bool close_on_exec) const {
  if (!refers()) return refuse(ENODEV);
  std::array<char, 32> path{};  // allocates nothing: the caller has reserved memory for opened objects
  std::snprintf(path.data(), path.size(), "/proc/self/fd/%d", fd());
  int opened = spare_standard_descriptors(real_open(path.data(), O_RDWR | (close_on_exec ? O_CLOEXEC : 0)),
                                          close_on_exec);
  if (opened >= 0) {
    struct flock lock = whole_file();
    return Opened{opened, fcntl(opened, F_OFD_SETLK, &lock) == 0};
  }
  if (errno == EACCES || errno == ENOENT) {
    opened =
        spare_standard_descriptors(fcntl(fd(), close_on_exec ? F_DUPFD_CLOEXEC : F_DUPFD, 0), close_on_exec);
  }
  if (opened < 0) return refuse(errno);
  return Opened{opened, false};
}

bool PageFile::is_open() const {
  struct flock lock = whole_file();
  return !refers() || fcntl(fd(), F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

ErrnoOr<std::uint16_t> PageFile::allocate(std::uint64_t length_bytes, std::uint32_t log_alignment) {
  if (!refers()) return refuse(ENODEV);
  return device_memory_->allocate(fd(), length_bytes, log_alignment);
}

void PageFile::release(std::uint16_t first_page) { device_memory_->release(fd(), first_page); }

ErrnoOr<PageFile::DoorbellPage> PageFile::add_doorbell_page() {
  std::uint64_t offset = 0;
  if (!refers()) return refuse(ENODEV);
  if (!free_doorbell_pages_.empty()) {
    // The one that has been free for longest: who had a page may ring it once more.
    offset = free_doorbell_pages_.front();
    free_doorbell_pages_.erase(free_doorbell_pages_.begin());
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

}  // namespace gdx::softhca::uverbs
