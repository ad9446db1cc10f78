#include <gtest/gtest.h>

#include "tests/expected_text.h"
#include "tests/sim/credits/seeds.h"

namespace gdx::sim {
namespace credit_simulation_test {

TEST(CreditSimulation, seeds_keep_every_promise) {
  const CreditReport report = run_credit_seeds(1, 300, 10'000);
  EXPECT_EQ(report.sum.problem, "") << "seed " << report.seed;
  // The intended events occurred.
  EXPECT_GE(report.sum.steps, 3'000'000u);
  EXPECT_GT(report.sum.pushes, 100'000u);
  EXPECT_GT(report.sum.stalls, 1'000u);
  EXPECT_GT(report.sum.errors, 100u);
  EXPECT_GT(report.sum.deaths, 100u);
  EXPECT_GT(report.sum.bad_returns, 100u);
}

TEST(CreditSimulation, courses_by_seed_are_as_expected) {
  expect_text("credits.txt", credit_courses(60, 3000, Sharers::kNone));
}

}  // namespace credit_simulation_test
}  // namespace gdx::sim
