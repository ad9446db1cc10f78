// Packet sequence numbers. On the wire they are 24 bits and wrap; inside they are 64 bits and do not.
#pragma once

#include <cstdint>

#include "proto/mlx5/wqe.h"
#include "proto/roce/headers.h"

namespace gdx::softhca::transport {

using ExtendedPsn = std::uint64_t;

// Half of the number space: a peer's PSN is taken for the nearest number within this distance, so fewer
// PSNs than this may be outstanding. Source: IBA 1.4, section 9.7.1.
inline constexpr std::uint64_t kPsnHalfSpace = (roce::kPsnMask + 1ull) / 2;

constexpr std::uint32_t wire_psn(ExtendedPsn psn) { return static_cast<std::uint32_t>(psn) & roce::kPsnMask; }

// One whole number space up, so that numbers before the first one exist as well.
constexpr ExtendedPsn first_psn(std::uint32_t wire) {
  return (roce::kPsnMask + 1ull) + (wire & roce::kPsnMask);
}

// The number nearest to `reference` that reads `wire` on the wire.
constexpr ExtendedPsn extend_psn(std::uint32_t wire, ExtendedPsn reference) {
  const std::uint64_t ahead = (wire - reference) & roce::kPsnMask;
  return ahead < kPsnHalfSpace ? reference + ahead : reference + ahead - (roce::kPsnMask + 1ull);
}

// PSNs that a message takes: one per packet, one for an empty message.
constexpr std::uint32_t packets_of(std::uint32_t length_bytes, std::uint32_t mtu_bytes) {
  return length_bytes == 0 ? 1 : (length_bytes - 1) / mtu_bytes + 1;
}

inline constexpr std::uint32_t kSmallestMtuBytes = 256;
static_assert(packets_of(mlx5::kMaxMessageBytes, kSmallestMtuBytes) < kPsnHalfSpace,
              "a message is unambiguous");

}  // namespace gdx::softhca::transport
