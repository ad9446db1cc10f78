// A rate with a burst, in eight bytes: the time until which the tokens taken so far are paid.
#pragma once

#include <algorithm>
#include <cstdint>

namespace gdx::softhca::transport {

class TokenBucket {
 public:
  // `burst` tokens at once, from then on one every `interval_ns`.
  constexpr TokenBucket(std::uint32_t burst, std::uint64_t interval_ns)
      : interval_ns_(interval_ns), burst_ns_((burst - 1) * interval_ns) {}

  constexpr bool take(std::uint64_t now_ns) {
    const std::uint64_t from_ns = std::max(paid_until_ns_, now_ns);
    if (from_ns - now_ns > burst_ns_) return false;
    paid_until_ns_ = from_ns + interval_ns_;
    return true;
  }

 private:
  std::uint64_t interval_ns_;
  std::uint64_t burst_ns_;
  std::uint64_t paid_until_ns_ = 0;
};

}  // namespace gdx::softhca::transport
