// RoCE v2 transport headers as values. opcodes.h has opcodes, codec.h codecs, icrc.h the invariant CRC.
// Source: InfiniBand Architecture Specification 1.4, chapter 9 and annex A17.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/roce/opcodes.h"

namespace gdx::roce {

inline constexpr std::uint16_t kUdpPort = 4791;
inline constexpr std::size_t kIcrcBytes = 4;
inline constexpr std::size_t kNotificationBytes = 16;  // behind the BTH of a CNP, all zero (A17.9.3)
inline constexpr std::uint32_t kPsnMask = 0xffffff;
inline constexpr std::uint32_t kQpnMask = 0xffffff;
inline constexpr std::uint16_t kDefaultPkey = 0xffff;
inline constexpr std::uint16_t kPartitionMask = 0x7fff;  // of a P_Key; its bit 15: full member

constexpr bool is_full_member(std::uint16_t pkey) { return pkey > kPartitionMask; }
// Returns whether owners of these P_Keys may talk: in one partition, of which one is a full member.
// Source: IBA 10.9.1 and 10.9.3.
constexpr bool may_talk(std::uint16_t one, std::uint16_t other) {
  return (one & kPartitionMask) != 0 && ((one ^ other) & kPartitionMask) == 0 &&
         (is_full_member(one) || is_full_member(other));
}

// AETH syndrome, bits 6:5 the kind, bits 4:0 its value.
inline constexpr std::uint8_t kAethAck = 0x1f;  // ACK without end-to-end credits
inline constexpr std::uint8_t kAethKindMask = 0x60;
inline constexpr std::uint8_t kAethKindAck = 0x00;
inline constexpr std::uint8_t kAethKindRnr = 0x20;  // bits 4:0: RNR timer
inline constexpr std::uint8_t kAethKindNak = 0x60;
inline constexpr std::uint8_t kNakSequenceError = 0x60;
inline constexpr std::uint8_t kNakInvalidRequest = 0x61;
inline constexpr std::uint8_t kNakRemoteAccess = 0x62;
inline constexpr std::uint8_t kNakRemoteOperation = 0x63;

struct Bth {
  Opcode opcode;
  bool solicited;
  bool migration;
  std::uint8_t pad_count;
  std::uint16_t pkey = kDefaultPkey;
  std::uint32_t destination_qpn;
  bool ack_request;
  std::uint32_t psn;
  bool backward_congestion = false;  // BECN: set in notifications
  bool has_grh = true;               // false: between InfiniBand ports of software HCAs only
};

struct Reth {
  std::uint64_t address;
  std::uint32_t rkey;
  std::uint32_t length_bytes;
};

struct Aeth {
  std::uint8_t syndrome;
  std::uint32_t msn;
};

struct AtomicEth {
  std::uint64_t address;
  std::uint32_t rkey;
  std::uint64_t swap_or_add;
  std::uint64_t compare;
};

// Follows AtomicETH in a masked atomic. Format of gdx, because no specification publishes one.
struct AtomicMaskEth {
  std::uint64_t swap_mask_or_boundaries;
  std::uint64_t compare_mask;  // FetchAdd: 0
};

struct Deth {
  std::uint32_t qkey;
  std::uint32_t source_qpn;
};

// Headers of a packet; bth.opcode decides which are present.
struct Headers {
  Bth bth{};
  Reth reth{};
  Aeth aeth{};
  AtomicEth atomic{};
  AtomicMaskEth atomic_mask{};
  std::uint64_t atomic_original = 0;  // AtomicAckETH
  std::uint32_t immediate = 0;        // ImmDt, or IETH's rkey
  Deth deth{};
};

}  // namespace gdx::roce
