// Past cost of sched_yield(). A working load keeps the processor until the next tick, milliseconds, at nice
// 19 too. Then a short sleep is better, because the waking thread takes the processor back at once.
#pragma once

#include <cstdint>

namespace gdx::softhca::uverbs {

inline constexpr std::uint64_t kLongYieldNs = 200'000;     // one that took so long met such a load
inline constexpr std::uint64_t kNoYieldsNs = 100'000'000;  // after it

// Cost for one thread. Times are of one monotonic clock.
class YieldCost {
 public:
  void on_yielded(std::uint64_t now_ns, std::uint64_t took_ns) {
    if (took_ns >= kLongYieldNs) until_ns_ = now_ns + kNoYieldsNs;
  }
  [[nodiscard]] bool is_high(std::uint64_t now_ns) const { return now_ns < until_ns_; }

 private:
  std::uint64_t until_ns_ = 0;
};

}  // namespace gdx::softhca::uverbs
