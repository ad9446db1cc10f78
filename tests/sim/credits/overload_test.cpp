#include "tests/sim/credits/overload.h"

#include <gtest/gtest.h>

#include <ostream>

namespace gdx::sim {

// GoogleTest would print bytes, padding among them, which is another in every build; test names have this.
void PrintTo(const OverloadCase& shape, std::ostream* out) {
  *out << shape.senders << "_senders_push_" << shape.overload << "_links";
}

namespace overload_test {

class Overload : public ::testing::TestWithParam<OverloadCase> {};

// The bars of the experiment. Virtual time: the same figures everywhere.
TEST_P(Overload, with_credits_nothing_is_dropped_and_nobody_starves) {
  const OverloadResult result = run_overload(GetParam());
  EXPECT_EQ(result.dropped, 0u);
  EXPECT_EQ(result.damaged, 0u);
  EXPECT_GE(result.goodput, 0.95);
  EXPECT_LE(result.goodput, 1.0);
  EXPECT_GE(result.worst_share, 0.9);
}

TEST_P(Overload, without_credits_a_nic_that_drops_lets_a_silent_peer_starve_the_rest) {
  OverloadCase shape = GetParam();
  shape.staging = Staging::kTailDrop;
  const OverloadResult result = run_overload(shape);
  EXPECT_GT(result.dropped, 1'000u);
  EXPECT_EQ(result.damaged, 0u);
  EXPECT_LT(result.worst_share, 0.9);
}

TEST_P(Overload, without_credits_plain_slots_send_what_others_stored) {
  OverloadCase shape = GetParam();
  shape.staging = Staging::kOverwrite;
  const OverloadResult result = run_overload(shape);
  EXPECT_GT(result.dropped, 1'000u);
  EXPECT_GT(result.damaged, 1'000u);
  EXPECT_LT(result.goodput, 0.95);
}

// Among as many senders as endpoints an equal part does as well as credits: they pay elsewhere.
TEST_P(Overload, an_even_partition_serves_even_load_as_well) {
  OverloadCase shape = GetParam();
  const OverloadResult credits = run_overload(shape);
  shape.staging = Staging::kPartition;
  const OverloadResult partition = run_overload(shape);
  EXPECT_EQ(partition.dropped + partition.damaged, 0u);
  EXPECT_NEAR(partition.goodput, credits.goodput, 0.02);
  EXPECT_NEAR(partition.worst_share, credits.worst_share, 0.02);
}

TEST_P(Overload, pull_with_a_window_serves_even_load_as_well) {
  OverloadCase shape = GetParam();
  shape.staging = Staging::kPull;
  const OverloadResult result = run_overload(shape);
  EXPECT_EQ(result.dropped + result.damaged, 0u);
  EXPECT_GE(result.goodput, 0.95);
  EXPECT_GE(result.worst_share, 0.9);
}

TEST(OverloadUneven, a_lone_sender_of_many_endpoints_fills_the_link_by_credits_and_not_by_a_partition) {
  OverloadCase shape{.senders = 1, .overload = 8, .endpoints = 16, .has_silent_peer = false};
  EXPECT_GE(run_overload(shape).goodput, 0.95);
  shape.staging = Staging::kPartition;
  EXPECT_LT(run_overload(shape).goodput, 0.5);
}

// Each of as many endpoints as slots has its minimum, and so nothing is left to grow into.
TEST(OverloadUneven, a_lone_sender_of_as_many_endpoints_as_slots_has_one_slot_either_way) {
  OverloadCase shape{.senders = 1, .overload = 8, .endpoints = kOverloadSlots, .has_silent_peer = false};
  const OverloadResult credits = run_overload(shape);
  shape.staging = Staging::kPartition;
  EXPECT_NEAR(credits.goodput, run_overload(shape).goodput, 0.02);
  EXPECT_LT(credits.goodput, 0.2);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Overload,
                         ::testing::Values(OverloadCase{4, 2}, OverloadCase{4, 8}, OverloadCase{8, 4},
                                           OverloadCase{16, 2}, OverloadCase{16, 8}));

}  // namespace overload_test
}  // namespace gdx::sim
