// Changes of keys by UMR WQEs and peers: memory windows, and keys that programs lay out.
#include <bit>
#include <utility>

#include "driver-shim/softhca/engine/memory_table.h"
#include "proto/mlx5/umr.h"

namespace gdx::softhca {
namespace {

std::uint32_t rights_named_by(std::uint64_t mask) {
  return ((mask & mlx5::kMkeyMaskLocalWrite) ? kLocalWrite : 0u) |
         ((mask & mlx5::kMkeyMaskRemoteRead) ? kRemoteRead : 0u) |
         ((mask & mlx5::kMkeyMaskRemoteWrite) ? kRemoteWrite : 0u) |
         ((mask & mlx5::kMkeyMaskAtomic) ? kRemoteAtomic : 0u);
}

void release(UmrKey& key) {
  key.free = true;
  key.qpn = mlx5::kMkeyAnyQpn;
}

// Returns null if the key's state meets the request's conditions, else the reason. A window of type 1 belongs
// to no queue pair, so none may invalidate it. Another key may belong to all.
const char* refuse_state(const UmrKey& key, const UmrRequest& request, const KeyUser& user) {
  if (request.check_free && !key.free) return "the key is bound";
  if (!request.check_qpn) return nullptr;
  const bool anybody = !key.window && key.qpn == mlx5::kMkeyAnyQpn;
  if (!anybody && key.qpn != user.qpn) return "the key is not bound to this queue pair";
  return key.free ? "the key is free already" : nullptr;
}

// Takes entries up to the key's length, because clients pad their lists.
const char* lay_out_list(std::span<const mlx5::DataSegment> entries, MemoryRegionSpec& spec) {
  std::uint64_t covered_bytes = 0;
  for (const mlx5::DataSegment& entry : entries) {
    if (covered_bytes >= spec.length_bytes) break;
    spec.pieces.push_back({.mkey = entry.lkey, .address = entry.address, .start_bytes = covered_bytes});
    const std::uint32_t byte_count = entry.byte_count;
    covered_bytes += byte_count == 0 ? mlx5::kZeroByteCount : byte_count;
  }
  return covered_bytes < spec.length_bytes ? "its translation entries do not cover its range" : nullptr;
}

const char* lay_out_pattern(std::span<const mlx5::DataSegment> entries, MemoryRegionSpec& spec) {
  const auto block = std::bit_cast<mlx5::RepeatBlockSegment>(entries.front());
  if (block.entries >= entries.size()) return "its pattern has more entries than came with it";
  std::uint64_t bytes = 0;
  for (const mlx5::DataSegment& segment : entries.subspan(1, block.entries)) {
    const auto entry = std::bit_cast<mlx5::RepeatEntrySegment>(segment);
    spec.pieces.push_back(
        {.mkey = entry.mkey, .address = entry.address, .start_bytes = bytes, .stride_bytes = entry.stride});
    bytes += entry.byte_count;
  }
  if (bytes == 0 || bytes != block.byte_count) return "its pattern is not as long as it says";
  spec.block_bytes = bytes;
  return bytes * block.repeat_count < spec.length_bytes ? "its pattern does not cover its range" : nullptr;
}

const char* lay_out(std::span<const mlx5::DataSegment> entries, MemoryRegionSpec& spec) {
  if (entries.size() > spec.umr->max_entries) return "more translation entries than the key has room for";
  spec.pieces.clear();
  spec.block_bytes = 0;
  const bool pattern = entries.front().lkey == mlx5::kRepeatBlockOperation;
  return pattern ? lay_out_pattern(entries, spec) : lay_out_list(entries, spec);
}

}  // namespace

const char* MemoryTable::update(std::uint32_t mkey, const KeyUser& user, const UmrRequest& request,
                                std::span<const mlx5::DataSegment> entries) {
  const auto found = regions_.find(mkey >> mlx5::kMkeyTagBits);
  if (found == regions_.end() || !found->second.spec.umr) return "the key is none that UMR may change";
  MemoryRegionSpec changed = found->second.spec;
  UmrKey& key = *changed.umr;
  if (changed.pd != user.pd) return "the key is of another protection domain";
  if (const char* const reason = refuse_state(key, request, user)) return reason;

  if (request.mask & mlx5::kMkeyMaskFree) key.free = request.free;
  if (request.mask & mlx5::kMkeyMaskQpn) key.qpn = request.qpn;
  if (request.mask & mlx5::kMkeyMaskStartAddress) changed.iova = request.start_address;
  const std::uint64_t laid_out_bytes = changed.length_bytes;
  if (request.mask & mlx5::kMkeyMaskLength) changed.length_bytes = request.length_bytes;
  const std::uint32_t named = rights_named_by(request.mask);
  changed.access = (changed.access & ~named) | (request.access & named);
  if (!key.free && !entries.empty()) {
    if (const char* const reason = lay_out(entries, changed)) return reason;
  } else if (changed.length_bytes > laid_out_bytes) {
    return "its range grows beyond its translation";
  }
  if (key.free) {
    release(key);
  } else if (const char* const reason = refuse_binding(changed, user)) {
    return reason;
  }
  Region& region = found->second;
  region.spec = std::move(changed);
  if (request.mask & mlx5::kMkeyMaskTag) region.mkey = (region.mkey & ~0xffu) | request.tag;
  last_ = nullptr;
  return nullptr;
}

// Checks the keys below only for a window; other keys are checked when used.
const char* MemoryTable::refuse_binding(const MemoryRegionSpec& key, const KeyUser& user) const {
  if (key.pieces.empty() || key.length_bytes == 0) return "the key is bound to nothing";
  if (key.iova + key.length_bytes < key.iova) return "its range wraps";
  if (!key.umr->window) return nullptr;
  if (key.block_bytes != 0) return "a window has no pattern";
  const bool changes = (key.access & (kRemoteWrite | kRemoteAtomic)) != 0;
  for (std::size_t i = 0; i < key.pieces.size(); ++i) {
    const IndirectPiece& piece = key.pieces[i];
    const std::uint64_t end_bytes =
        i + 1 < key.pieces.size() ? key.pieces[i + 1].start_bytes : key.length_bytes;
    const MemoryRegionSpec* const region = find(piece.mkey);
    if (region == nullptr || region->pd != user.pd) return "no such region in its protection domain";
    if (region->umr || !region->pieces.empty()) return "what it is bound to is no region of memory";
    if ((region->access & kWindowBind) == 0)
      return "the region was registered without the right to bind windows";
    if (changes && (region->access & kLocalWrite) == 0)
      return "the window would change what the region may not";
    if (find_usable(piece.mkey, user, piece.address, end_bytes - piece.start_bytes, 0) == nullptr) {
      return "the window goes beyond the region";
    }
  }
  return nullptr;
}

bool MemoryTable::invalidate(std::uint32_t rkey, const KeyUser& user) {
  const auto found = regions_.find(rkey >> mlx5::kMkeyTagBits);
  if (found == regions_.end() || found->second.mkey != rkey) return false;
  MemoryRegionSpec& spec = found->second.spec;
  if (!spec.umr || !spec.umr->peer_may_invalidate || spec.umr->free || spec.pd != user.pd) return false;
  if (spec.umr->qpn != mlx5::kMkeyAnyQpn && spec.umr->qpn != user.qpn) return false;
  release(*spec.umr);
  return true;
}

}  // namespace gdx::softhca
