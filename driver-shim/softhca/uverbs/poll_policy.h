// Number of vain polls before a polling thread yields its processor: pure.
//
// The thread that it waits for may need this very processor; then each poll delays the answer. Or a load may
// keep the processor until the next tick after a yield, at nice 19 too (yield_cost.h). Then further polls are
// better, and the scheduler finds a processor for each. Only measuring what yields
// cost tells which case it is.
#pragma once

#include <cstdint>

#include "driver-shim/softhca/uverbs/yield_cost.h"

namespace gdx::softhca::uverbs {

inline constexpr unsigned kPatience = 64;             // steps in vain before a yield, some 50 us
inline constexpr unsigned kLeastPatience = 4;         // polls before a yield, if yields bring answers
inline constexpr unsigned kLongPatience = 1024;       // behind a long yield; doubled by each further one
inline constexpr unsigned kMostPatience = 64 * 1024;  // some 50 ms
inline constexpr unsigned kTrialEvery = 64;       // waits with the least patience, of which one has kPatience
inline constexpr std::uint64_t kAloneNs = 1'000;  // a yield that takes no longer found no other thread

// Policy of one thread.
class PollPolicy {
 public:
  // Returns whether a yield is due before the next step.
  [[nodiscard]] bool is_due() const { return vain_ >= patience(); }
  void on_yielded(std::uint64_t took_ns);
  // Takes note of a step that has ended, and whether it did something.
  void on_step(bool did_something);

 private:
  [[nodiscard]] unsigned patience() const {
    return patience_ == kLeastPatience && waits_ % kTrialEvery == 0 ? kPatience : patience_;
  }

  unsigned vain_ = 0;  // steps since the last that did something, or since a yield
  unsigned patience_ = kPatience;
  unsigned waits_ = 0;  // so far
  bool lent_ = false;   // another thread had the processor right before this step
};

}  // namespace gdx::softhca::uverbs
