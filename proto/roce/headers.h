// RoCE v2 transport headers as values. Codecs are in codec.h, the invariant CRC in icrc.h.
// Source: InfiniBand Architecture Specification 1.4, chapter 9 and annex A17.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gdx::roce {

inline constexpr std::uint16_t kUdpPort = 4791;
inline constexpr std::size_t kBthBytes = 12;
inline constexpr std::size_t kRethBytes = 16;
inline constexpr std::size_t kAethBytes = 4;
inline constexpr std::size_t kAtomicEthBytes = 28;
inline constexpr std::size_t kAtomicAckEthBytes = 8;
inline constexpr std::size_t kAtomicMaskEthBytes = 16;
inline constexpr std::size_t kImmediateBytes = 4;
inline constexpr std::size_t kDethBytes = 8;
inline constexpr std::size_t kIcrcBytes = 4;
inline constexpr std::size_t kNotificationBytes = 16;  // behind the BTH of a CNP, all zero (A17.9.3)
inline constexpr std::size_t kMaxHeaderBytes = kBthBytes + kAtomicEthBytes + kAtomicMaskEthBytes;
inline constexpr std::uint32_t kPsnMask = 0xffffff;
inline constexpr std::uint32_t kQpnMask = 0xffffff;
inline constexpr std::uint16_t kDefaultPkey = 0xffff;

// BTH opcode: transport in bits 7:5 (RC 0, UC 1, UD 3), operation in bits 4:0. Bits 7:5 all set are the
// manufacturer's own (IBA 1.4, table 38): ours are the masked atomics, numbered like the plain ones below,
// and the two of windows between HCAs (window.h).
enum class Opcode : std::uint8_t {
  kRcSendFirst = 0x00,
  kRcSendMiddle = 0x01,
  kRcSendLast = 0x02,
  kRcSendLastImmediate = 0x03,
  kRcSendOnly = 0x04,
  kRcSendOnlyImmediate = 0x05,
  kRcWriteFirst = 0x06,
  kRcWriteMiddle = 0x07,
  kRcWriteLast = 0x08,
  kRcWriteLastImmediate = 0x09,
  kRcWriteOnly = 0x0a,
  kRcWriteOnlyImmediate = 0x0b,
  kRcReadRequest = 0x0c,
  kRcReadResponseFirst = 0x0d,
  kRcReadResponseMiddle = 0x0e,
  kRcReadResponseLast = 0x0f,
  kRcReadResponseOnly = 0x10,
  kRcAcknowledge = 0x11,
  kRcAtomicAcknowledge = 0x12,
  kRcCompareSwap = 0x13,
  kRcFetchAdd = 0x14,
  kRcSendLastInvalidate = 0x16,
  kRcSendOnlyInvalidate = 0x17,
  kUcSendFirst = 0x20,
  kUcSendMiddle = 0x21,
  kUcSendLast = 0x22,
  kUcSendLastImmediate = 0x23,
  kUcSendOnly = 0x24,
  kUcSendOnlyImmediate = 0x25,
  kUcWriteFirst = 0x26,
  kUcWriteMiddle = 0x27,
  kUcWriteLast = 0x28,
  kUcWriteLastImmediate = 0x29,
  kUcWriteOnly = 0x2a,
  kUcWriteOnlyImmediate = 0x2b,
  kUdSendOnly = 0x64,
  kUdSendOnlyImmediate = 0x65,
  kCongestionNotification = 0x81,
  kMaskedCompareSwap = 0xf3,
  kMaskedFetchAdd = 0xf4,
  kWindowMarker = 0xf8,
  kWindowGrant = 0xf9,
};

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
  std::uint16_t pkey;
  std::uint32_t destination_qpn;
  bool ack_request;
  std::uint32_t psn;
  bool backward_congestion = false;  // BECN: set in notifications
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

// Follows AtomicETH in a masked atomic. Ours: no specification publishes a wire format for them.
struct AtomicMaskEth {
  std::uint64_t swap_mask_or_boundaries;
  std::uint64_t compare_mask;  // FetchAdd: 0
};

struct Deth {
  std::uint32_t qkey;
  std::uint32_t source_qpn;
};

// Every header a packet can carry; which of them are present follows from bth.opcode.
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
