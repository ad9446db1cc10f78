#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/expected_text.h"
#include "tests/sim/connector/world.h"

namespace gdx::sim {
namespace connector_simulation_test {

TEST(ConnectorSimulation, seeds_keep_every_promise) {
  const auto report = run_seeds({1, 3000}, 1, [](std::uint64_t seed) { return ConnectorWorld(seed).run(); });
  EXPECT_EQ(report.failure.problem, "") << "seed " << report.seed;
  // The intended events occurred.
  EXPECT_GT(report.sum.ready, 100'000u);
  EXPECT_GT(report.sum.crossed, 10'000u);
  EXPECT_GT(report.sum.gone, 5'000u);
  EXPECT_GT(report.sum.breaks, 10'000u);
  EXPECT_GT(report.sum.deaths, 2'000u);
  EXPECT_GT(report.sum.busy, 10'000u);
  EXPECT_GT(report.sum.refusals, 1'000u);
}

TEST(ConnectorSimulation, teams_of_1024_ranks_connect_the_pairs_that_are_used) {
  const auto report =
      run_seeds({1, 4}, 1, [](std::uint64_t seed) { return ConnectorWorld(seed, 1024).run(); });
  EXPECT_EQ(report.failure.problem, "") << "seed " << report.seed;
  EXPECT_GT(report.sum.used, 4 * 4'000u);
  EXPECT_LT(report.sum.ready, 2 * report.sum.used);  // of 523,776 pairs in each team
}

TEST(ConnectorSimulation, courses_by_seed_are_as_expected) {
  const auto run = [](std::uint64_t seed) { return ConnectorWorld(seed).run(); };
  const auto tell = [](const ConnectorOutcome& outcome) {
    return fmt::format("{} {} {} {} {} {} {} {} {} {} {}", outcome.used, outcome.ready, outcome.gone,
                       outcome.crossed, outcome.letters, outcome.dials, outcome.breaks, outcome.deaths,
                       outcome.busy, outcome.refusals, outcome.longest_ns);
  };
  expect_text("connectors.txt",
              courses("used ready gone crossed letters dials breaks deaths busy refusals longest_ns", 200,
                      run, tell));
}

}  // namespace connector_simulation_test
}  // namespace gdx::sim
