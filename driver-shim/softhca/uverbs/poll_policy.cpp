#include "driver-shim/softhca/uverbs/poll_policy.h"

#include <algorithm>

namespace gdx::softhca::uverbs {

void PollPolicy::on_yielded(std::uint64_t took_ns) {
  vain_ = 0;
  lent_ = took_ns >= kAloneNs && took_ns < kLongYieldNs;
  if (took_ns >= kLongYieldNs) {
    patience_ = std::clamp(2 * patience_, kLongPatience, kMostPatience);
  } else if (!lent_) {
    patience_ = kPatience;
  }
}

void PollPolicy::on_step(bool did_something) {
  if (!did_something) {
    ++vain_;
  } else {
    if (lent_) {
      patience_ = kLeastPatience;
    } else if (vain_ > patience_) {
      patience_ = kPatience;  // a trial: it came from another processor
    }
    if (lent_ || vain_ > 0) ++waits_;
    vain_ = 0;
  }
  lent_ = false;
}

}  // namespace gdx::softhca::uverbs
