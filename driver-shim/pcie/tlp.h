// Transaction layer packets: how large they are on a link, and how a transfer is cut into them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "driver-shim/pcie/link.h"

namespace gdx::pcie {

// The values index the three flow-control classes: posted, non-posted, completion.
enum class TlpKind : std::uint8_t { kWrite, kReadRequest, kCompletion };
inline constexpr std::size_t kTlpKinds = 3;

// Returns the bytes that a packet adds to its payload. Before FLIT mode: 4 B of framing and sequence number,
// 4 B of LCRC and a header. The header has 16 B (memory requests, 64-bit addresses) or 12 B (completions).
// Source: PCIe Base Specification 5.0, 2.2.4.1, 2.2.9 and 4.2.2.3; pcie-bench also counts 24 and 20. FLIT
// mode has neither framing nor LCRC. 16 B for both kinds is guessed: the completion's 12 B and one 4 B header
// extension (OHC), no extension for requests.
constexpr std::uint32_t overhead_bytes(Generation generation, TlpKind kind) {
  if (has_flits(generation)) return 16;
  return kind == TlpKind::kCompletion ? 20 : 24;
}

// The payload travels in whole double words; which bytes of the first and the last count is in the header.
// Source: PCIe Base Specification 5.0, 2.2.2 and 2.2.5.
constexpr std::uint32_t wire_bytes(Generation generation, TlpKind kind, std::uint32_t payload_bytes) {
  constexpr std::uint32_t kDoubleWordBytes = 4;
  const std::uint32_t double_words = (payload_bytes + kDoubleWordBytes - 1) / kDoubleWordBytes;
  return overhead_bytes(generation, kind) + double_words * kDoubleWordBytes;
}

// Bytes from `address` that fit in one packet which may not cross a multiple of `boundary`, a power of two.
// Writes are cut at MPS, read requests at MRRS, completions at what the completer sends at a time: a
// multiple of the read completion boundary (RCB), at most MPS.
constexpr std::uint32_t first_piece(std::uint64_t address, std::uint64_t length_bytes,
                                    std::uint32_t boundary) {
  const std::uint64_t room = boundary - (address & (boundary - 1));
  return static_cast<std::uint32_t>(std::min(room, length_bytes));
}

template <typename Visit>
constexpr void for_each_piece(std::uint64_t address, std::uint64_t length_bytes, std::uint32_t boundary,
                              Visit visit) {
  while (length_bytes > 0) {
    const std::uint32_t piece = first_piece(address, length_bytes, boundary);
    visit(address, piece);
    address += piece;
    length_bytes -= piece;
  }
}

}  // namespace gdx::pcie
