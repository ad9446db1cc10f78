// Audit of device memory that queued WQEs gather from. Staging credits protect a slot until the WQE that
// holds it completes: nothing stores to it or sends it again. The audit counts violations. Pure apart from
// reading the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gdx::softhca {

// Range that one WQE gathers from device memory, with its checksum when the HCA fetched the WQE.
struct StagingHold {
  std::size_t offset_bytes = 0;
  std::size_t length_bytes = 0;
  std::uint64_t checksum = 0;
};

class StagingAudit {
 public:
  static constexpr std::size_t kGranuleBytes = 64;

  explicit StagingAudit(std::span<const std::byte> memory)
      : memory_(memory), holds_((memory.size() + kGranuleBytes - 1) / kGranuleBytes) {}

  // Returns whether a WQE holds any granule of [offset, offset + length).
  [[nodiscard]] bool held(std::size_t offset_bytes, std::size_t length_bytes) const;
  // Holds the range, which must lie inside the memory. Call held() first, because a WQE may hold a granule
  // twice.
  StagingHold acquire(std::size_t offset_bytes, std::size_t length_bytes);
  // Ends the hold. False: the bytes have changed in the meantime.
  [[nodiscard]] bool release(const StagingHold& hold);

 private:
  [[nodiscard]] std::uint64_t checksum(std::size_t offset_bytes, std::size_t length_bytes) const;
  std::span<std::uint32_t> granules(std::size_t offset_bytes, std::size_t length_bytes);

  std::span<const std::byte> memory_;
  std::vector<std::uint32_t> holds_;  // by granule
};

}  // namespace gdx::softhca
