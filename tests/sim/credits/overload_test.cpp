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

INSTANTIATE_TEST_SUITE_P(Shapes, Overload,
                         ::testing::Values(OverloadCase{4, 2}, OverloadCase{4, 8}, OverloadCase{8, 4},
                                           OverloadCase{16, 2}, OverloadCase{16, 8}));

}  // namespace overload_test
}  // namespace gdx::sim
