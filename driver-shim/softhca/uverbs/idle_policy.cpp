#include "driver-shim/softhca/uverbs/idle_policy.h"

#include <algorithm>

namespace gdx::softhca::uverbs {

void IdlePolicy::on_work(std::uint64_t now_ns) {
  worked_at_ns_ = now_ns;
  backoff_ns_ = kShortestSleepNs;
  sleeps_ = 0;
}

void IdlePolicy::on_roused(std::uint64_t now_ns) {
  rousable_ = true;
  on_work(now_ns);
}

Pause IdlePolicy::on_idle(std::uint64_t now_ns, std::uint64_t rung_at_ns) {
  // A stream of packets has gaps, and to fall asleep and be woken costs both ends more than they last. But
  // the sender may be waiting for this very processor.
  const std::uint64_t idle_for_ns = now_ns - worked_at_ns_;
  if (worked_at_ns_ != 0 && idle_for_ns < kLingerNs) {
    if (idle_for_ns <= kPatienceNs) return {Pause::Kind::kNone, 0};
    if (cost_.is_high(now_ns)) return {Pause::Kind::kSleep, kShortestSleepNs};
    return {Pause::Kind::kYield, 0};
  }
  const bool rings = rung_at_ns != 0 && now_ns < rung_at_ns + kRingsNs;
  if (!rings) backoff_ns_ = std::max(backoff_ns_, kLongSleepNs);
  if (++sleeps_ > kShortSleeps) {
    std::uint64_t longest_ns = kLongSleepNs;
    if (sleeps_ > kShortSleeps + kLongSleeps) longest_ns = kDeepSleepNs;
    if (sleeps_ > kShortSleeps + kLongSleeps + kDeepSleeps)
      longest_ns = rousable_ ? kRousableSleepNs : kDeepestSleepNs;
    backoff_ns_ = std::min(backoff_ns_ * 2, longest_ns);
  }
  return {Pause::Kind::kSleep, backoff_ns_};
}

}  // namespace gdx::softhca::uverbs
