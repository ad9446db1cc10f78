// How the HCA's thread waits when it has found nothing to do: pure, time in, advice out.
//
// Packets wake a sleeper, doorbells are stores to memory and wake nobody. So short sleeps are for doorbells
// alone, and an HCA that nobody rings pays for none: without this, sixteen receivers on two cores spend both
// of them looking.
#pragma once

#include <cstdint>

namespace gdx::softhca::uverbs {

// No doorbell is served later than the sleep that it falls into.
inline constexpr std::uint64_t kShortestSleepNs = 20'000;
inline constexpr std::uint64_t kLongSleepNs = 1'000'000;
inline constexpr std::uint64_t kDeepSleepNs = 4'000'000;  // when nothing has happened for a while
inline constexpr std::uint64_t kLingerNs = 50'000;        // after the last activity, before the first sleep
inline constexpr std::uint64_t kPatienceNs = 4'000;       // of these, before others may have the processor
inline constexpr std::uint64_t kRingsNs = 1'000'000'000;  // who rang so lately will do so again
inline constexpr int kShortSleeps = 32;  // after the last activity, before sleeps begin to grow
inline constexpr int kLongSleeps = 200;  // and before they grow beyond kLongSleepNs

struct Pause {
  enum class Kind : std::uint8_t {
    kNone,   // look again
    kYield,  // and before that let others have the processor
    kSleep,  // at most `longest_ns`, or until a packet comes
  };
  Kind kind = Kind::kNone;
  std::uint64_t longest_ns = 0;
};

// Times are of one monotonic clock. Threads: externally synchronised.
class IdlePolicy {
 public:
  void on_work(std::uint64_t now_ns);
  // A look has found nothing. `rung_at_ns`: the newest doorbell, 0 if there was none.
  [[nodiscard]] Pause on_idle(std::uint64_t now_ns, std::uint64_t rung_at_ns);

 private:
  std::uint64_t worked_at_ns_ = 0;
  std::uint64_t backoff_ns_ = kShortestSleepNs;
  int sleeps_ = 0;  // since the last work
};

}  // namespace gdx::softhca::uverbs
