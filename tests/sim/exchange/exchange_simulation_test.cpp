#include <gtest/gtest.h>

#include "tests/sim/exchange/world.h"

namespace gdx::sim {
namespace exchange_simulation_test {

TEST(ExchangeSimulation, whoever_is_lost_is_named_and_all_ranks_end) {
  const auto report =
      run_seeds({1, 100}, 1, [](std::uint64_t seed) { return ExchangeWorld(seed, 120).run(); });
  EXPECT_EQ(report.failure.problem, "") << "seed " << report.seed;
  // The seeds reach what they are for.
  EXPECT_GT(report.sum.whole, 10u);
  EXPECT_GT(report.sum.named, 30u);
  EXPECT_GT(report.sum.told, 2'000u);
}

// Joins, gathers words of 4 bytes, meets at a barrier: per rank a hello of 24 bytes and contributions of 24
// and 20 against a welcome of 20 and results of 20 + 4 for each rank, and 20.
TEST(ExchangeSimulation, rank_0_carries_what_the_page_says) {
  constexpr std::uint64_t kRanks = 120;
  Traffic sent;
  Traffic received;
  for (std::uint64_t seed = 1; sent.frames == 0; ++seed) {
    const ExchangeOutcome outcome = ExchangeWorld(seed, kRanks).run();
    sent = outcome.sent;
    received = outcome.received;
  }
  EXPECT_EQ(received.frames, 3 * (kRanks - 1));
  EXPECT_EQ(received.bytes, (24 + 24 + 20) * (kRanks - 1));
  EXPECT_EQ(sent.frames, 3 * (kRanks - 1));
  EXPECT_EQ(sent.bytes, (20 + (20 + 4 * kRanks) + 20) * (kRanks - 1));
}

}  // namespace exchange_simulation_test
}  // namespace gdx::sim
