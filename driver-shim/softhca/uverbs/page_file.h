// The file behind every open of the device node: a sparse memfd, so that a program's own mmap of it
// reaches doorbell pages and device memory with no hook in between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "base/descriptor.h"
#include "driver-shim/softhca/engine/hca.h"

namespace gdx::softhca::uverbs {

inline constexpr std::size_t kPageBytes = 4096;

// Threads: the caller serialises.
class PageFile {
 public:
  // Errors: the errno of memfd_create(2), ftruncate(2) or mmap(2).
  static Answer<PageFile> create(std::size_t device_memory_bytes);
  PageFile(PageFile&& other) noexcept;
  PageFile& operator=(PageFile&&) = delete;
  ~PageFile();

  // Opens the file once more. Its offset, which nobody else has a use for, is `context`: all descriptors that
  // are duplicated from this one share it, by whatever call that was. Where /proc is closed to this process,
  // the descriptor shares an offset of 0 with others of its kind.
  struct Opened {
    int fd;
    bool counted;  // is_open() tells when it has ended
  };
  [[nodiscard]] Answer<Opened> open(bool close_on_exec, std::uint32_t context) const;
  // Whether anything still refers to the open `context`, which must be a counted one: a descriptor or a
  // mapping, in this process or another. The kernel's own account: nothing that threads do meanwhile can
  // deceive it.
  [[nodiscard]] bool is_open(std::uint32_t context) const;
  [[nodiscard]] int fd() const { return file_.value(); }
  [[nodiscard]] std::byte* device_memory() const { return device_memory_; }

  // A zeroed doorbell page, mapped here, and the offset at which a program maps it.
  struct DoorbellPage {
    std::byte* address;
    std::uint64_t mmap_offset;
  };
  Answer<DoorbellPage> add_doorbell_page();
  void remove_doorbell_page(const DoorbellPage& page);

  // Whole pages of device memory, first fit. Errors: ENOMEM, EINVAL for a length of 0 or an alignment
  // above a page.
  Answer<std::uint16_t> allocate(std::uint64_t length_bytes, std::uint32_t log_alignment);
  void release(std::uint16_t first_page);

 private:
  PageFile(Descriptor file, std::size_t device_memory_bytes, std::byte* device_memory)
      : file_(std::move(file)),
        device_memory_bytes_(device_memory_bytes),
        device_memory_(device_memory),
        page_used_(device_memory_bytes / kPageBytes) {}

  Descriptor file_;
  std::size_t device_memory_bytes_;
  std::byte* device_memory_;
  std::vector<bool> page_used_;
  std::map<std::uint16_t, std::size_t> allocations_;  // first page, pages
  std::vector<std::uint64_t> free_doorbell_pages_;
  std::uint64_t next_doorbell_page_ = 0;
};

}  // namespace gdx::softhca::uverbs
