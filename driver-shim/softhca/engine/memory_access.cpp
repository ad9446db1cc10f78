#include "driver-shim/softhca/engine/memory_access.h"

#include <algorithm>
#include <atomic>

#include "driver-shim/softhca/engine/dma.h"
#include "driver-shim/softhca/engine/paging.h"
#include "driver-shim/softhca/engine/planted_fault.h"
#include "driver-shim/softhca/wire/streaming.h"
#include "proto/mapping_order.h"

namespace gdx::softhca {
namespace {

using mlx5::Syndrome;

// Calls visit(piece, offset in the piece, offset in the range, bytes) along [offset, offset + length). False:
// the list ends before the range does, or visit returned false.
template <typename Visit>
bool walk(const std::vector<DataPiece>& pieces, std::uint64_t offset_bytes, std::size_t length_bytes,
          Visit visit) {
  std::size_t done = 0;
  for (const DataPiece& piece : pieces) {
    if (done == length_bytes) break;
    if (offset_bytes >= piece.length_bytes) {
      offset_bytes -= piece.length_bytes;
      continue;
    }
    const std::size_t n = std::min<std::size_t>(piece.length_bytes - offset_bytes, length_bytes - done);
    if (!visit(piece, offset_bytes, done, n)) return false;
    done += n;
    offset_bytes = 0;
  }
  return done == length_bytes;
}

}  // namespace

bool MemoryAccess::can_scatter(const std::vector<DataPiece>& pieces) const {
  return std::all_of(pieces.begin(), pieces.end(), [this](const DataPiece& piece) {
    return permits(piece.lkey, piece.address, piece.length_bytes, kLocalWrite);
  });
}

// Copies payload for the wire; see Wire::streams().
bool MemoryAccess::load_from(std::byte* to, const std::byte* from, std::size_t length_bytes) const {
  if (!memory_.foreign.empty()) [[unlikely]]
    return memory_.foreign.load(to, from, length_bytes);
  if (length_bytes < wire::kStreamedBytes || !memory_.wire.streams()) return dma_load(to, from, length_bytes);
  return guarded_copy(wire::stream_copy, to, from, length_bytes, from);
}

bool MemoryAccess::load_from(std::byte* to, const Extent& from) const {
  if (from.paged) [[unlikely]]
    return paged_load(to, from.at, from.length_bytes);
  return load_from(to, from.at, from.length_bytes);
}

bool MemoryAccess::store_to(const Extent& to, const std::byte* from) const {
  if (to.paged) [[unlikely]] {
    memory_.foreign.synchronize();
    return paged_store(to.at, from, to.length_bytes);
  }
  if (!memory_.foreign.empty()) [[unlikely]]
    return memory_.foreign.store(to.at, from, to.length_bytes);
  acquire_from_mappings(Toward::kPeers);
  const bool there = dma_store(to.at, from, to.length_bytes);
  release_to_mappings(Toward::kHost);
  return there;
}

bool MemoryAccess::load(std::byte* to, std::uint32_t mkey, std::uint64_t address, std::uint64_t length_bytes,
                        std::uint32_t access) const {
  const auto take = [this, to](const Extent& from, std::uint64_t at) {
    if (crosses_pcie(from.at)) ++memory_.pcie.payload_reads;
    if (!load_from(to + at, from)) return false;
    if (planted_fault == PlantedFault::kDeviceMemoryTail && !crosses_pcie(from.at) &&
        from.length_bytes % sizeof(std::uint32_t) != 0)
      to[at + from.length_bytes - 1] ^= std::byte{0xff};
    return true;
  };
  return memory_.keys.visit_extents(mkey, user_, address, length_bytes, access, take);
}

bool MemoryAccess::store(std::uint32_t mkey, std::uint64_t address, std::span<const std::byte> payload,
                         std::uint32_t access) const {
  const auto put = [this, payload](const Extent& to, std::uint64_t at) {
    if (crosses_pcie(to.at)) ++memory_.pcie.payload_writes;
    return store_to(to, payload.data() + at);
  };
  return memory_.keys.visit_extents(mkey, user_, address, payload.size(), access, put);
}

Syndrome MemoryAccess::gather(const SendBody& body, std::uint32_t offset_bytes,
                              std::span<std::byte> out) const {
  const bool whole =
      walk(body.pieces, offset_bytes, out.size(),
           [&](const DataPiece& piece, std::uint64_t piece_offset, std::size_t at, std::size_t n) {
             const std::uint64_t address = piece.address + piece_offset;
             if (!piece.is_inline) return load(out.data() + at, piece.lkey, address, n, 0);
             return load_from(out.data() + at, body.inline_bytes.data() + address, n);
           });
  return whole ? Syndrome::kNone : Syndrome::kLocalProtection;
}

Syndrome MemoryAccess::scatter(const std::vector<DataPiece>& pieces, std::uint64_t offset_bytes,
                               std::span<const std::byte> payload) const {
  bool allowed = true;
  const bool whole =
      walk(pieces, offset_bytes, payload.size(),
           [&](const DataPiece& piece, std::uint64_t piece_offset, std::size_t at, std::size_t n) {
             allowed = store(piece.lkey, piece.address + piece_offset, payload.subspan(at, n), kLocalWrite);
             return allowed;
           });
  if (!allowed) return Syndrome::kLocalProtection;
  return whole ? Syndrome::kNone : Syndrome::kLocalLength;
}

MemoryTable::Extent MemoryAccess::atomic_target(std::uint32_t rkey, std::uint64_t address) const {
  const Extent target = memory_.keys.whole_extent(rkey, user_, address, sizeof(std::uint64_t), kRemoteAtomic);
  return is_aligned(target.at, sizeof(std::uint64_t)) ? target : Extent{};
}

std::optional<std::uint64_t> MemoryAccess::execute(std::uint32_t rkey, std::uint64_t address,
                                                   const transport::AtomicOperation& operation) const {
  const Extent target = atomic_target(rkey, address);
  if (target.at == nullptr) return std::nullopt;
  if (crosses_pcie(target.at)) {
    ++memory_.pcie.payload_reads;
    ++memory_.pcie.payload_writes;
  }
  if (target.paged) [[unlikely]]
    return execute_by_copies(target, operation);
  if (!memory_.foreign.empty()) [[unlikely]] {
    if (memory_.foreign.find(target.at) != nullptr) {
      if (planted_fault == PlantedFault::kNoGpuAtomics) return std::nullopt;
      return execute_by_copies(target, operation);
    }
    memory_.foreign.synchronize();
  }
  acquire_from_mappings(Toward::kPeers);
  std::uint64_t original = 0;
  const bool there = guarded(target.at, sizeof original, [this, at = target.at, &original, &operation] {
    const std::atomic_ref word(*reinterpret_cast<std::uint64_t*>(at));
    original = word.load();
    if (planted_fault == PlantedFault::kLostAdd) return;
    // Reads and writes in two steps with a pause, as a NIC across PCIe does. A processor's atomic change
    // between them is lost.
    if (memory_.two_step_atomics) {
      for (int i = 0; i < 64; ++i) std::atomic_signal_fence(std::memory_order_seq_cst);
      word.store(operation.result(original));
      return;
    }
    while (!word.compare_exchange_weak(original, operation.result(original))) {
    }
  });
  if (!there) return std::nullopt;
  release_to_mappings(Toward::kHost);
  return planted_fault == PlantedFault::kReturnedSum ? operation.result(original) : original;
}

// Atomic towards this HCA's other operations, as the device reports (IBV_ATOMIC_HCA), not towards kernels and
// threads.
std::optional<std::uint64_t> MemoryAccess::execute_by_copies(
    const Extent& target, const transport::AtomicOperation& operation) const {
  std::uint64_t original = 0;
  if (!load_from(reinterpret_cast<std::byte*>(&original), target)) return std::nullopt;
  const std::uint64_t result = operation.result(original);
  if (!store_to(target, reinterpret_cast<const std::byte*>(&result))) return std::nullopt;
  return original;
}

}  // namespace gdx::softhca
