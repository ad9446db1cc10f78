// WRITEs that PCIe has not delivered yet, because it lets later ones pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "driver-shim/softhca/engine/memory_access.h"

namespace gdx::softhca {

// Those of all queue pairs of an HCA, since a write that is not relaxed waits for all of them.
class LateWrites {
 public:
  // Keeps a WRITE that the key permits. The queue pair of `memory` calls land_all() before it ends.
  void keep(const MemoryAccess& memory, std::uint32_t rkey, std::uint64_t address,
            std::span<const std::byte> payload) {
    new_.push_back({&memory, rkey, address, {payload.begin(), payload.end()}});
  }
  [[nodiscard]] bool empty() const { return due_.empty() && new_.empty(); }
  // Ends a step: delivers those of the step before.
  void end_step() {
    if (!empty()) [[unlikely]]
      land(std::exchange(due_, std::exchange(new_, {})));
  }
  void land_all() {
    end_step();
    end_step();
  }

 private:
  struct Write {
    const MemoryAccess* memory;
    std::uint32_t rkey;
    std::uint64_t address;
    std::vector<std::byte> payload;
  };
  // Lands the writes, except those whose key UMR has taken back meanwhile.
  static void land(const std::vector<Write>& writes) {
    for (const Write& write : writes)
      static_cast<void>(write.memory->store(write.rkey, write.address, write.payload, kRemoteWrite));
  }

  std::vector<Write> due_;
  std::vector<Write> new_;
};

}  // namespace gdx::softhca
