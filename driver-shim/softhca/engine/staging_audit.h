// Watches device memory that queued WQEs gather from. Staging credits promise that nobody stores to a
// slot, and nobody sends it again, before the WQE that holds it has completed; this counts who does.
// Pure apart from reading the memory it watches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gdx::softhca {

// What one WQE gathers from device memory, with its checksum when the HCA fetched the WQE.
struct StagingHold {
  std::size_t offset_bytes = 0;
  std::size_t length_bytes = 0;
  std::uint32_t checksum = 0;
};

class StagingAudit {
 public:
  static constexpr std::size_t kGranuleBytes = 64;

  explicit StagingAudit(std::span<const std::byte> memory)
      : memory_(memory), holds_((memory.size() + kGranuleBytes - 1) / kGranuleBytes) {}

  // Is a byte's granule in [offset, offset + length) held by a WQE?
  [[nodiscard]] bool held(std::size_t offset_bytes, std::size_t length_bytes) const;
  // Holds the range, which must lie inside the memory. Ask held() first: a WQE may hold a granule twice.
  StagingHold acquire(std::size_t offset_bytes, std::size_t length_bytes);
  // Ends the hold. False: the bytes have changed in the meantime.
  [[nodiscard]] bool release(const StagingHold& hold);

 private:
  [[nodiscard]] std::uint32_t checksum(std::size_t offset_bytes, std::size_t length_bytes) const;
  std::span<std::uint32_t> granules(std::size_t offset_bytes, std::size_t length_bytes);

  std::span<const std::byte> memory_;
  std::vector<std::uint32_t> holds_;  // by granule
};

}  // namespace gdx::softhca
