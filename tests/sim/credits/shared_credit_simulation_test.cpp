// Shared endpoints beside exclusive ones: their threads in any order, a step at a time.
#include <gtest/gtest.h>

#include "tests/expected_text.h"
#include "tests/sim/credits/seeds.h"

namespace gdx::sim {
namespace shared_credit_simulation_test {

TEST(SharedCreditSimulation, seeds_keep_every_promise) {
  const CreditReport report = run_credit_seeds(1, 300, 10'000, Sharers::kSome);
  EXPECT_EQ(report.sum.problem, "") << "replay with gdx_credit_sim " << report.seed << " " << report.seed;
  // The intended events occurred.
  EXPECT_GE(report.sum.steps, 3'000'000u);
  EXPECT_GT(report.sum.thread_steps, 5'000'000u);
  EXPECT_GT(report.sum.pushes, 200'000u);
  EXPECT_GT(report.sum.waits, 20'000u);
  EXPECT_GT(report.sum.errors, 500u);
  EXPECT_GT(report.sum.deaths, 500u);
}

// Slots leased by first use: no minimum, idle endpoints, and threads that take slots back for others.
TEST(SharedCreditSimulation, teams_without_minima_keep_every_promise) {
  const CreditReport report = run_credit_seeds(1, 300, 10'000, Sharers::kTeam);
  EXPECT_EQ(report.sum.problem, "") << "replay with gdx_credit_sim --team " << report.seed << " "
                                    << report.seed;
  EXPECT_GT(report.sum.pushes, 30'000u);
  EXPECT_GT(report.sum.waits, 20'000u);
  EXPECT_GT(report.sum.errors, 500u);
}

// A program whose kernels have ended keeps its slots from no other program of its pool.
TEST(SharedCreditSimulation, tenants_of_one_pool_keep_every_promise) {
  const CreditReport report = run_credit_seeds(1, 300, 10'000, Sharers::kTenants);
  EXPECT_EQ(report.sum.problem, "") << "replay with gdx_credit_sim --tenants " << report.seed << " "
                                    << report.seed;
  EXPECT_GT(report.sum.pushes, 10'000u);
  EXPECT_GT(report.sum.waits, 10'000u);
  EXPECT_GT(report.sum.errors, 100u);
}

TEST(SharedCreditSimulation, courses_by_seed_are_as_expected) {
  expect_text("shared_credits.txt", credit_courses(30, 3000, Sharers::kSome));
  expect_text("team_credits.txt", credit_courses(30, 3000, Sharers::kTeam));
  expect_text("tenant_credits.txt", credit_courses(30, 3000, Sharers::kTenants));
}

}  // namespace shared_credit_simulation_test
}  // namespace gdx::sim
