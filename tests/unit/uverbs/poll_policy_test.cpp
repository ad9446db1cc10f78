#include "driver-shim/softhca/uverbs/poll_policy.h"

#include <gtest/gtest.h>

namespace gdx::softhca::uverbs {
namespace poll_policy_test {

// Steps in vain until a yield is due.
unsigned steps_until_due(PollPolicy& policy) {
  unsigned steps = 0;
  for (; !policy.is_due(); ++steps) policy.on_step(false);
  return steps;
}

// One wait that ends right after a yield of `took_ns`.
void wait_that_a_yield_ends(PollPolicy& policy, std::uint64_t took_ns) {
  steps_until_due(policy);
  policy.on_yielded(took_ns);
  policy.on_step(true);
}

TEST(PollPolicy, yield_that_brings_the_answer_makes_the_next_come_sooner) {
  PollPolicy policy;
  EXPECT_EQ(steps_until_due(policy), kPatience);
  wait_that_a_yield_ends(policy, kAloneNs);
  EXPECT_EQ(steps_until_due(policy), kLeastPatience);
}

TEST(PollPolicy, yield_that_brings_nothing_changes_nothing) {
  PollPolicy policy;
  steps_until_due(policy);
  policy.on_yielded(kAloneNs);
  policy.on_step(false);
  policy.on_step(true);
  EXPECT_EQ(steps_until_due(policy), kPatience);
}

TEST(PollPolicy, yield_to_nobody_proves_nothing) {
  PollPolicy policy;
  wait_that_a_yield_ends(policy, kAloneNs);
  wait_that_a_yield_ends(policy, kAloneNs - 1);
  EXPECT_EQ(steps_until_due(policy), kPatience);
}

TEST(PollPolicy, work_of_its_own_proves_nothing) {
  PollPolicy policy;
  wait_that_a_yield_ends(policy, kAloneNs);
  for (int i = 0; i < 100; ++i) policy.on_step(true);  // doorbells
  EXPECT_EQ(steps_until_due(policy), kLeastPatience);
}

TEST(PollPolicy, long_yield_makes_it_poll_on_and_longer_each_time) {
  PollPolicy policy;
  wait_that_a_yield_ends(policy, kLongYieldNs);
  for (unsigned patience = kLongPatience; patience <= kMostPatience; patience *= 2) {
    ASSERT_EQ(steps_until_due(policy), patience) << "the answer that came meanwhile proves nothing";
    policy.on_yielded(kLongYieldNs);
  }
  EXPECT_EQ(steps_until_due(policy), kMostPatience);
}

TEST(PollPolicy, load_that_has_gone_is_forgotten) {
  PollPolicy policy;
  wait_that_a_yield_ends(policy, kLongYieldNs);
  wait_that_a_yield_ends(policy, kAloneNs - 1);
  EXPECT_EQ(steps_until_due(policy), kPatience);
}

TEST(PollPolicy, peer_that_has_moved_to_another_processor_is_found_out) {
  PollPolicy policy;
  for (unsigned wait = 1; wait < kTrialEvery; ++wait) wait_that_a_yield_ends(policy, kAloneNs);
  EXPECT_EQ(steps_until_due(policy), kLeastPatience);
  policy.on_yielded(kAloneNs);
  policy.on_step(true);
  for (unsigned step = 0; step < kLeastPatience + 1; ++step) policy.on_step(false);
  EXPECT_FALSE(policy.is_due()) << "one wait of so many is patient";
  policy.on_step(true);
  EXPECT_EQ(steps_until_due(policy), kPatience);
}

}  // namespace poll_policy_test
}  // namespace gdx::softhca::uverbs
