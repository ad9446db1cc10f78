#include <gtest/gtest.h>

#include "tests/sim/windows/seeds.h"

namespace gdx::sim {
namespace {

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

}  // namespace
}  // namespace gdx::sim
