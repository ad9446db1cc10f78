#include <gtest/gtest.h>

#include <functional>

#include "tests/expected_text.h"
#include "tests/sim/credits/world.h"

namespace gdx::sim {
namespace credit_simulation_test {

template <std::uint32_t kSteps>
CreditOutcome run(std::uint64_t seed) {
  return CreditWorld(seed).run(kSteps);
}

TEST(CreditSimulation, seeds_keep_every_promise) {
  const auto report = run_seeds({1, 300}, 1, run<10'000>);
  EXPECT_EQ(report.failure.problem, "") << "seed " << report.seed;
  // The intended events occurred.
  EXPECT_GE(report.sum.steps, 3'000'000u);
  EXPECT_GT(report.sum.pushes, 100'000u);
  EXPECT_GT(report.sum.stalls, 1'000u);
  EXPECT_GT(report.sum.errors, 100u);
  EXPECT_GT(report.sum.deaths, 100u);
  EXPECT_GT(report.sum.bad_returns, 100u);
}

TEST(CreditSimulation, courses_by_seed_are_as_expected) {
  expect_text("credits.txt", courses(kCourseHead, 60, run<3000>, std::mem_fn(&CreditOutcome::course)));
}

}  // namespace credit_simulation_test
}  // namespace gdx::sim
