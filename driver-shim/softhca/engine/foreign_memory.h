// Memory that the HCA may use and this process cannot touch: a GPU's. Addresses of it are this process's too,
// so a place is looked up by its address; copies do the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "driver-shim/softhca/engine/dma.h"

namespace gdx::softhca {

// Copies to and from one GPU's memory. Threads: one at a time.
// Ordering: all copies are made in the order of their calls. A write may still be under way when write()
// returns, and has then read its source; settle() and read() wait for all before them. Nobody waits for a
// kernel.
class CopyEngine {
 public:
  virtual ~CopyEngine() = default;
  // False: the memory is gone, or its GPU.
  [[nodiscard]] virtual bool write(std::byte* to, const std::byte* from, std::size_t length_bytes) = 0;
  [[nodiscard]] virtual bool read(std::byte* to, const std::byte* from, std::size_t length_bytes) = 0;
  virtual void settle() = 0;
};

// Threads: the HCA's lock. Where nothing is foreign, everything here costs a look at empty().
class ForeignMemory {
 public:
  [[nodiscard]] bool empty() const { return ranges_.empty(); }
  // A range may be added several times, by each registration, and goes with the last.
  void add(const std::byte* first, std::size_t length_bytes, std::shared_ptr<CopyEngine> copies);
  void remove(const std::byte* first, std::size_t length_bytes);
  // Whose the byte at `at` is; null: this process's.
  [[nodiscard]] CopyEngine* find(const std::byte* at) const;

  // As dma_load() and dma_store(), wherever the range lies; it is of one kind. False: as CopyEngine.
  // Ordering: what is stored, anywhere, becomes visible after all that was stored before.
  [[nodiscard]] bool load(std::byte* to, const std::byte* from, std::size_t length_bytes);
  [[nodiscard]] bool store(std::byte* to, const std::byte* from, std::size_t length_bytes);

  // All that was stored is in memory. To be called before anything that tells of it by another way than
  // store(): a store to this process's memory, a packet.
  void settle();

 private:
  struct Range {
    const std::byte* first;
    std::size_t length_bytes;
    std::shared_ptr<CopyEngine> copies;
  };
  // Orders what `next` (null: this process) is about to write behind what others have still under way.
  void give_way_to(CopyEngine* next);

  std::vector<Range> ranges_;
  std::shared_ptr<CopyEngine> pending_;  // the one with writes under way: only one at a time has
};

}  // namespace gdx::softhca
