// From a sample to the journal, to the next sample's messages and to what a waiting user sees.
#include "host/programs/bench/rounds.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace gdx::bench {
namespace rounds_test {

TEST(SampleLine, has_each_figure_under_its_own_name) {
  Sample sample{.messages = 1,
                .elapsed_ns = 2,
                .messages_per_s = 3.5,
                .median_ns = 4.5,
                .mean_ns = 5.5,
                .mean_square_ns2 = 6.5,
                .latency_ns = {},
                .cpu_ns = {7, 8},
                .posted = 9,
                .credit_stalls = 10,
                .retransmissions = 11,
                .pcie_reads = 12,
                .pcie_record_reads = 25,
                .pcie_writes = 13,
                .checked_bytes = 14,
                .bad_bytes = 15,
                .dropped_bad_bytes = 16,
                .occupancy = {{17, 18, 19}, {20, 21, 22}}};
  sample.latency_ns.add(129, 3);
  sample.latency_ns.add(40, 2);
  EXPECT_EQ(to_json(23, 24, sample).dump(),
            R"({"case":23,"round":24,"messages":1,"elapsed_ns":2,"messages_per_s":3.5,"median_ns":4.5,)"
            R"("mean_ns":5.5,"mean_square_ns2":6.5,"least_ns":40.0,"most_ns":129.0,)"
            R"("histogram_ns":[[40,2],[128,3]],"cpu_ns":[7,8],"posted":9,"credit_stalls":10,)"
            R"("occupancy":[[17,18,19],[20,21,22]],"retransmissions":11,"pcie_reads":12,)"
            R"("pcie_record_reads":25,"pcie_writes":13,)"
            R"("checked_bytes":14,"bad_bytes":15})");
  sample.pcie_reads.reset();
  EXPECT_TRUE(to_json(0, 0, sample)["pcie_reads"].is_null());
  EXPECT_EQ(to_json(0, 0, sample)["pcie_writes"], 13);
}

Sample sample_of(std::uint64_t messages, std::uint64_t elapsed_ns) {
  Sample sample;
  sample.messages = messages;
  sample.elapsed_ns = elapsed_ns;
  return sample;
}

// 8 s for 4 cases in 3 rounds and one that is dropped: half a second each.
TEST(Budget, gives_a_sample_the_messages_that_fit_into_its_share) {
  Plan plan;
  plan.seconds = 8;
  plan.rounds = 3;
  Case one{.measure = Measure::kLatency, .endpoints = 1, .depth = 1};
  Case many{.measure = Measure::kBandwidth, .endpoints = 2, .depth = 16, .both_ways = true};
  Budget budget(plan, 4);
  const auto learned = [&](const Case& item, const Sample& sample, std::uint64_t wall_ns) {
    budget.learn(2, item, sample, wall_ns);
    return budget.messages(2);
  };
  constexpr std::uint64_t kMs = 1'000'000;
  EXPECT_EQ(budget.few(one), 4u);
  EXPECT_EQ(budget.few(many), 16u);
  EXPECT_EQ(learned(one, sample_of(100, 100 * kMs), 150 * kMs), 450u);
  EXPECT_EQ(learned(one, sample_of(100, 100 * kMs), 90 * kMs), 500u);
  EXPECT_EQ(learned(one, sample_of(100, 100 * kMs), 700 * kMs), 50u) << "a tenth at least";
  EXPECT_EQ(learned(many, sample_of(100, 100 * kMs), 100 * kMs), 125u)
      << "endpoints of both ranks send at once";
  EXPECT_EQ(learned(one, sample_of(1, 900 * kMs), 900 * kMs), 3u);
  EXPECT_EQ(learned(many, sample_of(1, 900 * kMs), 900 * kMs), 16u);
  EXPECT_EQ(learned(one, sample_of(0, 10 * kMs), 10 * kMs), 50u);
  EXPECT_EQ(learned(one, sample_of(5, 0), 0), kMostTimedMessages);
  many.depth = 30'000;
  EXPECT_EQ(learned(many, sample_of(5, 1), 1), 30'000u);
  EXPECT_EQ(budget.messages(1), 0u) << "another case's are its own";
  plan.messages = 7;
  Budget fixed(plan, 1);
  fixed.learn(0, one, sample_of(100, 100 * kMs), 100 * kMs);
  EXPECT_EQ(fixed.few(many), 7u);
  EXPECT_EQ(fixed.messages(0), 7u);
}

TEST(Meter, tells_each_tenth_once_and_no_more_than_a_line_a_second) {
  constexpr std::uint64_t kBegunMs = 5000;
  Meter meter(20, false, kBegunMs * 1'000'000);
  const auto at_ms = [&](std::uint64_t ms) {
    return meter.next((kBegunMs + ms) * 1'000'000, 2, 4, "put lat");
  };
  for (const std::uint64_t ms : {0u, 1500u, 999u})
    EXPECT_EQ(at_ms(ms), "") << "no tenth is done, or no second has passed";
  EXPECT_EQ(at_ms(1000), "gdx bench: 15 % done, round 2 of 4\n");
  EXPECT_EQ(at_ms(1999), "");
  EXPECT_EQ(at_ms(2000), "gdx bench: 25 % done, round 2 of 4\n");
  EXPECT_EQ(at_ms(3000), "gdx bench: 30 % done, round 2 of 4\n");
  EXPECT_EQ(at_ms(9000), "") << "of the same tenth";
}

TEST(Meter, on_a_terminal_is_a_bar_that_moves_with_each_item) {
  Meter meter(4, true, 0);
  EXPECT_EQ(meter.next(0, 0, 7, "put lat"), "[..............................]   0 %, round 0 of 7: put lat");
  EXPECT_EQ(meter.next(0, 1, 7, "get lat"), "[#######.......................]  25 %, round 1 of 7: get lat");
  EXPECT_EQ(meter.next(0, 2, 7, "x"), "[###############...............]  50 %, round 2 of 7: x");
  EXPECT_EQ(meter.next(0, 3, 7, "x"), "[######################........]  75 %, round 3 of 7: x");
}

}  // namespace rounds_test
}  // namespace gdx::bench
