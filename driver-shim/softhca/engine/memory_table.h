// Protection: which key may touch which bytes of this process, for whom.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_map>

#include "driver-shim/softhca/engine/hca.h"

namespace gdx::softhca {

// 32 random bits a call.
using Random = std::function<std::uint32_t()>;

class MemoryTable {
 public:
  // A key is a random number, so that a peer cannot guess another's (full width, never 0 or the lkey
  // that ends scatter lists).
  std::uint32_t add(const MemoryRegionSpec& spec, const Random& random);
  bool remove(std::uint32_t mkey);

  // False: no such key.
  bool replace(std::uint32_t mkey, const MemoryRegionSpec& spec);

  // Null: no such key.
  [[nodiscard]] const MemoryRegionSpec* find(std::uint32_t mkey) const;
  // Where [address, address + length) under `mkey` is in this process. Null: unknown key, another
  // protection domain, a range that is not wholly inside, an access bit that the region lacks, a piece of
  // an indirect key whose own key is gone, or that does not follow on the one before it, or memory that is
  // paged on demand and is not there.
  [[nodiscard]] std::byte* resolve(std::uint32_t mkey, std::uint32_t pd, std::uint64_t address,
                                   std::uint64_t length_bytes, std::uint32_t access) const;
  [[nodiscard]] bool uses_pd(std::uint32_t pd) const;

 private:
  [[nodiscard]] std::byte* resolve_indirect(const MemoryRegionSpec& region, std::uint64_t offset_bytes,
                                            std::uint64_t length_bytes, std::uint32_t access) const;

  std::unordered_map<std::uint32_t, MemoryRegionSpec> regions_;
  // The key asked for last: every packet of a message asks for the same one.
  mutable std::uint32_t last_mkey_ = 0;
  mutable const MemoryRegionSpec* last_ = nullptr;
};

}  // namespace gdx::softhca
