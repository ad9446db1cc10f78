// Codec of RoCE v2 transport headers. A datagram here is the bytes between the UDP header and the ICRC: BTH,
// extension headers, payload, padding.
// Source: InfiniBand Architecture Specification 1.4, sections 9.2 to 9.3 and 9.4.1; annex A17.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "proto/byte_order.h"
#include "proto/roce/headers.h"

namespace gdx::roce {

namespace detail {

template <typename T>
inline void put(std::byte*& at, T value) {
  const BigEndian<T> wire(value);
  std::memcpy(at, &wire, sizeof wire);
  at += sizeof wire;
}

template <typename T>
inline T take(const std::byte*& at) {
  BigEndian<T> wire;
  std::memcpy(&wire, at, sizeof wire);
  at += sizeof wire;
  return wire;
}

}  // namespace detail

// Zero bytes that bring a payload to a multiple of four.
constexpr std::uint8_t pad_count_for(std::size_t payload_bytes) {
  return static_cast<std::uint8_t>((4 - payload_bytes % 4) % 4);
}

inline constexpr std::uint32_t kBecn = 0x40000000u;  // in the BTH's second word
// In the same word: the packet has no GRH. IBA reserves the bit. InfiniBand tells it in the LRH (LNH), which
// RoCE v2 lacks.
inline constexpr std::uint32_t kNoGrh = 0x01000000u;

// Writes the BTH and the extension headers of bth.opcode. Fields wider than their place on the wire lose
// their upper bits. Returns the bytes written.
// Errors: 0, nothing written, for an unknown opcode or a span that is too short.
[[nodiscard]] inline std::size_t encode(const Headers& headers, std::span<std::byte> out) {
  const Bth& bth = headers.bth;
  const std::size_t length_bytes = header_bytes(bth.opcode);
  if (length_bytes == 0 || out.size() < length_bytes) return 0;
  const std::uint16_t extensions = extensions_of(bth.opcode);
  std::byte* at = out.data();
  detail::put(at, static_cast<std::uint32_t>(bth.opcode) << 24 | (bth.solicited ? 0x800000u : 0u) |
                      (bth.migration ? 0x400000u : 0u) | (bth.pad_count & 3u) << 20 | bth.pkey);
  detail::put(at, (bth.backward_congestion ? kBecn : 0u) | (bth.has_grh ? 0u : kNoGrh) |
                      (bth.destination_qpn & kQpnMask));
  detail::put(at, (bth.ack_request ? 0x80000000u : 0u) | (bth.psn & kPsnMask));
  if (extensions & kHasDeth) {
    detail::put(at, headers.deth.qkey);
    detail::put(at, headers.deth.source_qpn & kQpnMask);
  }
  if (extensions & kHasReth) {
    detail::put(at, headers.reth.address);
    detail::put(at, headers.reth.rkey);
    detail::put(at, headers.reth.length_bytes);
  }
  if (extensions & kHasAtomicEth) {
    detail::put(at, headers.atomic.address);
    detail::put(at, headers.atomic.rkey);
    detail::put(at, headers.atomic.swap_or_add);
    detail::put(at, headers.atomic.compare);
  }
  if (extensions & kHasAtomicMaskEth) {
    detail::put(at, headers.atomic_mask.swap_mask_or_boundaries);
    detail::put(at, headers.atomic_mask.compare_mask);
  }
  if (extensions & kHasAeth) {
    detail::put(at, static_cast<std::uint32_t>(headers.aeth.syndrome) << 24 | (headers.aeth.msn & kPsnMask));
  }
  if (extensions & kHasAtomicAckEth) detail::put(at, headers.atomic_original);
  if (extensions & kHasImmediateOrIeth) detail::put(at, headers.immediate);
  return length_bytes;
}

// Sets the fields of an encoded packet that belong to its path, which the transport does not know.
inline void set_path(std::span<std::byte> packet, std::uint16_t pkey, bool has_grh) {
  constexpr std::size_t kPkeyByte = 2;
  constexpr std::size_t kReservedByte = 4;
  constexpr std::byte kNoGrhByte{kNoGrh >> 24};
  std::byte* at = packet.data() + kPkeyByte;
  detail::put(at, pkey);
  std::byte& reserved = packet[kReservedByte];
  reserved = has_grh ? reserved & ~kNoGrhByte : reserved | kNoGrhByte;
}

struct Decoded {
  Headers headers;
  std::span<const std::byte> payload;  // of the datagram's own bytes, padding excluded
};

// Decodes a datagram. Reads each header byte once, because the sender can still write to the datagram's
// memory.
// Errors: nullopt for a datagram that is too short or has an unknown opcode or transport version. The same
// for more padding than payload, and for payload where the opcode allows none.
[[nodiscard]] inline std::optional<Decoded> decode(std::span<const std::byte> datagram) {
  if (datagram.size() < kBthBytes) return std::nullopt;
  std::array<std::byte, kMaxHeaderBytes> header{};
  std::memcpy(header.data(), datagram.data(), std::min(datagram.size(), header.size()));
  std::atomic_signal_fence(std::memory_order_acquire);  // keeps the compiler from reading the original again
  const std::byte* at = header.data();
  Decoded decoded;
  Headers& headers = decoded.headers;
  Bth& bth = headers.bth;
  const auto first_word = detail::take<std::uint32_t>(at);
  bth.opcode = static_cast<Opcode>(first_word >> 24);
  bth.solicited = first_word & 0x800000u;
  bth.migration = first_word & 0x400000u;
  bth.pad_count = first_word >> 20 & 3;
  bth.pkey = static_cast<std::uint16_t>(first_word);
  const bool version_known = (first_word & 0x0f0000u) == 0;
  const std::uint16_t extensions = extensions_of(bth.opcode);
  const std::size_t length_bytes = header_bytes(bth.opcode);
  if (extensions == 0 || !version_known || datagram.size() < length_bytes + bth.pad_count)
    return std::nullopt;

  const auto qpn_word = detail::take<std::uint32_t>(at);
  bth.backward_congestion = qpn_word & kBecn;
  bth.has_grh = (qpn_word & kNoGrh) == 0;
  bth.destination_qpn = qpn_word & kQpnMask;
  const auto ack_psn = detail::take<std::uint32_t>(at);
  bth.ack_request = ack_psn & 0x80000000u;
  bth.psn = ack_psn & kPsnMask;
  if (extensions & kHasDeth) {
    headers.deth.qkey = detail::take<std::uint32_t>(at);
    headers.deth.source_qpn = detail::take<std::uint32_t>(at) & kQpnMask;
  }
  if (extensions & kHasReth) {
    headers.reth.address = detail::take<std::uint64_t>(at);
    headers.reth.rkey = detail::take<std::uint32_t>(at);
    headers.reth.length_bytes = detail::take<std::uint32_t>(at);
  }
  if (extensions & kHasAtomicEth) {
    headers.atomic.address = detail::take<std::uint64_t>(at);
    headers.atomic.rkey = detail::take<std::uint32_t>(at);
    headers.atomic.swap_or_add = detail::take<std::uint64_t>(at);
    headers.atomic.compare = detail::take<std::uint64_t>(at);
  }
  if (extensions & kHasAtomicMaskEth) {
    headers.atomic_mask.swap_mask_or_boundaries = detail::take<std::uint64_t>(at);
    headers.atomic_mask.compare_mask = detail::take<std::uint64_t>(at);
  }
  if (extensions & kHasAeth) {
    const auto aeth = detail::take<std::uint32_t>(at);
    headers.aeth = {static_cast<std::uint8_t>(aeth >> 24), aeth & kPsnMask};
  }
  if (extensions & kHasAtomicAckEth) headers.atomic_original = detail::take<std::uint64_t>(at);
  if (extensions & kHasImmediateOrIeth) headers.immediate = detail::take<std::uint32_t>(at);

  decoded.payload = datagram.subspan(length_bytes, datagram.size() - length_bytes - bth.pad_count);
  if (!(extensions & kHasPayload) && datagram.size() != length_bytes) return std::nullopt;
  return decoded;
}

}  // namespace gdx::roce
