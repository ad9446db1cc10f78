#include "driver-shim/softhca/uverbs/idle_policy.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace gdx::softhca::uverbs {
namespace idle_policy_test {

constexpr std::uint64_t kWorkedNs = 7'000'000'000;
constexpr std::uint64_t kIdleNs = kWorkedNs + kLingerNs;  // the first time when a sleep is due
constexpr std::uint64_t kRangNs = kWorkedNs - 1;

TEST(IdlePolicy, after_work_looks_again_then_yields_then_sleeps) {
  IdlePolicy policy;
  policy.on_work(kWorkedNs);
  EXPECT_EQ(policy.on_idle(kWorkedNs + kPatienceNs, kRangNs).kind, Pause::Kind::kNone);
  EXPECT_EQ(policy.on_idle(kWorkedNs + kPatienceNs + 1, kRangNs).kind, Pause::Kind::kYield);
  EXPECT_EQ(policy.on_idle(kIdleNs - 1, kRangNs).kind, Pause::Kind::kYield);
  EXPECT_EQ(policy.on_idle(kIdleNs, kRangNs).kind, Pause::Kind::kSleep);
}

TEST(IdlePolicy, yield_that_took_long_sleeps_instead_for_a_while) {
  IdlePolicy policy;
  policy.on_work(kWorkedNs);
  policy.on_yielded(kWorkedNs, kLongYieldNs - 1);
  EXPECT_EQ(policy.on_idle(kWorkedNs + kPatienceNs + 1, kRangNs).kind, Pause::Kind::kYield);
  policy.on_yielded(kWorkedNs, kLongYieldNs);
  const Pause pause = policy.on_idle(kWorkedNs + kPatienceNs + 1, kRangNs);
  EXPECT_EQ(pause.kind, Pause::Kind::kSleep);
  EXPECT_EQ(pause.longest_ns, kShortestSleepNs);
  const std::uint64_t later_ns = kWorkedNs + kNoYieldsNs;
  policy.on_work(later_ns);
  EXPECT_EQ(policy.on_idle(later_ns + kPatienceNs + 1, later_ns).kind, Pause::Kind::kYield);
}

TEST(IdlePolicy, nothing_done_yet_sleeps_at_once) {
  IdlePolicy policy;
  EXPECT_EQ(policy.on_idle(kPatienceNs, 0).kind, Pause::Kind::kSleep)
      << "on a machine that has just started too";
}

TEST(IdlePolicy, rung_lately_sleeps_shortly_then_longer) {
  IdlePolicy policy;
  policy.on_work(kWorkedNs);
  for (int sleep = 0; sleep < kShortSleeps; ++sleep) {
    ASSERT_EQ(policy.on_idle(kIdleNs, kRangNs).longest_ns, kShortestSleepNs) << sleep;
  }
  EXPECT_EQ(policy.on_idle(kIdleNs, kRangNs).longest_ns, 2 * kShortestSleepNs);
  for (int sleep = kShortSleeps + 1; sleep < kShortSleeps + kLongSleeps; ++sleep) {
    ASSERT_LE(policy.on_idle(kIdleNs, kRangNs).longest_ns, kLongSleepNs) << sleep;
  }
  for (int sleep = 0; sleep < 2; ++sleep) static_cast<void>(policy.on_idle(kIdleNs, kRangNs));
  for (int sleep = 2; sleep < kDeepSleeps; ++sleep) {
    ASSERT_EQ(policy.on_idle(kIdleNs, kRangNs).longest_ns, kDeepSleepNs) << sleep;
  }
  for (int sleep = 0; sleep < 2; ++sleep) static_cast<void>(policy.on_idle(kIdleNs, kRangNs));
  EXPECT_EQ(policy.on_idle(kIdleNs, kRangNs).longest_ns, kDeepestSleepNs);
  EXPECT_EQ(policy.on_idle(kIdleNs, kRangNs).longest_ns, kDeepestSleepNs) << "and no longer";
}

TEST(IdlePolicy, thread_that_was_roused_once_sleeps_for_longer) {
  IdlePolicy policy;
  policy.on_roused(kWorkedNs);
  std::uint64_t longest_ns = 0;
  for (int sleep = 0; sleep < 2 * (kShortSleeps + kLongSleeps + kDeepSleeps); ++sleep) {
    const std::uint64_t sleep_ns = policy.on_idle(kIdleNs, kRangNs).longest_ns;
    ASSERT_LE(sleep_ns, std::max(2 * longest_ns, kShortestSleepNs)) << sleep;
    longest_ns = sleep_ns;
  }
  EXPECT_EQ(longest_ns, kRousableSleepNs);
  policy.on_roused(kWorkedNs);
  EXPECT_EQ(policy.on_idle(kIdleNs, kRangNs).longest_ns, kShortestSleepNs);
}

TEST(IdlePolicy, work_after_deep_sleep_starts_over) {
  IdlePolicy policy;
  for (int sleep = 0; sleep < 2 * (kShortSleeps + kLongSleeps + kDeepSleeps); ++sleep) {
    static_cast<void>(policy.on_idle(kIdleNs, kRangNs));
  }
  policy.on_work(kWorkedNs);
  EXPECT_EQ(policy.on_idle(kIdleNs, kRangNs).longest_ns, kShortestSleepNs);
}

TEST(IdlePolicy, packets_without_doorbells_sleeps_long) {
  IdlePolicy policy;
  policy.on_work(kWorkedNs);
  EXPECT_EQ(policy.on_idle(kIdleNs, 0).longest_ns, kLongSleepNs) << "nobody has ever rung";
  policy.on_work(kRangNs + kRingsNs);
  EXPECT_EQ(policy.on_idle(kRangNs + kRingsNs + kLingerNs, kRangNs).longest_ns, kLongSleepNs)
      << "too long ago";
}

TEST(IdlePolicy, rung_again_sleeps_shortly_again) {
  IdlePolicy policy;
  policy.on_work(kWorkedNs);
  static_cast<void>(policy.on_idle(kIdleNs, 0));
  policy.on_work(kWorkedNs);
  EXPECT_EQ(policy.on_idle(kIdleNs, kWorkedNs).longest_ns, kShortestSleepNs);
}

}  // namespace idle_policy_test
}  // namespace gdx::softhca::uverbs
