#include "driver-shim/softhca/uverbs/idle_policy.h"

#include <algorithm>

namespace gdx::softhca::uverbs {

void IdlePolicy::on_work(std::uint64_t now_ns) {
  worked_at_ns_ = now_ns;
  backoff_ns_ = kShortestSleepNs;
  sleeps_ = 0;
}

Pause IdlePolicy::on_idle(std::uint64_t now_ns, std::uint64_t rung_at_ns) {
  // A stream of packets has gaps, and to fall asleep and be woken costs both ends more than they last. But
  // the sender may be waiting for this very processor.
  const std::uint64_t idle_for_ns = now_ns - worked_at_ns_;
  if (worked_at_ns_ != 0 && idle_for_ns < kLingerNs) {
    return {idle_for_ns > kPatienceNs ? Pause::Kind::kYield : Pause::Kind::kNone, 0};
  }
  const bool rings = rung_at_ns != 0 && now_ns < rung_at_ns + kRingsNs;
  if (!rings) backoff_ns_ = std::max(backoff_ns_, kLongSleepNs);
  if (++sleeps_ > kShortSleeps) {
    const bool deep = sleeps_ > kShortSleeps + kLongSleeps;
    backoff_ns_ = std::min(backoff_ns_ * 2, deep ? kDeepSleepNs : kLongSleepNs);
  }
  return {Pause::Kind::kSleep, backoff_ns_};
}

}  // namespace gdx::softhca::uverbs
