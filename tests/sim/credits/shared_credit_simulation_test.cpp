// Shared endpoints beside exclusive ones: their threads in any order, a step at a time.
#include <gtest/gtest.h>

#include <functional>

#include "tests/expected_text.h"
#include "tests/sim/credits/world.h"

namespace gdx::sim {
namespace shared_credit_simulation_test {

template <Sharers kSharers, std::uint32_t kSteps>
CreditOutcome run(std::uint64_t seed) {
  return CreditWorld(seed, kSharers).run(kSteps);
}

template <Sharers kSharers>
CreditOutcome whole_run(const char* replay) {
  const auto report = run_seeds({1, 300}, 1, run<kSharers, 10'000>);
  EXPECT_EQ(report.failure.problem, "")
      << "replay: gdx_credit_sim " << report.seed << " " << report.seed << " " << replay;
  return report.sum;
}

TEST(SharedCreditSimulation, seeds_keep_every_promise) {
  const CreditOutcome sum = whole_run<Sharers::kSome>("shared");
  // The intended events occurred.
  EXPECT_GE(sum.steps, 3'000'000u);
  EXPECT_GT(sum.thread_steps, 5'000'000u);
  EXPECT_GT(sum.pushes, 200'000u);
  EXPECT_GT(sum.waits, 20'000u);
  EXPECT_GT(sum.errors, 500u);
  EXPECT_GT(sum.deaths, 500u);
}

// Slots leased by first use: no minimum, idle endpoints, and threads that take slots back for others.
TEST(SharedCreditSimulation, teams_without_minima_keep_every_promise) {
  const CreditOutcome sum = whole_run<Sharers::kTeam>("team");
  EXPECT_GT(sum.pushes, 30'000u);
  EXPECT_GT(sum.waits, 20'000u);
  EXPECT_GT(sum.errors, 500u);
}

// A program whose kernels have ended keeps its slots from no other program of its pool.
TEST(SharedCreditSimulation, tenants_of_one_pool_keep_every_promise) {
  const CreditOutcome sum = whole_run<Sharers::kTenants>("tenants");
  EXPECT_GT(sum.pushes, 10'000u);
  EXPECT_GT(sum.waits, 10'000u);
  EXPECT_GT(sum.errors, 100u);
}

TEST(SharedCreditSimulation, courses_by_seed_are_as_expected) {
  const auto tell = std::mem_fn(&CreditOutcome::course);
  expect_text("shared_credits.txt", courses(kCourseHead, 30, run<Sharers::kSome, 3000>, tell));
  expect_text("team_credits.txt", courses(kCourseHead, 30, run<Sharers::kTeam, 3000>, tell));
  expect_text("tenant_credits.txt", courses(kCourseHead, 30, run<Sharers::kTenants, 3000>, tell));
}

}  // namespace shared_credit_simulation_test
}  // namespace gdx::sim
