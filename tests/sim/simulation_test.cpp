// A slice of the seeds; `./run sim` runs any of them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "tests/expected_text.h"
#include "tests/sim/world.h"

namespace gdx::sim {
namespace simulation_test {

constexpr SeedRange kSlice{1, 3000};
// Seeds, among two million, whose link loses every try: retries may run out.
constexpr std::array<std::uint64_t, 2> kUnlucky{308034638, 1050909373};
// Seeds, among seven million, in which an answer about receives is overtaken: a refusal behind READ responses
// sent after its decision. Or the requester may not take the refusal, because a response before it is late.
// In the last four it is in flight when the requester may ask for a receive.
constexpr std::array<std::uint64_t, 8> kOvertaken{7301671263, 7302084598, 7302129320, 7303799648,
                                                  7306905083, 7307404887, 67321613,   67421652};

TEST(Simulation, any_seed_keeps_every_promise) {
  const Report<Outcome> report = run_seeds(kSlice, 2, run);
  ASSERT_EQ(report.failure.problem, "")
      << report.failure.scenario << "; replay: ./run sim --seeds " << report.seed;
  // A world in which nothing goes wrong proves nothing.
  const Outcome& sum = report.sum;
  SCOPED_TRACE(summary(report));
  EXPECT_EQ(report.seeds, kSlice.last);
  EXPECT_GT(sum.calm, 30u) << "judged whole";
  EXPECT_GT(sum.dropped, 0u);
  EXPECT_GT(sum.damaged, 0u);
  EXPECT_GT(sum.repeated, 0u);
  EXPECT_GT(sum.delayed, 0u);
  EXPECT_GT(sum.pauses, 0u);
  EXPECT_GT(sum.deaths, 0u);
  EXPECT_GT(sum.timeouts, 0u);
  EXPECT_GT(sum.sequence_naks, 0u);
  EXPECT_GT(sum.receiver_not_ready, 0u);
  EXPECT_GT(sum.credit_waits, 0u);
  EXPECT_GT(sum.credit_probes, 0u);
  EXPECT_GT(sum.credit_updates, 0u);
  EXPECT_GT(sum.failures, 0u);
  EXPECT_GT(sum.rnr_exhausted, 0u);
  EXPECT_GT(sum.retries_exhausted, 0u);
  EXPECT_GT(sum.failed_tries, 10'000u);
  EXPECT_EQ(sum.unexplained_tries, 0u) << "each has its lost or late packet";
  EXPECT_GT(sum.lost_tails, 100u);
  EXPECT_LE(100 * sum.late_tails, sum.lost_tails) << "99 of 100 lost tails are back within 100 ms";
  EXPECT_GT(sum.loose_deliveries, 0u);
}

TEST(Simulation, retries_that_the_link_used_up_are_no_alarm) {
  for (const std::uint64_t seed : kUnlucky) {
    const Outcome outcome = run(seed);
    EXPECT_EQ(outcome.problem, "") << "seed " << seed;
    EXPECT_EQ(outcome.retries_exhausted, 1u) << "seed " << seed;
  }
}

TEST(Simulation, overtaken_answers_about_receives_are_no_alarm) {
  for (const std::uint64_t seed : kOvertaken) EXPECT_EQ(run(seed).problem, "") << "seed " << seed;
}

TEST(Simulation, number_of_threads_changes_nothing) {
  EXPECT_EQ(summary(run_seeds({1, 50}, 1, run)), summary(run_seeds({1, 50}, 3, run)));
}

TEST(Simulation, seed_ranges_are_read_strictly) {
  EXPECT_EQ(parse_seeds("7")->last, 7u);
  EXPECT_EQ(parse_seeds("7..9")->first, 7u);
  EXPECT_EQ(parse_seeds("7..9")->last, 9u);
  for (const char* text : {"", "..", "7..", "..9", "9..7", "7...9", "-1", "7..9x", "99999999999999999999"}) {
    EXPECT_FALSE(parse_seeds(text)) << text;
  }
}

TEST(Simulation, packets_and_mendings_by_seed_are_as_expected) {
  const auto tell = [](const Outcome& outcome) {
    return fmt::format("{:016x}; {} {} {} {} {} {} {}", outcome.digest, outcome.packets,
                       outcome.retransmitted, outcome.timeouts, outcome.sequence_naks,
                       outcome.receiver_not_ready, outcome.completions, outcome.failures);
  };
  expect_text("packets.txt",
              courses("digest of all packets; packets retransmitted timeouts NAKs RNR completions failures",
                      200, run, tell));
}

}  // namespace simulation_test
}  // namespace gdx::sim
