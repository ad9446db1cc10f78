#include "driver-shim/softhca/engine/memory_table.h"

#include <algorithm>

#include "driver-shim/softhca/engine/paging.h"
#include "proto/mlx5/wqe.h"

namespace gdx::softhca {
namespace {
constexpr std::uint32_t kChanges = kLocalWrite | kRemoteWrite | kRemoteAtomic;
}

std::uint32_t MemoryTable::add(const MemoryRegionSpec& spec, const Random& random) {
  for (;;) {
    std::uint32_t mkey = random();
    if (spec.key_tag) mkey = (mkey & ~0xffu) | *spec.key_tag;
    if (mkey == 0 || mkey == mlx5::kInvalidLkey) continue;
    if (regions_.emplace(mkey, spec).second) return mkey;
  }
}

bool MemoryTable::replace(std::uint32_t mkey, const MemoryRegionSpec& spec) {
  const auto found = regions_.find(mkey);
  if (found == regions_.end()) return false;
  found->second = spec;
  return true;
}

bool MemoryTable::remove(std::uint32_t mkey) {
  last_ = nullptr;
  return regions_.erase(mkey) == 1;
}

const MemoryRegionSpec* MemoryTable::find(std::uint32_t mkey) const {
  if (last_ != nullptr && last_mkey_ == mkey) return last_;
  const auto found = regions_.find(mkey);
  if (found == regions_.end()) return nullptr;
  last_mkey_ = mkey;
  last_ = &found->second;
  return last_;
}

std::byte* MemoryTable::resolve(std::uint32_t mkey, std::uint32_t pd, std::uint64_t address,
                                std::uint64_t length_bytes, std::uint32_t access) const {
  const MemoryRegionSpec* region = find(mkey);
  if (region == nullptr || region->pd != pd || (region->access & access) != access) return nullptr;
  if (address < region->iova) return nullptr;
  const std::uint64_t offset = address - region->iova;
  if (offset > region->length_bytes || length_bytes > region->length_bytes - offset) return nullptr;
  if (!region->pieces.empty()) return resolve_indirect(*region, offset, length_bytes, access);
  if ((region->access & kOnDemand) == 0) return region->base + offset;
  auto* const place = reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(region->base) + offset);
  return page_in(place, length_bytes, (access & kChanges) != 0) ? place : nullptr;
}

// The key itself says what a peer may do; of the keys below it only the right to change the memory counts.
std::byte* MemoryTable::resolve_indirect(const MemoryRegionSpec& region, std::uint64_t offset_bytes,
                                         std::uint64_t length_bytes, std::uint32_t access) const {
  const bool changes = (access & kChanges) != 0;
  const std::uint64_t piece_bytes = std::uint64_t{1} << region.log_piece_bytes;
  std::byte* begin = nullptr;
  std::uint64_t done = 0;
  do {
    const std::uint64_t at = offset_bytes + done;
    if (at >> region.log_piece_bytes >= region.pieces.size()) return nullptr;
    const IndirectPiece& piece = region.pieces[at >> region.log_piece_bytes];
    const MemoryRegionSpec* below = find(piece.mkey);
    if (below == nullptr || !below->pieces.empty()) return nullptr;  // one level of indirection
    const std::uint64_t within = at & (piece_bytes - 1);
    const std::uint64_t n = std::min(length_bytes - done, piece_bytes - within);
    std::byte* const place =
        resolve(piece.mkey, region.pd, piece.address + within, n, changes ? kLocalWrite : 0u);
    if (place == nullptr || (begin != nullptr && place != begin + done)) return nullptr;
    if (begin == nullptr) begin = place;
    done += n;
  } while (done < length_bytes);
  return begin;
}

bool MemoryTable::uses_pd(std::uint32_t pd) const {
  return std::any_of(regions_.begin(), regions_.end(), [pd](const auto& it) { return it.second.pd == pd; });
}

}  // namespace gdx::softhca
