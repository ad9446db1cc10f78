// Memory that the HCA may use and this process cannot load or store: a GPU's. Its addresses are unique in
// this process, so a lookup by address finds its copy engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "driver-shim/softhca/engine/dma.h"

namespace gdx::softhca {

// Copies to and from one GPU's memory. Threads: one at a time.
// Ordering: copies are made in the order of their calls. write() has read its source when it returns; its
// bytes may arrive later. synchronize() and read() wait for all earlier copies. No call waits for a kernel.
class CopyEngine {
 public:
  virtual ~CopyEngine() = default;
  // Return false if the memory or its GPU has gone.
  [[nodiscard]] virtual bool write(std::byte* to, const std::byte* from, std::size_t length_bytes) = 0;
  [[nodiscard]] virtual bool read(std::byte* to, const std::byte* from, std::size_t length_bytes) = 0;
  virtual void synchronize() = 0;
  // Returns whether the HCA's writes become visible there before what it announces them by.
  [[nodiscard]] virtual bool ordered() const { return true; }
};

// Threads: the HCA's lock. Without foreign memory each call costs a test of empty().
class ForeignMemory {
 public:
  [[nodiscard]] bool empty() const { return ranges_.empty(); }
  // Adds a range. Each registration may add it; it ends with the last removal.
  void add(const std::byte* first, std::size_t length_bytes, std::shared_ptr<CopyEngine> copies);
  void remove(const std::byte* first, std::size_t length_bytes);
  // Returns the copy engine of the byte at `at`; null: memory of this process.
  [[nodiscard]] CopyEngine* find(const std::byte* at) const;

  // Load and store as dma_load() and dma_store() do, in memory of one kind. False: as those. Ordering:
  // stored bytes become visible after all bytes stored before, in any memory.
  [[nodiscard]] bool load(std::byte* to, const std::byte* from, std::size_t length_bytes);
  [[nodiscard]] bool store(std::byte* to, const std::byte* from, std::size_t length_bytes);

  // Waits until all stored bytes are in memory. Call it before announcing them by anything but store(): a
  // store to this process's memory, a packet. Leaves those of a CopyEngine without order to
  // synchronize_all().
  void synchronize();
  void synchronize_all();

 private:
  struct Range {
    const std::byte* first;
    std::size_t length_bytes;
    std::shared_ptr<CopyEngine> copies;
  };
  // Orders the next writes of `next` (null: this process) after pending writes of another engine.
  void give_way_to(CopyEngine* next);

  std::vector<Range> ranges_;
  std::shared_ptr<CopyEngine> pending_;  // the engine with pending writes; at most one has any
};

}  // namespace gdx::softhca
