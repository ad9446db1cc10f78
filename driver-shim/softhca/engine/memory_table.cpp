#include "driver-shim/softhca/engine/memory_table.h"

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "driver-shim/softhca/engine/paging.h"
#include "proto/mlx5/umr.h"
#include "proto/mlx5/wqe.h"

namespace gdx::softhca {
namespace {

// Keys up to this one have special meanings in a list of segments.
constexpr std::uint32_t kMaxReservedKey = std::max(mlx5::kInvalidLkey, mlx5::kRepeatBlockOperation);
constexpr std::uint32_t kChanges = kLocalWrite | kRemoteWrite | kRemoteAtomic;
// Bytes read in at a time, because a peer chooses the length of a message, and the HCA waits. The value is
// Linux's for one fetch.
constexpr std::uint64_t kMaxPagedBytes = 4 << 20;
static_assert(MemoryTable::kNullMkey <= kMaxReservedKey);
// Bytes of one extent of the null key's memory.
constexpr std::size_t kNullBytes = 64 << 10;
std::byte zeros[kNullBytes];  // read only; not const, because const data has pages in the file

// Returns the place of these bytes in a region without pieces.
MemoryTable::Extent place_in(const MemoryRegionSpec& region, std::uint64_t offset_bytes,
                             std::uint64_t length_bytes) {
  if ((region.access & kOnDemand) == 0) return {region.base + offset_bytes, length_bytes};
  const auto base = reinterpret_cast<std::uintptr_t>(region.base);  // null for the whole process
  return {reinterpret_cast<std::byte*>(base + offset_bytes), length_bytes, true};
}

}  // namespace

std::uint32_t MemoryTable::add(const MemoryRegionSpec& spec, const Random& random) {
  for (;;) {
    std::uint32_t mkey = random();
    if (spec.key_tag) mkey = (mkey & ~0xffu) | *spec.key_tag;
    const std::uint32_t index = mkey >> mlx5::kMkeyTagBits;
    if (index <= kMaxReservedKey >> mlx5::kMkeyTagBits) continue;  // with any tag
    if (regions_.emplace(index, Region{mkey, spec}).second) return mkey;
  }
}

bool MemoryTable::replace(std::uint32_t mkey, const MemoryRegionSpec& spec) {
  const auto found = regions_.find(mkey >> mlx5::kMkeyTagBits);
  if (found == regions_.end() || found->second.mkey != mkey) return false;
  found->second.spec = spec;
  return true;
}

bool MemoryTable::remove(std::uint32_t mkey) {
  const auto found = regions_.find(mkey >> mlx5::kMkeyTagBits);
  if (found == regions_.end() || (found->second.mkey != mkey && !found->second.spec.umr)) return false;
  last_ = nullptr;
  regions_.erase(found);
  return true;
}

const MemoryRegionSpec* MemoryTable::find(std::uint32_t mkey) const {
  if (last_ != nullptr && last_mkey_ == mkey) return last_;
  const auto found = regions_.find(mkey >> mlx5::kMkeyTagBits);
  if (found == regions_.end() || found->second.mkey != mkey) return nullptr;
  last_mkey_ = mkey;
  last_ = &found->second.spec;
  return last_;
}

const MemoryRegionSpec* MemoryTable::find_usable(std::uint32_t mkey, const KeyUser& user,
                                                 std::uint64_t address, std::uint64_t length_bytes,
                                                 std::uint32_t access) const {
  const MemoryRegionSpec* region = find(mkey);
  if (region == nullptr || region->pd != user.pd || (region->access & access) != access) return nullptr;
  if (region->umr) {
    const UmrKey& key = *region->umr;
    if (key.free || (key.qpn != mlx5::kMkeyAnyQpn && key.qpn != user.qpn)) return nullptr;
  }
  if (address < region->iova) return nullptr;
  const std::uint64_t offset = address - region->iova;
  const bool inside = offset <= region->length_bytes && length_bytes <= region->length_bytes - offset;
  return inside ? region : nullptr;
}

MemoryTable::Extent MemoryTable::first_extent(std::uint32_t mkey, const KeyUser& user, std::uint64_t address,
                                              std::uint64_t length_bytes, std::uint32_t access) const {
  Extent extent = find_extent(mkey, user, address, length_bytes, access);
  if (!extent.paged) return extent;
  extent.length_bytes = std::min(extent.length_bytes, kMaxPagedBytes);
  return page_in(extent.at, extent.length_bytes, (access & kChanges) != 0) ? extent : Extent{};
}

MemoryTable::Extent MemoryTable::find_extent(std::uint32_t mkey, const KeyUser& user, std::uint64_t address,
                                             std::uint64_t length_bytes, std::uint32_t access) const {
  if (mkey == kNullMkey) [[unlikely]]
    return null_extent(length_bytes, access);
  const MemoryRegionSpec* const region = find_usable(mkey, user, address, length_bytes, access);
  if (region == nullptr) return {};
  const std::uint64_t offset = address - region->iova;
  if (region->pieces.empty()) return place_in(*region, offset, length_bytes);
  return extent_below(*region, user, offset, length_bytes, access);
}

// Refuses remote access, because no peer may use this key.
MemoryTable::Extent MemoryTable::null_extent(std::uint64_t length_bytes, std::uint32_t access) const {
  if ((access & ~kLocalWrite) != 0) return {};
  const std::uint64_t n = std::min<std::uint64_t>(length_bytes, kNullBytes);
  if (access == 0) return {zeros, n};
  if (discarded_ == nullptr) discarded_.reset(new std::byte[kNullBytes]);
  return {discarded_.get(), n};
}

// Finds the extent below an indirect key, one level deep. The key itself holds the peer's rights; of the keys
// below only the right to change memory counts.
MemoryTable::Extent MemoryTable::extent_below(const MemoryRegionSpec& region, const KeyUser& user,
                                              std::uint64_t offset_bytes, std::uint64_t length_bytes,
                                              std::uint32_t access) const {
  const std::uint64_t repeats = region.block_bytes == 0 ? 0 : offset_bytes / region.block_bytes;
  const std::uint64_t within = offset_bytes - repeats * region.block_bytes;
  const auto next = std::upper_bound(
      region.pieces.begin(), region.pieces.end(), within,
      [](std::uint64_t bytes, const IndirectPiece& piece) { return bytes < piece.start_bytes; });
  if (next == region.pieces.begin()) return {};
  const IndirectPiece& piece = *std::prev(next);
  const std::uint64_t whole_bytes = region.block_bytes == 0 ? region.length_bytes : region.block_bytes;
  const std::uint64_t end_bytes = next == region.pieces.end() ? whole_bytes : next->start_bytes;
  const std::uint64_t n = std::min(length_bytes, end_bytes - within);
  const std::uint64_t address = piece.address + repeats * piece.stride_bytes + (within - piece.start_bytes);
  const std::uint32_t needed = (access & kChanges) != 0 ? kLocalWrite : 0u;
  const MemoryRegionSpec* const below = find_usable(piece.mkey, user, address, n, needed);
  if (below == nullptr || !below->pieces.empty() || below->umr) return {};
  return place_in(*below, address - below->iova, n);
}

MemoryTable::Extent MemoryTable::whole_extent(std::uint32_t mkey, const KeyUser& user, std::uint64_t address,
                                              std::uint64_t length_bytes, std::uint32_t access) const {
  Extent whole = first_extent(mkey, user, address, length_bytes, access);
  while (whole.at != nullptr && whole.length_bytes < length_bytes) {
    const std::uint64_t done = whole.length_bytes;
    const Extent next = first_extent(mkey, user, address + done, length_bytes - done, access);
    if (next.at != whole.at + done) return {};
    whole.length_bytes += next.length_bytes;
    whole.paged = whole.paged || next.paged;
  }
  return whole;
}

std::byte* MemoryTable::resolve(std::uint32_t mkey, const KeyUser& user, std::uint64_t address,
                                std::uint64_t length_bytes, std::uint32_t access) const {
  return whole_extent(mkey, user, address, length_bytes, access).at;
}

ErrnoOr<const std::byte*> MemoryTable::find_paged(std::uint32_t mkey, std::uint32_t pd, std::uint64_t address,
                                                  std::uint64_t length_bytes, bool written) const {
  const MemoryRegionSpec* const region = find(mkey);
  if (region == nullptr) return refuse(ENOENT);
  if (region->umr || !region->pieces.empty()) return refuse(EINVAL);
  if ((region->access & kOnDemand) == 0) return refuse(ENOENT);
  if (region->pd != pd || (written && (region->access & kLocalWrite) == 0)) return refuse(EPERM);
  const std::uint64_t offset = address - region->iova;
  const bool inside = address >= region->iova && offset <= region->length_bytes &&
                      length_bytes <= region->length_bytes - offset;
  if (!inside) return refuse(EFAULT);
  return reinterpret_cast<const std::byte*>(reinterpret_cast<std::uintptr_t>(region->base) + offset);
}

bool MemoryTable::uses_pd(std::uint32_t pd) const {
  return std::any_of(regions_.begin(), regions_.end(),
                     [pd](const auto& it) { return it.second.spec.pd == pd; });
}

}  // namespace gdx::softhca
