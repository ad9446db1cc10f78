// Estimate of an answer's time, and the wait before a requester resends a lost tail.
#pragma once

#include <algorithm>
#include <cstdint>

#include "driver-shim/softhca/transport/psn.h"

namespace gdx::softhca::transport {

// RFC 6298's estimator, of one packet at a time. Only packets that were sent once are timed.
class RoundTrip {
 public:
  static constexpr std::uint64_t kShortestNs = 10'000'000;
  static constexpr std::uint64_t kLongestFirstNs = 30'000'000;
  static constexpr std::uint64_t kLongestNs = 100'000'000;
  static constexpr std::uint32_t kKeptDoublings = 2;  // after an answer to either sending

  // Handles the sending of a packet that requests an ACK; all up to `end` is then acknowledged.
  void begin(std::uint64_t now_ns, ExtendedPsn end) {
    if (timed_end_ != kNone) return;
    timed_end_ = end;
    began_ns_ = now_ns;
  }
  void forget() { timed_end_ = kNone; }
  // Handles the acknowledgement of everything before `unacked`. Returns whether that covers the timed packet.
  bool end(std::uint64_t now_ns, ExtendedPsn unacked) {
    if (timed_end_ == kNone || unacked < timed_end_) return false;
    timed_end_ = kNone;
    const std::uint64_t sample_ns = now_ns - began_ns_;
    const std::uint64_t off_ns = std::max(sample_ns, mean_ns_) - std::min(sample_ns, mean_ns_);
    deviation_ns_ = known_ ? (3 * deviation_ns_ + off_ns) / 4 : sample_ns / 2;
    mean_ns_ = known_ ? (7 * mean_ns_ + sample_ns) / 8 : sample_ns;
    known_ = true;
    return true;
  }

  // Returns the wait. Two waits in a row are at most 90 ms. A tail lost twice is thus resent within 100 ms.
  [[nodiscard]] std::uint64_t wait_ns(std::uint32_t resends) const {
    const std::uint64_t first_ns = known_ ? mean_ns_ + 4 * deviation_ns_ : kLongestFirstNs;
    // Waits twice the round trip on a path slower than the bounds, because its tail is not lost before.
    const std::uint64_t slow_ns = mean_ns_ > kLongestFirstNs ? 2 * mean_ns_ : 0;
    const std::uint64_t bounded_ns = std::clamp(first_ns, kShortestNs, kLongestFirstNs);
    return std::max(slow_ns, std::min(bounded_ns << std::min(resends, 4u), kLongestNs));
  }

 private:
  static constexpr ExtendedPsn kNone = 0;  // numbers of packets begin above it

  ExtendedPsn timed_end_ = kNone;
  std::uint64_t began_ns_ = 0;
  std::uint64_t mean_ns_ = 0;
  std::uint64_t deviation_ns_ = 0;
  bool known_ = false;
};

}  // namespace gdx::softhca::transport
