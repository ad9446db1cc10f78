// From a sample to the journal, to the next sample's messages and to what a waiting user sees.
#include "host/programs/bench/rounds.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

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

constexpr double kMs = 1e6;

// Estimates a case whose messages take `one_ns` and whose samples `beside_ns` more. Returns the messages
// tried.
std::vector<std::uint64_t> estimate(Budget& budget, std::size_t index, const Case& item, double one_ns,
                                    double beside_ns) {
  std::vector<std::uint64_t> tried;
  for (std::uint64_t messages = 0; (messages = budget.next(index)) != 0;) {
    Sample sample;
    sample.messages = messages * item.endpoints;
    sample.elapsed_ns = static_cast<std::uint64_t>(one_ns * static_cast<double>(messages));
    const std::uint64_t all = messages + warmup_of(messages, item.depth);
    budget.learn(index, messages, sample,
                 static_cast<std::uint64_t>(beside_ns + one_ns * static_cast<double>(all)));
    tried.push_back(messages);
    if (tried.size() > 9) break;
  }
  return tried;
}

// 8 s for 4 rounds, of which a twentieth is kept back: 1.9 s each.
TEST(Budget, gives_all_cases_their_least_and_the_rest_to_those_that_gain) {
  using Tried = std::vector<std::uint64_t>;
  Plan plan;
  plan.seconds = 8;
  plan.rounds = 4;
  const Case latency{.measure = Measure::kLatency};
  const Case bandwidth{.measure = Measure::kBandwidth, .endpoints = 2, .depth = 16};
  const Case large{.measure = Measure::kLatency, .bytes = 1 << 20};
  const Case pushed{.measure = Measure::kLatency, .way = Way::kPush, .bytes = 1 << 20};
  const std::vector<Case> cases = {latency, bandwidth, large, pushed, latency};
  Budget budget(plan, cases);
  EXPECT_EQ(estimate(budget, 0, latency, 0.001 * kMs, 0), (Tried{4, 16, 50}));
  EXPECT_EQ(estimate(budget, 1, bandwidth, kMs, 10 * kMs), (Tried{16, 64})) << "in whole windows";
  EXPECT_EQ(estimate(budget, 3, pushed, 0.001 * kMs, 0), (Tried{4, 16, 50}));
  EXPECT_EQ(estimate(budget, 2, large, 100 * kMs, 0), (Tried{4}))
      << "a sample of half of its share is enough";
  budget.divide(0);
  EXPECT_EQ(budget.messages(0), kMostTimedMessages);
  EXPECT_NEAR(static_cast<double>(budget.messages(1)), 1700, 20) << "of 1868 ms a tenth warms up";
  EXPECT_EQ(budget.messages(1) % 16, 0u);
  EXPECT_EQ(budget.messages(2), 0u) << "5.5 s";
  EXPECT_EQ(budget.messages(3), 0u) << "beside that one";
  EXPECT_EQ(budget.messages(4), 0u) << "nothing is known";
  budget.divide(8'000'000'000);
  EXPECT_EQ(budget.messages(0), kLeastTimedMessages) << "the cheapest always has a figure";
}

TEST(Budget, number_of_messages_that_was_asked_for_is_that_of_all_samples) {
  Plan plan;
  plan.messages = 7;
  const std::vector<Case> cases = {{.depth = 16}};
  Budget budget(plan, cases);
  EXPECT_EQ(estimate(budget, 0, cases[0], 900 * kMs, 0), std::vector<std::uint64_t>{7});
  budget.divide(1);
  EXPECT_EQ(budget.messages(0), 7u);
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
