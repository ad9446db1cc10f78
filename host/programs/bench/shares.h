// Shares of a sample: what each rank's blocks did, and their sum.
#pragma once

#include <cstdint>
#include <vector>

#include "host/programs/bench/counters.h"
#include "host/programs/bench/load.h"
#include "host/programs/bench/rank.h"

namespace gdx::bench {

// A rank's part of a sample, for the other ranks.
struct Share {
  std::uint64_t messages;
  std::uint64_t elapsed_ns;
  std::uint64_t posted;
  Counters spent;
  std::uint64_t checked_bytes;
  std::uint64_t bad_bytes;
  std::uint64_t dropped_bad_bytes;
};

// Returns the share of the rank whose blocks had these outcomes. `spent`: by it from before the launch until
// after it.
[[nodiscard]] Share share_of(const Load& load, const LaneOutcome* outcomes, Counters spent);

// Adds the shares of all ranks, in their order.
void add_shares(const std::vector<Share>& shares, Sample& into);

// Adds times of messages, of which a round trip is two.
void add_latencies(const Load& load, const Lane* lanes, const LaneOutcome* outcomes, Sample& into);

}  // namespace gdx::bench
