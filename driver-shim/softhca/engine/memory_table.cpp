#include "driver-shim/softhca/engine/memory_table.h"

#include <algorithm>

#include "proto/mlx5/wqe.h"

namespace gdx::softhca {

std::uint32_t MemoryTable::add(const MemoryRegionSpec& spec, std::mt19937_64& random) {
  for (;;) {
    const auto mkey = static_cast<std::uint32_t>(random());
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
  return region->base + offset;
}

bool MemoryTable::uses_pd(std::uint32_t pd) const {
  return std::any_of(regions_.begin(), regions_.end(), [pd](const auto& it) { return it.second.pd == pd; });
}

}  // namespace gdx::softhca
