// Thousands of virtual connections. GDX_SIM_SEEDS=A..B replays a range of seeds.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "tests/sim/world.h"

namespace gdx::sim {
namespace {

struct Seeds {
  std::uint64_t first = 1;
  std::uint64_t last = 2000;
};

Seeds seeds_to_run() {
  Seeds seeds;
  const char* range = std::getenv("GDX_SIM_SEEDS");
  if (range == nullptr) return seeds;
  unsigned long long first = 0;
  unsigned long long last = 0;
  const int fields = std::sscanf(range, "%llu..%llu", &first, &last);
  if (fields < 1) ADD_FAILURE() << "GDX_SIM_SEEDS is '" << range << "', expected A..B or A";
  seeds.first = first;
  seeds.last = fields == 2 ? last : first;
  return seeds;
}

TEST(Simulation, any_seed_keeps_every_promise) {
  const Seeds seeds = seeds_to_run();
  Outcome sum;
  for (std::uint64_t seed = seeds.first; seed <= seeds.last; ++seed) {
    const Outcome outcome = run(seed);
    ASSERT_EQ(outcome.problem, "") << "seed " << seed << " (" << outcome.scenario
                                   << "); replay with GDX_SIM_SEEDS=" << seed;
    sum.packets += outcome.packets;
    sum.dropped += outcome.dropped;
    sum.retransmitted += outcome.retransmitted;
    sum.timeouts += outcome.timeouts;
    sum.sequence_naks += outcome.sequence_naks;
    sum.receiver_not_ready += outcome.receiver_not_ready;
    sum.completions += outcome.completions;
    sum.failures += outcome.failures;
  }
  std::printf(
      "seeds %llu..%llu: %llu packets, %llu dropped, %llu resent, %llu timeouts, %llu NAKs, "
      "%llu RNR NAKs, %llu completions, %llu directions failed as owed\n",
      static_cast<unsigned long long>(seeds.first), static_cast<unsigned long long>(seeds.last),
      static_cast<unsigned long long>(sum.packets), static_cast<unsigned long long>(sum.dropped),
      static_cast<unsigned long long>(sum.retransmitted), static_cast<unsigned long long>(sum.timeouts),
      static_cast<unsigned long long>(sum.sequence_naks),
      static_cast<unsigned long long>(sum.receiver_not_ready),
      static_cast<unsigned long long>(sum.completions), static_cast<unsigned long long>(sum.failures));
  // A world in which nothing goes wrong proves nothing.
  if (seeds.last - seeds.first >= 100) {
    EXPECT_GT(sum.dropped, 0u);
    EXPECT_GT(sum.timeouts, 0u);
    EXPECT_GT(sum.sequence_naks, 0u);
    EXPECT_GT(sum.receiver_not_ready, 0u);
    EXPECT_GT(sum.failures, 0u);
  }
}

TEST(Simulation, same_seed_repeats_itself) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const Outcome once = run(seed);
    const Outcome again = run(seed);
    EXPECT_EQ(once.packets, again.packets);
    EXPECT_EQ(once.timeouts, again.timeouts);
    EXPECT_EQ(once.problem, again.problem);
  }
}

}  // namespace
}  // namespace gdx::sim
