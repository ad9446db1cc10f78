// Packet sequence numbers: 24 bits that wrap on the wire, 64 bits that do not inside.
#pragma once

#include <cstdint>

#include "proto/mlx5/wqe.h"
#include "proto/roce/headers.h"

namespace gdx::softhca::transport {

using ExtendedPsn = std::uint64_t;

// Half of the number space. A peer's PSN is read as the nearest number within this distance, so fewer PSNs
// may be outstanding. Source: IBA 1.4, section 9.7.1.
inline constexpr std::uint64_t kPsnHalfSpace = (roce::kPsnMask + 1ull) / 2;

constexpr std::uint32_t wire_psn(ExtendedPsn psn) { return static_cast<std::uint32_t>(psn) & roce::kPsnMask; }

// Starts one whole number space up, so that numbers before the first one exist as well.
constexpr ExtendedPsn first_psn(std::uint32_t wire) {
  return (roce::kPsnMask + 1ull) + (wire & roce::kPsnMask);
}

// Returns the number nearest to `reference` whose wire form is `wire`.
constexpr ExtendedPsn extend_psn(std::uint32_t wire, ExtendedPsn reference) {
  const std::uint64_t ahead = (wire - reference) & roce::kPsnMask;
  return ahead < kPsnHalfSpace ? reference + ahead : reference + ahead - (roce::kPsnMask + 1ull);
}

// Returns the PSNs of a message: one per packet, one for an empty message.
constexpr std::uint32_t packets_of(std::uint32_t length_bytes, std::uint32_t mtu_bytes) {
  return length_bytes == 0 ? 1 : (length_bytes - 1) / mtu_bytes + 1;
}

inline constexpr std::uint32_t kSmallestMtuBytes = 256;
static_assert(packets_of(mlx5::kMaxMessageBytes, kSmallestMtuBytes) < kPsnHalfSpace,
              "a message is unambiguous");

}  // namespace gdx::softhca::transport
