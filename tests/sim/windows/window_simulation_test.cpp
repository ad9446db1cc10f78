#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/expected_text.h"
#include "tests/sim/windows/seeds.h"

namespace gdx::sim {
namespace window_simulation_test {

TEST(WindowSimulation, seeds_keep_every_promise) {
  const WindowReport report = run_window_seeds(1, 400);
  EXPECT_EQ(report.sum.problem, "") << "seed " << report.seed;
  // The intended events occurred.
  EXPECT_GT(report.sum.packets, 1'000'000u);
  EXPECT_GT(report.sum.lost, 1'000u);
  EXPECT_GT(report.sum.waits, 1'000u);
  EXPECT_GT(report.sum.deaths, 100u);
  EXPECT_GT(report.sum.restarts, 100u);
  EXPECT_GT(report.sum.pauses, 100u);
  EXPECT_GT(report.sum.fullest, 0.9) << "no socket was ever near its end";
}

TEST(WindowSimulation, courses_by_seed_are_as_expected) {
  std::string text = "# seed: packets lost waits deaths restarts pauses; fullest socket in %, end in ns\n";
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const WindowOutcome outcome = WindowWorld(seed).run();
    text +=
        fmt::format("{}: {} {} {} {} {} {}; {:.3f} {}\n", seed, outcome.packets, outcome.lost, outcome.waits,
                    outcome.deaths, outcome.restarts, outcome.pauses, 100 * outcome.fullest, outcome.end_ns);
  }
  expect_text("windows.txt", text);
}

}  // namespace window_simulation_test
}  // namespace gdx::sim
