// A process's objects in a file of its private tree, for the other processes of the same user. Costs a store
// to mapped memory for each object that is made, changed or destroyed, and nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/mapped_pages.h"
#include "driver-shim/softhca/uverbs/inventory.h"

namespace gdx::softhca::uverbs {

inline constexpr std::size_t kRecordBytes = 64;
inline constexpr std::uint32_t kMaxRecords = 65536;  // with the first, which names the process

// Writes the file. Objects beyond kMaxRecords, or without room, are left out, with one warning.
// Threads: the caller serialises.
class InventoryFile {
 public:
  // Makes the file in the folder `root`.
  explicit InventoryFile(const std::string& root) noexcept;

  // Returns the number of a free record; 0: there is none.
  std::uint32_t take() noexcept;
  // Writes a record, unless it has that content.
  void write(std::uint32_t record, std::uint8_t hca, const Resource& resource) noexcept;
  void free(std::uint32_t record) noexcept;

 private:
  bool grow();

  std::string path_;
  MappedPages pages_;
  std::uint32_t capacity_ = 0;       // records in the file
  std::uint32_t next_ = 1;           // first record that was never used
  std::vector<std::uint32_t> free_;  // has room for all
  bool full_ = false;
};

// An object's record, which ends with the object.
class InventoryRecord {
 public:
  InventoryRecord() = default;
  ~InventoryRecord() {
    if (number_ != 0) file_->free(number_);
  }
  InventoryRecord(const InventoryRecord&) = delete;
  InventoryRecord& operator=(const InventoryRecord&) = delete;

  // Takes a record of `file` at first, which must outlive this object.
  void show(InventoryFile& file, std::uint8_t hca, const Resource& resource) noexcept {
    file_ = &file;
    if (number_ == 0) number_ = file.take();
    if (number_ != 0) file.write(number_, hca, resource);
  }

 private:
  InventoryFile* file_ = nullptr;
  std::uint32_t number_ = 0;
};

// A resource, with the index of its HCA.
using PlacedResource = std::pair<std::uint8_t, Resource>;

// Reads the file in the folder `root`, which is hostile until proven otherwise. Returns nothing for another
// kind of file, and for one of this process or of none that lives. Leaves out records that are not whole.
std::vector<PlacedResource> read_inventory(const std::string& root);

}  // namespace gdx::softhca::uverbs
