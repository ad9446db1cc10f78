// A PCIe link: generation, width and what its encoding, clock compensation and link-layer packets leave for
// transaction layer packets (TLPs).
#pragma once

#include <cstdint>

#include "base/result.h"

namespace gdx::pcie {

enum class Generation : std::uint8_t { kGen3 = 3, kGen4, kGen5, kGen6 };

// Direction that the ACK and flow-control packets (DLLPs) of a link delay. They travel against the data that
// they acknowledge. kCaused charges them to the reverse direction, in proportion to the received bytes, and
// not while that direction idles. kBothWays charges both directions, loaded or not. It reads the
// specification's limits as bytes of a link, although they are symbol times (a byte for each lane).
// pcie-bench counts so, and kBothWays reproduces it.
enum class DllpAccounting : std::uint8_t { kCaused, kBothWays };

struct LinkConfig {
  Generation generation = Generation::kGen5;
  std::uint32_t lanes = 16;       // 4, 8 or 16
  std::uint32_t mps_bytes = 256;  // maximum payload size: 128, 256, 512 or 1024
  DllpAccounting dllp = DllpAccounting::kCaused;
};

// Errors: kInvalidArgument naming the field.
[[nodiscard]] Result<void> check(const LinkConfig& link);

// The functions below take a checked configuration.

// In FLIT mode a link has no TLP framing, no ACK and no flow-control packets of its own: they are part of
// every 256 B flit.
[[nodiscard]] constexpr bool has_flits(Generation generation) { return generation >= Generation::kGen6; }

// Bytes a second after line encoding: 128b/130b, or the 236 bytes of each 256 B flit that carry TLPs.
// Source: PCIe Base Specification 5.0, 4.2.2; 6.0, 4.2.3.4 (236 TLP + 6 DLP + 8 CRC + 6 FEC).
[[nodiscard]] double raw_bytes_per_s(const LinkConfig& link);

// The share that SKP ordered sets take: 4 in 1538 symbols; none in FLIT mode (not published here, small).
[[nodiscard]] double skip_share(const LinkConfig& link);

// DLLP bytes for every byte of a loaded `link`, by its accounting: 8 B of ACK each ACK latency limit and 8 B
// of credit update each update limit. Source: PCIe Base Specification, the limits of ACK transmission and the
// guidelines of UpdateFC transmission at 8 GT/s, in symbol times: (MPS + 28) * AckFactor / lanes + 115.
// [guessed] the same at faster rates.
[[nodiscard]] double dllp_share(const LinkConfig& link);

// Returns the rate of a direction for TLPs: while nothing travels the other way (kCaused), or always
// (kBothWays).
[[nodiscard]] double tlp_bytes_per_s(const LinkConfig& link);

}  // namespace gdx::pcie
