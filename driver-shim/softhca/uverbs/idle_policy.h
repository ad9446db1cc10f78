// Wait of the HCA's thread when it has found nothing to do: pure, time in, advice out.
//
// Packets wake a sleeping thread. Doorbells are stores to memory and wake none, so short sleeps serve
// doorbells alone. An HCA without doorbells pays for none; otherwise sixteen receivers on two cores would
// spend both cores on polls.
#pragma once

#include <cstdint>

#include "driver-shim/softhca/uverbs/yield_cost.h"

namespace gdx::softhca::uverbs {

// No doorbell is served later than the sleep that it falls into.
inline constexpr std::uint64_t kShortestSleepNs = 20'000;
inline constexpr std::uint64_t kLongSleepNs = 1'000'000;
inline constexpr std::uint64_t kDeepSleepNs = 4'000'000;  // sleep after a while without events
// Sleep after a longer while: each wake-up costs some 40 us.
inline constexpr std::uint64_t kDeepestSleepNs = 12'000'000;
// Longest sleep of a thread that programs rouse when they ring.
inline constexpr std::uint64_t kRousableSleepNs = 48'000'000;
inline constexpr std::uint64_t kLingerNs = 50'000;  // after the last activity, before the first sleep
// First part of kLingerNs, before the thread yields the processor.
inline constexpr std::uint64_t kPatienceNs = 4'000;
inline constexpr std::uint64_t kRingsNs = 1'000'000'000;  // a program that rang so lately will do so again
inline constexpr int kShortSleeps = 32;  // after the last activity, before sleeps begin to grow
inline constexpr int kLongSleeps = 200;  // sleeps before they grow beyond kLongSleepNs
inline constexpr int kDeepSleeps = 250;  // sleeps before they grow beyond kDeepSleepNs

struct Pause {
  enum class Kind : std::uint8_t {
    kNone,   // polls again
    kYield,  // yields the processor first; call on_yielded() after it
    kSleep,  // at most `longest_ns`, or until a packet comes
  };
  Kind kind = Kind::kNone;
  std::uint64_t longest_ns = 0;
};

// Times are of one monotonic clock. Threads: externally synchronised.
class IdlePolicy {
 public:
  void on_work(std::uint64_t now_ns);
  // Does what on_work() does, and lets the thread sleep for longer, because somebody rouses it when a
  // doorbell stays unseen.
  void on_roused(std::uint64_t now_ns);
  void on_yielded(std::uint64_t now_ns, std::uint64_t took_ns) { cost_.on_yielded(now_ns, took_ns); }
  // Handles a vain poll. `rung_at_ns`: the newest doorbell, 0 without one.
  [[nodiscard]] Pause on_idle(std::uint64_t now_ns, std::uint64_t rung_at_ns);

 private:
  std::uint64_t worked_at_ns_ = 0;
  std::uint64_t backoff_ns_ = kShortestSleepNs;
  int sleeps_ = 0;  // since the last work
  bool rousable_ = false;
  YieldCost cost_;
};

}  // namespace gdx::softhca::uverbs
