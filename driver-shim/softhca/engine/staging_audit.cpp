#include "driver-shim/softhca/engine/staging_audit.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>

namespace gdx::softhca {

std::span<std::uint32_t> StagingAudit::granules(std::size_t offset_bytes, std::size_t length_bytes) {
  if (length_bytes == 0) return {};
  const std::size_t first = offset_bytes / kGranuleBytes;
  const std::size_t last = (offset_bytes + length_bytes - 1) / kGranuleBytes;
  return std::span(holds_).subspan(first, last - first + 1);
}

bool StagingAudit::held(std::size_t offset_bytes, std::size_t length_bytes) const {
  const auto range = const_cast<StagingAudit*>(this)->granules(offset_bytes, length_bytes);
  return std::any_of(range.begin(), range.end(), [](std::uint32_t holders) { return holders > 0; });
}

StagingHold StagingAudit::acquire(std::size_t offset_bytes, std::size_t length_bytes) {
  assert(offset_bytes + length_bytes <= memory_.size());
  for (std::uint32_t& holders : granules(offset_bytes, length_bytes)) ++holders;
  return {offset_bytes, length_bytes, checksum(offset_bytes, length_bytes)};
}

bool StagingAudit::release(const StagingHold& hold) {
  for (std::uint32_t& holders : granules(hold.offset_bytes, hold.length_bytes)) {
    assert(holders > 0);
    --holders;
  }
  return checksum(hold.offset_bytes, hold.length_bytes) == hold.checksum;
}

// Four polynomials in 3, an odd number: each word that changes alone changes its sum. A CRC of each slot took
// a tenth of a push.
std::uint64_t StagingAudit::checksum(std::size_t offset_bytes, std::size_t length_bytes) const {
  std::array<std::uint64_t, 4> sums{};
  const std::byte* at = memory_.data() + offset_bytes;
  const auto add = [&](std::size_t bytes) {
    std::array<std::uint64_t, 4> words{};
    std::memcpy(words.data(), at, bytes);
    for (std::size_t i = 0; i < words.size(); ++i) sums[i] = sums[i] * 3 + words[i];
    at += bytes;
  };
  for (; length_bytes >= sizeof sums; length_bytes -= sizeof sums) add(sizeof sums);
  if (length_bytes != 0) add(length_bytes);
  return ((sums[0] * 3 + sums[1]) * 3 + sums[2]) * 3 + sums[3];
}

}  // namespace gdx::softhca
