// The file behind an open of the device node: a sparse memfd, so that a program's own mmap of it reaches
// doorbell pages and device memory without a hook. Each open has a file of its own, which shows no page of
// another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "base/descriptor.h"
#include "base/mapped_pages.h"
#include "driver-shim/softhca/engine/hca.h"

namespace gdx::softhca::uverbs {

inline constexpr std::size_t kPageBytes = 4096;
// mlx5's mmap encoding keeps the pages of device memory contiguous only within 256 pages.
inline constexpr std::size_t kMaxDeviceMemoryBytes = 256 * kPageBytes;

// The pages of an HCA's device memory, which its opens share. They are one range of addresses for the engine.
// Those of an allocation are pages of the file of its open; others belong to no file.
// Threads: the caller serialises.
class DevicePages {
 public:
  // Errors: the errno of mmap(2).
  static ErrnoOr<DevicePages> create(std::size_t bytes);

  [[nodiscard]] std::byte* memory() const { return memory_.get(); }

  // Maps whole zeroed pages of `file` at the first place that fits, each at its own offset. Returns the first
  // page. Errors: ENOMEM, EINVAL for a length of 0 or an alignment above a page.
  ErrnoOr<std::uint16_t> allocate(int file, std::uint64_t length_bytes, std::uint32_t log_alignment);
  // Frees the pages, and zeroes them in `file`, so that the next owner finds no data of this one.
  void release(int file, std::uint16_t first_page);

 private:
  explicit DevicePages(MappedPages memory)
      : memory_(std::move(memory)), page_used_(memory_.get_deleter().length_bytes / kPageBytes) {}

  MappedPages memory_;
  std::vector<bool> page_used_;
  std::map<std::uint16_t, std::size_t> allocations_;  // first page, pages
};

// Threads: the caller serialises.
class PageFile {
 public:
  // Errors: the errno of memfd_create(2) or ftruncate(2).
  static ErrnoOr<PageFile> create(DevicePages& device_memory);

  struct Opened {
    int fd;
    bool counted;  // is_open() detects its end
  };
  // Opens the file once more. If /proc is closed to this process, nobody can count who refers to it. Errors:
  // ENODEV where !refers(); the errno of open(2).
  [[nodiscard]] ErrnoOr<Opened> open(bool close_on_exec) const;
  // Returns whether a descriptor or a mapping of any process still refers to the counted file that open()
  // opened. Uses the Linux kernel's own account, which concurrent threads cannot falsify.
  [[nodiscard]] bool is_open() const;
  [[nodiscard]] int fd() const { return file_.value(); }
  // False: the program has closed the file by a system call, and its number may be any file's.
  [[nodiscard]] bool refers() const { return file_.refers(); }
  [[nodiscard]] std::byte* device_memory() const { return device_memory_->memory(); }

  // A zeroed doorbell page, mapped here, and the offset at which a program maps it.
  struct DoorbellPage {
    std::byte* address;
    std::uint64_t mmap_offset;
  };
  // Errors: ENOMEM, ENODEV where !refers().
  ErrnoOr<DoorbellPage> add_doorbell_page();
  void remove_doorbell_page(const DoorbellPage& page);

  // Allocates and releases pages as DevicePages does. Errors: its own; ENODEV where !refers().
  ErrnoOr<std::uint16_t> allocate(std::uint64_t length_bytes, std::uint32_t log_alignment);
  void release(std::uint16_t first_page);

 private:
  PageFile(Descriptor file, DevicePages& device_memory)
      : file_(std::move(file)), device_memory_(&device_memory) {}

  Descriptor file_;
  DevicePages* device_memory_;
  std::vector<std::uint64_t> free_doorbell_pages_;
  std::uint64_t next_doorbell_page_ = 0;
};

}  // namespace gdx::softhca::uverbs
