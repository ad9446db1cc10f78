#include "driver-shim/softhca/engine/staging_audit.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <cassert>

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

std::uint32_t StagingAudit::checksum(std::size_t offset_bytes, std::size_t length_bytes) const {
  return crc32_gzip_refl(0, reinterpret_cast<const unsigned char*>(memory_.data() + offset_bytes),
                         length_bytes);
}

}  // namespace gdx::softhca
