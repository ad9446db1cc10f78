#include "host/programs/bench/peers.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "host/programs/bench/formats.h"
#include "tests/unit/bench/sample_journal.h"

namespace gdx::bench {
namespace peers_test {

using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;

// Of perftest 4.5, whose figures are separated by blanks and tabs.
constexpr char kLatencyColumns[] =
    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   "
    "99% "
    "percentile[usec]   99.9% percentile[usec] \n";
constexpr char kBandwidthColumns[] =
    " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n";

constexpr char kPingpongColumns[] =
    "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n";

PeerRun run_of(const std::string& program, const Case& item = {}) { return {program, item, {"-s", "8"}}; }

TEST(Perftest, latency_is_read) {
  const std::string text = std::string("---\n TX depth : 1\n---\n") + kLatencyColumns +
                           " 64      1000         2.40           14.81        4.28 \t       4.71     "
                           "\t0.36\t\t7.81 \t\t14.25\n---\n";
  const auto figures = parse_peer(run_of("ib_write_lat"), text);
  ASSERT_TRUE(figures);
  EXPECT_EQ(figures->bytes, 64u);
  EXPECT_EQ(figures->iterations, 1000u);
  EXPECT_EQ(figures->us, 4.28);
  EXPECT_EQ(figures->p99_us, 7.81);
  EXPECT_EQ(figures->p99_9_us, 14.25);
}

// Of small messages the rate has more digits, of large ones the bandwidth: 64 MiB at 0.000009 Mpps are two.
TEST(Perftest, bandwidth_is_read_to_the_most_digits) {
  const auto small = parse_peer(
      run_of("ib_write_bw"),
      std::string(kBandwidthColumns) + " 8       100              1.30             1.23   \t\t   0.161234\n");
  ASSERT_TRUE(small);
  EXPECT_EQ(small->bytes, 8u);
  EXPECT_NEAR(small->messages_per_s, 161'234, 1e-6);
  const auto large = parse_peer(
      run_of("ib_write_bw"), std::string(kBandwidthColumns) +
                                 " 67108864   20               600.00           595.84    \t   0.000009\n");
  ASSERT_TRUE(large);
  EXPECT_NEAR(large->messages_per_s, 595.84 / 64, 1e-9);
}

TEST(Perftest, output_without_figures_gives_none) {
  for (const std::string& text :
       {std::string(), std::string("Couldn't connect to 127.0.0.1:18515\n"), std::string(kLatencyColumns),
        kLatencyColumns + std::string("---\n"), kLatencyColumns + std::string(" 8 100 1.0\n"),
        std::string(" 8 100 1 2 3\n")}) {
    for (const char* const program : {"ib_write_lat", "ucx_perftest", "fi_pingpong"})
      EXPECT_FALSE(parse_peer(run_of(program), text)) << program << ": " << text;
  }
}

// The layout that gdx prints is one that this parser reads, and the other way round.
TEST(Perftest, own_layout_is_read) {
  auto document = sample_document();
  for (const char* const quantile : {"p99", "p99_9"}) document["rows"][0]["latency_us"][quantile] = 2.14;
  const auto figures = parse_peer(run_of("ib_write_lat"), perftest(document));
  ASSERT_TRUE(figures);
  EXPECT_EQ(figures->bytes, 8u);
  EXPECT_EQ(figures->us, 2.08);
}

// ucx_perftest -f prints a line each second without more, and the last one counts.
TEST(Ucx, last_line_is_read) {
  const Case item{.bytes = 8};
  const auto figures =
      parse_peer(run_of("ucx_perftest", item),
                 "[1234] UCX WARN something\n     100     9.9   9.9   9.9   1.00   1.00   1   1\n"
                 "     200    15.337    15.9    16.1       0.47       0.48      62500      62893\n");
  ASSERT_TRUE(figures);
  EXPECT_EQ(figures->iterations, 200u);
  EXPECT_EQ(figures->us, 15.337);
  EXPECT_NEAR(figures->messages_per_s, 62'893, 1e-6);
}

TEST(Libfabric, row_of_units_is_read) {
  const Case item{.bytes = 4096};
  const auto figures =
      parse_peer(run_of("fi_pingpong", item),
                 std::string(kPingpongColumns) +
                     "4k      20      =20      160k        0.00s     95.34      42.96       0.02\n");
  ASSERT_TRUE(figures);
  EXPECT_EQ(figures->bytes, 4096u);
  EXPECT_EQ(figures->iterations, 20u);
  EXPECT_EQ(figures->us, 42.96);
}

TEST(Libfabric, counts_of_thousands_shift_no_column) {
  const auto figures =
      parse_peer(run_of("fi_pingpong", {.bytes = 64}),
                 std::string(kPingpongColumns) +
                     "64      1k      =1k      125k        0.07s      1.81      35.29       0.03\n");
  ASSERT_TRUE(figures);
  EXPECT_EQ(figures->iterations, 1000u);
  EXPECT_EQ(figures->us, 35.29);
  EXPECT_EQ(
      parse_peer(run_of("fi_pingpong"), std::string(kPingpongColumns) + "1 2m =2m 2m 0.07s 1.81 35.29 0.03\n")
          ->iterations,
      2'000'000u);
  EXPECT_FALSE(parse_peer(run_of("fi_pingpong"), std::string(kPingpongColumns) + "64 1k =1k 125k 0.07s\n"));
  EXPECT_FALSE(
      parse_peer(run_of("fi_pingpong"), std::string(kPingpongColumns) + "1 2m =2m 2m 0.07s 1.81 x 0.03\n"));
}

std::vector<std::string> commands_of(const Plan& plan, const std::string& program) {
  std::vector<std::string> commands;
  for (const PeerRun& run : peer_runs(plan, *cases_of(plan))) {
    if (run.program.starts_with(program)) commands.push_back(peer_command(run, {"gdx0", 3}, 7, "10.0.0.1"));
  }
  return commands;
}

TEST(Peers, those_that_match_the_plan_are_run) {
  Plan plan;
  plan.tests = {"put_lat", "put_bw", "put_signal_lat", "fetch_add_lat"};
  plan.sizes_bytes = {8, 1 << 20};
  plan.depths = {32};
  EXPECT_THAT(commands_of(plan, ""), ElementsAre());
  plan.peers = true;
  EXPECT_THAT(commands_of(plan, "ib_"),
              ElementsAre("ib_write_bw -d gdx0 -x 3 -p 7 -F -n 1000 -s 8 -t 32 -Q 32 10.0.0.1",
                          "ib_write_bw -d gdx0 -x 3 -p 7 -F -n 160 -s 1048576 -t 32 -Q 32 10.0.0.1",
                          "ib_write_lat -d gdx0 -x 3 -p 7 -F -n 200 -s 8 -I 0 10.0.0.1",
                          "ib_write_lat -d gdx0 -x 3 -p 7 -F -n 20 -s 1048576 -I 0 10.0.0.1",
                          "ib_atomic_lat -d gdx0 -x 3 -p 7 -F -n 200 -A FETCH_AND_ADD 10.0.0.1"));
  EXPECT_THAT(commands_of(plan, "fi_"),
              ElementsAre("fi_pingpong -d gdx0 -p verbs -e msg -I 200 -S 8 -P 7 10.0.0.1",
                          "fi_pingpong -d gdx0 -p verbs -e msg -I 20 -S 1048576 -P 7 10.0.0.1"));
  EXPECT_EQ(commands_of(plan, "ucx_").size(), 5u);
  EXPECT_THAT(commands_of(plan, "ucx_")[0], HasSubstr(" 10.0.0.1 -t ucp_put_bw -n 1000 -s 8 -O 32 -f"));
}

// Of each program: which test it runs, and how often.
TEST(Peers, each_benchmark_has_the_programs_that_do_the_same) {
  Plan plan;
  plan.peers = true;
  plan.ways = {"pull"};
  plan.tests = all_tests();
  plan.sizes_bytes = {16 << 20};
  std::vector<std::string> told;
  for (const PeerRun& run : peer_runs(plan, *cases_of(plan)))
    told.push_back(fmt::format("{} {}", run.program, fmt::join(run.options, " ")));
  EXPECT_THAT(
      told,
      ElementsAre(
          "ib_write_lat -F -n 20 -s 16777216 -I 0", "ucx_perftest -t ucp_put_lat -n 20 -s 16777216 -O 1",
          "ib_read_lat -F -n 20 -s 16777216", "ucx_perftest -t ucp_get -n 20 -s 16777216 -O 1",
          "ib_atomic_lat -F -n 200 -A FETCH_AND_ADD", "ucx_perftest -t ucp_fadd -n 200 -s 8 -O 1",
          "ib_write_bw -F -n 80 -s 16777216 -t 16 -Q 16",
          "ucx_perftest -t ucp_put_bw -n 80 -s 16777216 -O 16", "ib_read_bw -F -n 80 -s 16777216 -t 16 -Q 16",
          "ucx_perftest -t ucp_get -n 80 -s 16777216 -O 16",
          "ib_atomic_bw -F -n 1000 -A FETCH_AND_ADD -t 16 -Q 16",
          "ucx_perftest -t ucp_fadd -n 1000 -s 8 -O 16"));
  plan.tests = {"put_signal_lat"};
  plan.sizes_bytes = {8 << 20};
  EXPECT_EQ(commands_of(plan, "fi_").size(), 1u);
}

TEST(Peers, both_ends_of_each_program_have_their_command_line) {
  const auto command = [](const char* program, const char* host) {
    return peer_command(run_of(program), {"gdx0", 3}, 7, host);
  };
  EXPECT_EQ(command("ib_write_lat", ""), "ib_write_lat -d gdx0 -x 3 -p 7 -s 8 ");
  EXPECT_EQ(command("ib_write_lat", "h"), "ib_write_lat -d gdx0 -x 3 -p 7 -s 8 h");
  EXPECT_EQ(command("fi_pingpong", ""), "fi_pingpong -d gdx0 -s 8 -B 7 ");
  EXPECT_EQ(command("fi_pingpong", "h"), "fi_pingpong -d gdx0 -s 8 -P 7 h");
  const std::string ucx =
      "env UCX_NET_DEVICES=gdx0:1 UCX_IB_GID_INDEX=3 UCX_TLS=rc ucx_perftest $(ucx_perftest -h | grep -q -- "
      "\"-P <0|1>\" && echo -P 0) -p 7";
  EXPECT_EQ(command("ucx_perftest", ""), ucx);
  EXPECT_EQ(command("ucx_perftest", "h"), ucx + " h -s 8 -f");
  EXPECT_EQ(package_of("ib_read_bw"), "perftest");
  EXPECT_EQ(package_of("ucx_perftest"), "ucx-utils");
  EXPECT_EQ(package_of("fi_pingpong"), "libfabric-bin");
}

// The other rank's address becomes part of a command.
TEST(Peers, address_is_one_word_to_a_shell) {
  for (const char* const good : {"10.0.0.1", "fe80::1%eth0", "node-1.example"})
    EXPECT_TRUE(is_address(good)) << good;
  for (const char* const bad : {"", "10.0.0.1; true", "$(true)", "a b", "a\n", "-h", "a'b", "\xc3\xa4"})
    EXPECT_FALSE(is_address(bad)) << bad;
}

// Depth, endpoints, batch and direction are those of the rows beside which a peer stands.
TEST(Peers, have_the_conditions_of_the_rows_beside_them) {
  Plan plan;
  plan.peers = true;
  plan.tests = {"put_bw", "put_signal_lat"};
  plan.sizes_bytes = {64};
  plan.scopes = {"warp", "block"};
  plan.endpoints = {1, 4};
  plan.depths = {16, 64};
  plan.batches = {3};
  plan.both_ways = true;
  plan.messages = 100;
  EXPECT_THAT(commands_of(plan, "ib_"),
              ElementsAre("ib_write_bw -d gdx0 -x 3 -p 7 -F -n 102 -s 64 -t 16 -l 3 -b 10.0.0.1",
                          "ib_write_bw -d gdx0 -x 3 -p 7 -F -n 321 -s 64 -t 64 -l 3 -b 10.0.0.1",
                          "ib_write_bw -d gdx0 -x 3 -p 7 -F -n 102 -s 64 -t 16 -q 4 -l 3 -b 10.0.0.1",
                          "ib_write_bw -d gdx0 -x 3 -p 7 -F -n 321 -s 64 -t 64 -q 4 -l 3 -b 10.0.0.1",
                          "ib_write_lat -d gdx0 -x 3 -p 7 -F -n 100 -s 64 -I 0 10.0.0.1"));
  EXPECT_EQ(commands_of(plan, "ucx_").size(), 1u) << "the latency of one endpoint";
}

TEST(Peers, take_turns_with_the_cases_beside_them) {
  Plan plan;
  plan.peers = true;
  plan.tests = {"get_lat"};
  plan.ways = {"pull", "proxy"};
  plan.sizes_bytes = {8, 64};
  const auto cases = *cases_of(plan);
  auto peers = peer_runs(plan, cases);
  std::erase_if(peers, [](const PeerRun& run) { return run.program != "ib_read_lat"; });
  ASSERT_EQ(peers.size(), 2u);
  EXPECT_THAT(order_of_round(cases, peers, 1), ElementsAre(1, 4, 0, 3, 5, 2));
  EXPECT_THAT(order_of_round(cases, peers, 2), ElementsAre(4, 0, 1, 5, 2, 3));
  EXPECT_THAT(order_of_round(cases, {}, 1), ElementsAre(1, 0, 3, 2));
  plan.ways = {"pull"};
  plan.sizes_bytes = {8};
  plan.doorbells = {"plain", "blueflame"};
  const auto rung = *cases_of(plan);
  peers = peer_runs(plan, rung);
  std::erase_if(peers, [](const PeerRun& run) { return run.program != "ib_read_lat"; });
  ASSERT_EQ(peers.size(), 1u) << "a CPU's doorbells are of one kind";
  EXPECT_THAT(order_of_round(rung, peers, 1), ElementsAre(1, 2, 0));
}

TEST(Peers, rounds_become_a_labelled_row_with_a_ratio) {
  Plan plan = sample_plan();
  plan.peers = true;
  plan.tests = {"put_signal_lat"};
  plan.sizes_bytes = {8};
  std::string journal = std::string(kConditionsLine) + "\n";
  for (int round = 1; round <= 7; ++round) {
    journal += sample_line(0, round, 1000.0 * round, 1).dump() + "\n";
    auto line = to_json(PeerFigures{8, 2000, 4.0 * round, 5.0 * round, 0, 0});
    line["peer"] = 0;
    line["round"] = round;
    if (round != 2) journal += line.dump() + "\n";
  }
  const auto document = document_of(journal, plan);
  ASSERT_EQ(document["peers"].size(), 1u);
  const auto& row = document["peers"][0];
  EXPECT_EQ(row["series"], "measured on the software HCA, by a CPU: ib_write_lat -F -n 200 -s 8 -I 0");
  EXPECT_EQ(row["rounds"], 6);
  EXPECT_EQ(row["latency_us"]["low"], 4);
  EXPECT_EQ(row["latency_us"]["p99"], 22.5);
  EXPECT_TRUE(row["latency_us"]["p99_9"].is_null());
  EXPECT_TRUE(row["messages_per_s"].is_null());
  EXPECT_EQ(row["ratio_to_pull"]["says"], "4 [4, 4]");
  plan.memory = kGpuMemory;
  const auto apart = document_of(journal, plan)["peers"][0];
  EXPECT_TRUE(apart["ratio_to_pull"].is_null()) << "of payload in different memory";
  EXPECT_THAT(apart["series"].get<std::string>(), HasSubstr("HCA, payload in host memory, by a CPU"));
  EXPECT_THAT(table(document), HasSubstr("\nib_write_lat  put_signal      8 B    12000        18 "));
  EXPECT_THAT(table(document), HasSubstr("put_signal lat ib_write_lat 8 B CPU x1 depth 1 batch 1"));
  EXPECT_THAT(
      csv(document),
      HasSubstr(
          "\"measured on the software HCA, by a CPU: ib_write_lat -F -n 200 -s 8 -I 0\",\"put_signal\""));
}

// fi_pingpong tells a mean of sends and receives, which is no median of puts.
TEST(Peers, mean_of_sends_has_no_ratio) {
  Plan plan = sample_plan();
  plan.peers = true;
  plan.tests = {"put_signal_lat"};
  plan.sizes_bytes = {8};
  const auto runs = peer_runs(plan, *cases_of(plan));
  std::string journal = std::string(kConditionsLine) + "\n";
  for (int round = 1; round <= 7; ++round) {
    journal += sample_line(0, round, 1000.0 * round, 1).dump() + "\n";
    for (std::size_t peer = 0; peer < runs.size(); ++peer) {
      auto line = to_json(PeerFigures{8, 200, 4.0 * round, 0, 0, 0});
      line["peer"] = peer;
      line["round"] = round;
      journal += line.dump() + "\n";
    }
  }
  const auto document = document_of(journal, plan);
  ASSERT_EQ(document["peers"].size(), 3u);
  for (const auto& row : document["peers"])
    EXPECT_EQ(row["ratio_to_pull"].is_null(), row["mode"] == "fi_pingpong") << row;
  EXPECT_THAT(table(document), ContainsRegex("\nfi_pingpong .* 16 .* mean, send/recv\n"));
  EXPECT_EQ(document["ratios"]["count"], 2);
}

// 200 round trips tell no p99, whatever perftest prints.
TEST(Peers, quantile_of_too_few_messages_is_left_out) {
  const auto row = peer_row(run_of("ib_write_lat"), {{8, 200, 1, 2, 3, 0}}, "the software HCA");
  EXPECT_TRUE(row["latency_us"]["p99"].is_null());
}

}  // namespace peers_test
}  // namespace gdx::bench
