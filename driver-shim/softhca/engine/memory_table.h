// Protection: the bytes of this process that each key opens, for each user.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>

#include "driver-shim/softhca/engine/hca.h"
#include "driver-shim/softhca/engine/umr.h"
#include "proto/mlx5/wqe.h"

namespace gdx::softhca {

// User of a key: a queue pair and its domain.
struct KeyUser {
  std::uint32_t pd = 0;
  std::uint32_t qpn = 0;
};

// A key is an index of 24 bits and a tag of 8 bits, which UMR changes. No two keys share an index.
class MemoryTable {
 public:
  // The local key of no memory, for every domain: it reads as zeros and discards what is written.
  // Source: Linux drivers/infiniband/hw/mlx5/cmd.c, mlx5r_cmd_query_special_mkeys(), dump_fill_mkey.
  static constexpr std::uint32_t kNullMkey = 0x300;

  [[nodiscard]] bool full() const { return regions_.size() >= kMaxKeys; }
  // Adds a key: a random number, so that a peer cannot guess another's. It has the full width and is never 0
  // or a special number in lists. Requires !full().
  std::uint32_t add(const MemoryRegionSpec& spec, const Random& random);
  // Removes a key; a UMR key under any tag.
  bool remove(std::uint32_t mkey);

  // Replaces the key's region. False: no such key.
  bool replace(std::uint32_t mkey, const MemoryRegionSpec& spec);

  // Returns the key's region. Null: no such key.
  [[nodiscard]] const MemoryRegionSpec* find(std::uint32_t mkey) const;
  struct Extent {
    std::byte* at = nullptr;
    std::uint64_t length_bytes = 0;
    bool paged = false;  // on demand: only paged_load() and paged_store() may access it
  };
  // Returns the place of [address, ...) under `mkey` in this process, and its contiguous length up to
  // `length_bytes`. Null:
  //  - an unknown key, another protection domain, a UMR key that is free or another queue pair's
  //  - a range that is not wholly inside, or an access bit that the region lacks
  //  - an indirect key whose piece there has a key that is gone, or does not permit that
  //  - memory that is paged on demand and is not there
  // An extent paged on demand is at most 4 MiB.
  [[nodiscard]] Extent first_extent(std::uint32_t mkey, const KeyUser& user, std::uint64_t address,
                                    std::uint64_t length_bytes, std::uint32_t access) const;
  // Returns the place of a contiguous range; null if it is not contiguous.
  [[nodiscard]] std::byte* resolve(std::uint32_t mkey, const KeyUser& user, std::uint64_t address,
                                   std::uint64_t length_bytes, std::uint32_t access) const;
  // Returns the place of a contiguous range, and its kind of access.
  [[nodiscard]] Extent whole_extent(std::uint32_t mkey, const KeyUser& user, std::uint64_t address,
                                    std::uint64_t length_bytes, std::uint32_t access) const;
  // Calls visit(extent, offset in the range) for its extents, in order. False: one is null, or visit returned
  // false. Pages on demand may be absent; none is read in.
  template <typename Visit>
  bool visit_extents(std::uint32_t mkey, const KeyUser& user, std::uint64_t address,
                     std::uint64_t length_bytes, std::uint32_t access, Visit visit) const {
    for (std::uint64_t done = 0; done < length_bytes;) {
      const Extent extent = find_extent(mkey, user, address + done, length_bytes - done, access);
      if (extent.at == nullptr || !visit(extent, done)) return false;
      done += extent.length_bytes;
    }
    return true;
  }
  // Returns the place of memory that is paged on demand. Errors: those of Hca::prefetch().
  // Source: Linux drivers/infiniband/hw/mlx5/odp.c, get_prefetchable_mr(), which accepts keys of such memory,
  // for UMR and that lie on others, and no other.
  [[nodiscard]] ErrnoOr<const std::byte*> find_paged(std::uint32_t mkey, std::uint32_t pd,
                                                     std::uint64_t address, std::uint64_t length_bytes,
                                                     bool written) const;
  [[nodiscard]] bool uses_pd(std::uint32_t pd) const;

  // Executes a UMR WQE on the UMR key with the index of `mkey`. The WQE's tag is not compared, because a
  // driver may name the tag that it is about to set. `entries` are the request's translation. Returns
  // null once it is done, else the reason for which nothing was changed.
  // Source: Linux drivers/infiniband/hw/mlx5/wr.c (handle_reg_mr); IBA 1.4, 10.6.6.2 and 10.6.7.2.
  [[nodiscard]] const char* update(std::uint32_t mkey, const KeyUser& user, const UmrRequest& request,
                                   std::span<const mlx5::DataSegment> entries);
  // Frees a UMR key for a peer. False: no bound key of this queue pair permits that.
  bool invalidate(std::uint32_t rkey, const KeyUser& user);

 private:
  static constexpr std::size_t kMaxKeys = std::size_t{1}
                                          << 23;  // half of the indices, to find free ones soon

  struct Region {
    std::uint32_t mkey = 0;
    MemoryRegionSpec spec;
  };
  [[nodiscard]] const MemoryRegionSpec* find_usable(std::uint32_t mkey, const KeyUser& user,
                                                    std::uint64_t address, std::uint64_t length_bytes,
                                                    std::uint32_t access) const;
  // Finds as first_extent() does, but reads in no page on demand.
  [[nodiscard]] Extent find_extent(std::uint32_t mkey, const KeyUser& user, std::uint64_t address,
                                   std::uint64_t length_bytes, std::uint32_t access) const;
  [[nodiscard]] Extent extent_below(const MemoryRegionSpec& region, const KeyUser& user,
                                    std::uint64_t offset_bytes, std::uint64_t length_bytes,
                                    std::uint32_t access) const;
  [[nodiscard]] const char* refuse_binding(const MemoryRegionSpec& window, const KeyUser& user) const;
  [[nodiscard]] Extent null_extent(std::uint64_t length_bytes, std::uint32_t access) const;

  mutable std::unique_ptr<std::byte[]> discarded_;     // target of writes under kNullMkey, made on first use
  std::unordered_map<std::uint32_t, Region> regions_;  // by index
  // The last key used, because every packet of a message uses one key.
  mutable std::uint32_t last_mkey_ = 0;
  mutable const MemoryRegionSpec* last_ = nullptr;
};

}  // namespace gdx::softhca
