// The rate machine against the paper's equations, computed here by hand.
#include "driver-shim/softhca/transport/dcqcn.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace gdx::softhca::transport {
namespace dcqcn_test {

constexpr std::uint64_t kStart = 1'000'000'000;
constexpr double kG = 1.0 / 256;
constexpr std::uint64_t kPeriod = 55'000;

DcqcnConfig at_40g() {
  DcqcnConfig config;
  config.line_rate_gbps = 40;
  return config;
}

TEST(Dcqcn, without_notifications_has_no_limit) {
  Dcqcn flow(at_40g());
  flow.on_sent(1 << 30);
  flow.advance(kStart);
  EXPECT_FALSE(flow.limited());
  EXPECT_EQ(flow.rate_gbps(), 40);
}

TEST(Dcqcn, notifications_cut_by_half_of_alpha) {
  Dcqcn flow(at_40g());
  flow.on_notification(kStart);
  EXPECT_DOUBLE_EQ(flow.rate_gbps(), 20) << "alpha is 1 at first";
  EXPECT_DOUBLE_EQ(flow.target_gbps(), 40);
  EXPECT_DOUBLE_EQ(flow.alpha(), 1);
  flow.on_notification(kStart + 50'000);
  EXPECT_DOUBLE_EQ(flow.rate_gbps(), 10);
  EXPECT_DOUBLE_EQ(flow.target_gbps(), 20);
}

TEST(Dcqcn, alpha_decays_by_its_gain_each_period_and_grows_with_a_notification) {
  Dcqcn flow(at_40g());
  flow.on_notification(kStart);
  flow.advance(kStart + kPeriod - 1);
  EXPECT_DOUBLE_EQ(flow.alpha(), 1);
  flow.advance(kStart + 3 * kPeriod);
  const double decayed = std::pow(1 - kG, 3);
  EXPECT_DOUBLE_EQ(flow.alpha(), decayed);
  const double before = flow.rate_gbps();
  flow.on_notification(kStart + 3 * kPeriod + 10);
  EXPECT_DOUBLE_EQ(flow.rate_gbps(), before * (1 - decayed / 2));
  EXPECT_DOUBLE_EQ(flow.alpha(), (1 - kG) * decayed + kG);
}

TEST(Dcqcn, fast_recovery_halves_the_gap_and_leaves_the_target) {
  Dcqcn flow(at_40g());
  flow.on_notification(kStart);
  flow.on_notification(kStart + 1);  // 10, target 20
  double rate = 10;
  for (std::uint64_t step = 1; step < 5; ++step) {
    flow.advance(kStart + 1 + step * kPeriod);
    rate = (rate + 20) / 2;
    EXPECT_DOUBLE_EQ(flow.rate_gbps(), rate) << "step " << step;
    EXPECT_DOUBLE_EQ(flow.target_gbps(), 20);
  }
}

TEST(Dcqcn, fifth_timer_step_begins_additive_increase) {
  Dcqcn flow(at_40g());
  flow.on_notification(kStart);
  flow.on_notification(kStart);
  flow.advance(kStart + 4 * kPeriod);
  EXPECT_DOUBLE_EQ(flow.target_gbps(), 20);
  flow.advance(kStart + 7 * kPeriod);
  EXPECT_NEAR(flow.target_gbps(), 20 + 3 * 0.04, 1e-9);
}

TEST(Dcqcn, hyper_increase_needs_more_than_five_steps_of_both) {
  Dcqcn flow(at_40g());
  flow.on_notification(kStart);
  flow.on_notification(kStart);
  flow.on_sent(50'000'000);  // five steps of the byte counter: the fifth is additive
  EXPECT_NEAR(flow.target_gbps(), 20.04, 1e-9);
  flow.advance(kStart + 6 * kPeriod);
  EXPECT_NEAR(flow.target_gbps(), 20.04 + 6 * 0.04, 1e-9) << "additive, as long as the counter has five";
  flow.on_sent(9'999'999);
  EXPECT_NEAR(flow.target_gbps(), 20.28, 1e-9);
  flow.on_sent(1);
  EXPECT_NEAR(flow.target_gbps(), 20.28 + 0.4, 1e-9) << "both have six";
}

// Far from the line's rate, or its cap would hide an increase.
TEST(Dcqcn, notification_starts_the_recovery_anew) {
  Dcqcn flow(at_40g());
  for (int i = 0; i < 3; ++i) flow.on_notification(kStart);
  flow.on_sent(60'000'000);
  flow.advance(kStart + 7 * kPeriod);
  flow.on_notification(kStart + 7 * kPeriod);
  const double target = flow.target_gbps();
  EXPECT_LT(target, 20);
  flow.on_sent(9'999'999);
  flow.advance(kStart + 11 * kPeriod);
  EXPECT_DOUBLE_EQ(flow.target_gbps(), target) << "four steps of fast recovery";
  EXPECT_TRUE(flow.limited());
}

TEST(Dcqcn, each_of_timer_and_byte_counter_starts_anew) {
  for (const bool by_time : {true, false}) {
    Dcqcn flow(at_40g());
    for (int i = 0; i < 3; ++i) flow.on_notification(kStart);
    if (by_time) {
      flow.advance(kStart + 7 * kPeriod);
    } else {
      flow.on_sent(60'000'000);
    }
    const std::uint64_t now_ns = kStart + 7 * kPeriod;
    flow.on_notification(now_ns);
    const double target = flow.target_gbps();
    if (by_time) {
      flow.on_sent(40'000'000);
    } else {
      flow.advance(now_ns + 4 * kPeriod);
    }
    EXPECT_DOUBLE_EQ(flow.target_gbps(), target) << by_time;
  }
}

TEST(Dcqcn, notification_starts_both_timers_and_the_byte_count_anew) {
  Dcqcn flow(at_40g());
  for (int i = 0; i < 3; ++i) flow.on_notification(kStart);
  flow.advance(kStart + 3 * kPeriod);
  flow.on_sent(9'999'999);
  const std::uint64_t now_ns = kStart + 3 * kPeriod + kPeriod / 2;
  flow.on_notification(now_ns);
  const double alpha = flow.alpha();
  const double rate = flow.rate_gbps();
  flow.on_sent(1);
  flow.advance(now_ns + kPeriod - 1);
  EXPECT_DOUBLE_EQ(flow.alpha(), alpha);
  EXPECT_DOUBLE_EQ(flow.rate_gbps(), rate);
  flow.advance(now_ns + kPeriod);
  EXPECT_LT(flow.alpha(), alpha);
  EXPECT_GT(flow.rate_gbps(), rate);
}

TEST(Dcqcn, notification_comes_after_the_timers_that_were_due) {
  Dcqcn late(at_40g());
  Dcqcn in_time(at_40g());
  const std::uint64_t now_ns = kStart + 3 * kPeriod;
  for (Dcqcn* flow : {&late, &in_time}) flow->on_notification(kStart);
  in_time.advance(now_ns);
  for (Dcqcn* flow : {&late, &in_time}) flow->on_notification(now_ns);
  EXPECT_DOUBLE_EQ(late.rate_gbps(), in_time.rate_gbps());
  EXPECT_DOUBLE_EQ(late.target_gbps(), in_time.target_gbps());
  EXPECT_DOUBLE_EQ(late.alpha(), in_time.alpha());
}

TEST(Dcqcn, recovered_flow_is_free_and_forgets) {
  Dcqcn flow(at_40g());
  flow.on_notification(kStart);
  std::uint64_t now_ns = kStart;
  double last = flow.rate_gbps();
  while (flow.limited()) {
    now_ns += kPeriod;
    flow.advance(now_ns);
    ASSERT_GE(flow.rate_gbps(), last);
    last = flow.rate_gbps();
    ASSERT_LT(now_ns, kStart + 10 * kPeriod) << "the ninth halving leaves less than a thousandth";
  }
  EXPECT_EQ(flow.rate_gbps(), 40);
  flow.on_notification(now_ns);
  EXPECT_DOUBLE_EQ(flow.rate_gbps(), 20);
}

TEST(Dcqcn, a_long_time_asleep_is_caught_up_with_at_once) {
  Dcqcn flow;
  for (int i = 0; i < 100; ++i) flow.on_notification(kStart);
  flow.advance(kStart + 3'600'000'000'000);
  EXPECT_FALSE(flow.limited());
}

TEST(Dcqcn, any_order_of_events_stays_between_minimum_and_line_rate) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Dcqcn flow(at_40g());
    std::uint64_t now_ns = kStart;
    for (int i = 0; i < 20'000; ++i) {
      now_ns += random() % 100'000;
      flow.advance(now_ns);
      switch (random() % 4) {
        case 0: flow.on_notification(now_ns); break;
        case 1: flow.on_sent(random() % 5'000'000); break;
        default: break;
      }
      ASSERT_GE(flow.rate_gbps(), 0.01);
      ASSERT_LE(flow.rate_gbps(), 40);
      ASSERT_LE(flow.target_gbps(), 40);
      ASSERT_GT(flow.alpha(), 0);
      ASSERT_LE(flow.alpha(), 1);
    }
  }
}

}  // namespace dcqcn_test
}  // namespace gdx::softhca::transport
