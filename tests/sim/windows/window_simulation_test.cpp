#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/expected_text.h"
#include "tests/sim/windows/world.h"

namespace gdx::sim {
namespace window_simulation_test {

WindowOutcome run(std::uint64_t seed) { return WindowWorld(seed).run(); }

TEST(WindowSimulation, seeds_keep_every_promise) {
  const Report<WindowOutcome> report = run_seeds({1, 400}, 1, run);
  EXPECT_EQ(report.failure.problem, "") << "seed " << report.seed;
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
  const auto tell = [](const WindowOutcome& outcome) {
    return fmt::format("{} {} {} {} {} {}; {:.3f} {}", outcome.packets, outcome.lost, outcome.waits,
                       outcome.deaths, outcome.restarts, outcome.pauses, 100 * outcome.fullest,
                       outcome.end_ns);
  };
  expect_text(
      "windows.txt",
      courses("packets lost waits deaths restarts pauses; fullest socket in %, end in ns", 60, run, tell));
}

}  // namespace window_simulation_test
}  // namespace gdx::sim
