// Message-level flow control of RC. A receiver states in its ACKs how many receive WQEs are posted, if its
// receive queue serves one connection only. `msn` + credits is the newest message that is certain to find
// one.
//
//   ACK(msn 7, 3 credits): messages up to 10 find a receive; message 11 may only probe
//
// Message numbers (the requester's SSN, the responder's MSN) have 24 bits and wrap as PSNs do; psn.h extends
// both.
// Source: IBA 1.4, 9.7.7.2 and the AETH's table of credit counts.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "driver-shim/softhca/transport/psn.h"
#include "proto/roce/headers.h"

namespace gdx::softhca::transport {

inline constexpr std::uint8_t kCreditCodeMask = 0x1f;
inline constexpr std::uint8_t kNoCreditsCode = roce::kAethAck & kCreditCodeMask;  // nothing is advertised
inline constexpr std::uint32_t kMaxCredits = 32768;

// Returns the code of the largest count that is not above `receives`. Counts run 0, 1, 2, 3, 4, 6, 8, 12,
// ...: from 2 on, two to an octave.
constexpr std::uint8_t credit_code(std::uint32_t receives) {
  const std::uint32_t count = std::min(receives, kMaxCredits);
  if (count < 2) return static_cast<std::uint8_t>(count);
  const int octave = std::bit_width(count) - 1;
  return static_cast<std::uint8_t>(2 * octave + static_cast<int>(count >> (octave - 1) & 1));
}

// Returns the count that a code stands for. kNoCreditsCode stands for none and must not be given.
constexpr std::uint32_t credits_of(std::uint8_t code) {
  return code < 2 ? code : (2u + (code & 1u)) << (code / 2 - 1);
}

// Requester's bound by its peer's receives. A peer that advertises no credits does not bound it. Until a peer
// has answered, it may be of either kind.
class ReceiveLimit {
 public:
  explicit ReceiveLimit(std::uint32_t first_msn) : newest_permitted_(first_psn(first_msn)) {}

  // Applies an ACK, however late. The limit never decreases, because posted receives stay posted.
  // `newest_message` is the newest one posted. True: more is permitted than before.
  bool update(const roce::Aeth& aeth, std::uint64_t newest_message) {
    const std::uint8_t code = aeth.syndrome & kCreditCodeMask;
    const bool was_bounded = peer_ != Peer::kUnbounded;
    if (code == kNoCreditsCode) peer_ = Peer::kUnbounded;
    if (peer_ == Peer::kUnbounded) return was_bounded;
    peer_ = Peer::kAdvertises;
    const std::uint64_t before = newest_permitted_;
    const std::uint64_t told = extend_psn(aeth.msn, newest_message) + credits_of(code);
    newest_permitted_ = std::max(newest_permitted_, told);
    return newest_permitted_ > before;
  }
  [[nodiscard]] bool permits(std::uint64_t message) const {
    return peer_ == Peer::kUnbounded || message <= newest_permitted_;
  }
  [[nodiscard]] bool known() const { return peer_ != Peer::kUnknown; }

 private:
  enum class Peer : std::uint8_t { kUnknown, kUnbounded, kAdvertises };

  Peer peer_ = Peer::kUnknown;
  std::uint64_t newest_permitted_;
};

}  // namespace gdx::softhca::transport
