// The file behind every open of the device node: a sparse memfd, so that a program's own mmap of it reaches
// doorbell pages and device memory without a hook.
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

// Threads: the caller serialises.
class PageFile {
 public:
  // Errors: the errno of memfd_create(2), ftruncate(2) or mmap(2).
  static ErrnoOr<PageFile> create(std::size_t device_memory_bytes);

  // Opens the file once more. Its otherwise unused offset is `context`: all duplicates of this descriptor
  // share it, by any call that duplicates. If /proc is closed to this process, the descriptor shares an
  // offset of 0 with others of its kind.
  struct Opened {
    int fd;
    bool counted;  // is_open() detects its end
  };
  // Errors: ENODEV where !refers(); the errno of open(2).
  [[nodiscard]] ErrnoOr<Opened> open(bool close_on_exec, std::uint32_t context) const;
  // Returns whether a descriptor or a mapping still refers to the open `context`, which must be a counted
  // one, in this process or another. Uses the Linux kernel's own account, which concurrent threads cannot
  // falsify.
  [[nodiscard]] bool is_open(std::uint32_t context) const;
  [[nodiscard]] int fd() const { return file_.value(); }
  // False: the program has closed the file by a system call, and its number may be any file's.
  [[nodiscard]] bool refers() const { return file_.refers(); }
  [[nodiscard]] std::byte* device_memory() const { return device_memory_.get(); }

  // A zeroed doorbell page, mapped here, and the offset at which a program maps it.
  struct DoorbellPage {
    std::byte* address;
    std::uint64_t mmap_offset;
  };
  // Errors: ENOMEM, ENODEV where !refers().
  ErrnoOr<DoorbellPage> add_doorbell_page();
  void remove_doorbell_page(const DoorbellPage& page);

  // Whole pages of device memory, first fit. Errors: ENOMEM, EINVAL for a length of 0 or an alignment
  // above a page.
  ErrnoOr<std::uint16_t> allocate(std::uint64_t length_bytes, std::uint32_t log_alignment);
  void release(std::uint16_t first_page);

 private:
  PageFile(Descriptor file, MappedPages device_memory)
      : file_(std::move(file)),
        device_memory_(std::move(device_memory)),
        page_used_(device_memory_.get_deleter().length_bytes / kPageBytes) {}

  Descriptor file_;
  MappedPages device_memory_;
  std::vector<bool> page_used_;
  std::map<std::uint16_t, std::size_t> allocations_;  // first page, pages
  std::vector<std::uint64_t> free_doorbell_pages_;
  std::uint64_t next_doorbell_page_ = 0;
};

}  // namespace gdx::softhca::uverbs
