// Memory as one queue pair accesses it: ranges by key, lists of pieces, and atomics. Counts the PCIe
// transactions of payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "driver-shim/softhca/engine/foreign_memory.h"
#include "driver-shim/softhca/engine/hca.h"
#include "driver-shim/softhca/engine/memory_table.h"
#include "driver-shim/softhca/engine/wqe_parser.h"

namespace gdx::softhca {

class MemoryAccess {
 public:
  // Memory of an HCA. All of it must outlive the accesses.
  struct Memory {
    MemoryTable& keys;
    ForeignMemory& foreign;
    PcieCounters& pcie;
    const wire::Wire& wire;       // the target of gathered bytes
    std::span<std::byte> device;  // the HCA's own, across no PCIe link
    bool two_step_atomics;        // an atomic loads, pauses and stores, as a NIC across PCIe does
  };

  MemoryAccess(const KeyUser& user, const Memory& memory) : user_(user), memory_(memory) {}

  [[nodiscard]] const KeyUser& user() const { return user_; }
  // Returns whether the key gives `access` to the range. Checks only the first extent, because a key in
  // pieces or paged on demand may have millions.
  [[nodiscard]] bool permits(std::uint32_t mkey, std::uint64_t address, std::uint64_t length_bytes,
                             std::uint32_t access) const {
    return memory_.keys.first_extent(mkey, user_, address, length_bytes, access).at != nullptr;
  }
  // Returns whether PCIe may let writes under the key pass those before them.
  [[nodiscard]] bool is_relaxed(std::uint32_t mkey) const {
    const MemoryRegionSpec* const region = memory_.keys.find(mkey);
    return region != nullptr && (region->access & kRelaxedOrdering) != 0;
  }
  [[nodiscard]] bool can_scatter(const std::vector<DataPiece>& pieces) const;
  // Returns the place of a piece in device memory; nullopt if it lies elsewhere.
  [[nodiscard]] std::optional<std::size_t> device_offset(const DataPiece& piece) const {
    const MemoryRegionSpec* const region = piece.is_inline ? nullptr : memory_.keys.find(piece.lkey);
    if (region == nullptr || !region->device_memory) return std::nullopt;
    const std::byte* const at = memory_.keys.resolve(piece.lkey, user_, piece.address, piece.length_bytes, 0);
    if (at == nullptr) return std::nullopt;
    return static_cast<std::size_t>(at - memory_.device.data());
  }

  // Load or store a range. False: the key forbids it, memory has gone, or a page on demand is absent.
  [[nodiscard]] bool load(std::byte* to, std::uint32_t mkey, std::uint64_t address,
                          std::uint64_t length_bytes, std::uint32_t access) const;
  [[nodiscard]] bool store(std::uint32_t mkey, std::uint64_t address, std::span<const std::byte> payload,
                           std::uint32_t access) const;
  // Gather or scatter along a list of pieces, from `offset_bytes` of it on.
  [[nodiscard]] mlx5::Syndrome gather(const SendBody& body, std::uint32_t offset_bytes,
                                      std::span<std::byte> out) const;
  [[nodiscard]] mlx5::Syndrome scatter(const std::vector<DataPiece>& pieces, std::uint64_t offset_bytes,
                                       std::span<const std::byte> payload) const;

  [[nodiscard]] bool may_execute(std::uint32_t rkey, std::uint64_t address) const {
    return atomic_target(rkey, address).at != nullptr;
  }
  // Executes an atomic on 8 B. Returns the value before; nullopt as for load().
  std::optional<std::uint64_t> execute(std::uint32_t rkey, std::uint64_t address,
                                       const transport::AtomicOperation& operation) const;

 private:
  using Extent = MemoryTable::Extent;

  [[nodiscard]] bool crosses_pcie(const std::byte* at) const {
    const std::less<> before;
    return before(at, memory_.device.data()) || !before(at, memory_.device.data() + memory_.device.size());
  }
  [[nodiscard]] bool load_from(std::byte* to, const std::byte* from, std::size_t length_bytes) const;
  [[nodiscard]] bool load_from(std::byte* to, const Extent& from) const;
  [[nodiscard]] bool store_to(const Extent& to, const std::byte* from) const;
  [[nodiscard]] Extent atomic_target(std::uint32_t rkey, std::uint64_t address) const;
  std::optional<std::uint64_t> execute_by_copies(const Extent& target,
                                                 const transport::AtomicOperation& operation) const;

  KeyUser user_;
  Memory memory_;
};

}  // namespace gdx::softhca
