#include "host/bench/peers.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "host/bench/formats.h"
#include "tests/unit/bench/sample_journal.h"

namespace gdx::bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Of perftest 4.5, whose figures are separated by blanks and tabs.
constexpr char kLatencyColumns[] =
    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   "
    "99% "
    "percentile[usec]   99.9% percentile[usec] \n";
constexpr char kBandwidthColumns[] =
    " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n";

TEST(Perftest, latency_is_read) {
  const std::string text = std::string("---\n TX depth : 1\n---\n") + kLatencyColumns +
                           " 64      1000         2.40           14.81        4.28 \t       4.71     "
                           "\t0.36\t\t7.81 \t\t14.25\n---\n";
  const auto figures = parse_perftest(text);
  ASSERT_TRUE(figures);
  EXPECT_EQ(figures->bytes, 64u);
  EXPECT_EQ(figures->us, 4.28);
  EXPECT_EQ(figures->p99_us, 7.81);
  EXPECT_EQ(figures->p99_9_us, 14.25);
}

TEST(Perftest, bandwidth_is_read) {
  const auto figures =
      parse_perftest(std::string(kBandwidthColumns) +
                     " 4096       100              830.30             817.25   \t\t   0.209216\n");
  ASSERT_TRUE(figures);
  EXPECT_EQ(figures->bytes, 4096u);
  EXPECT_NEAR(figures->messages_per_s, 209'216, 1e-6);
}

TEST(Perftest, output_without_figures_gives_none) {
  for (const std::string& text :
       {std::string(), std::string("Couldn't connect to 127.0.0.1:18515\n"), std::string(kLatencyColumns),
        kLatencyColumns + std::string("---\n"), kLatencyColumns + std::string(" 8 100 1.0\n"),
        std::string(" 8 100 1 2 3\n")})
    EXPECT_FALSE(parse_perftest(text)) << text;
}

// The layout that gdx prints is one that this parser reads, and the other way round.
TEST(Perftest, own_layout_is_read) {
  const auto figures = parse_perftest(perftest(sample_document()));
  ASSERT_TRUE(figures);
  EXPECT_EQ(figures->bytes, 8u);
  EXPECT_EQ(figures->us, 2.08);
}

TEST(Peers, those_that_match_the_plan_are_run) {
  Plan plan;
  plan.tests = {"put_lat", "put_bw", "put_signal_lat", "fetch_add_lat"};
  plan.sizes_bytes = {8, 1 << 20};
  plan.depths = {32, 64};
  std::vector<std::string> runs;
  for (const PeerRun& run : peer_runs(plan))
    runs.push_back(fmt::format("{} {}", run.program, fmt::join(run.options, " ")));
  EXPECT_THAT(runs,
              ElementsAre("ib_write_lat -F -n 200 -s 8", "ib_write_lat -F -n 20 -s 1048576",
                          "ib_atomic_lat -F -n 200 -A FETCH_AND_ADD", "ib_write_bw -F -n 1000 -s 8 -t 32",
                          "ib_write_bw -F -n 20 -s 1048576 -t 32"));
}

TEST(Peers, rounds_become_a_labelled_row) {
  auto document = sample_document();
  const PeerRun run{"ib_write_lat", Operation::kPutSignal, Measure::kLatency, 8, {"-s", "8"}};
  add_peer(document, run, {{8, 3, 5, 7, 0}, {8, 1, 4, 6, 0}, {8, 2, 6, 8, 0}}, "the software HCA");
  add_peer(document, run, {}, "the software HCA");
  ASSERT_EQ(document["peers"].size(), 1u);
  const auto& row = document["peers"][0];
  EXPECT_EQ(row["series"], "measured on the software HCA, by a CPU: ib_write_lat -s 8");
  EXPECT_EQ(row["latency_us"]["median"], 2);
  EXPECT_EQ(row["latency_us"]["low"], 1);
  EXPECT_EQ(row["latency_us"]["p99"], 5);
  EXPECT_TRUE(row["messages_per_s"].is_null());
  EXPECT_THAT(table(document), HasSubstr("\nib_write_lat   put_signal      8 B         2 "));
  EXPECT_THAT(csv(document),
              HasSubstr("\"measured on the software HCA, by a CPU: ib_write_lat -s 8\",\"put_signal\""));
}

}  // namespace
}  // namespace gdx::bench
