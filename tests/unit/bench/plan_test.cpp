#include "host/programs/bench/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

namespace gdx::bench {
namespace plan_test {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Sizes, ranges_and_lists_are_read) {
  EXPECT_THAT(*parse_sizes("8:64"), ElementsAre(8, 16, 32, 64));
  EXPECT_THAT(*parse_sizes("8:4K:16"), ElementsAre(8, 128, 2048));
  EXPECT_THAT(*parse_sizes("1M,3,4k,3"), ElementsAre(3, 4096, 1 << 20));
  EXPECT_EQ(parse_sizes("1:64M")->size(), 27u);
  EXPECT_EQ(parse_sizes("1:64M")->back(), kMaxMessageBytes);
}

TEST(Sizes, impossible_ones_are_refused) {
  for (const char* text : {"", "0", "65M", "8:", ":8", "64:8", "8:64:1", "8:64:2:2", "8,", "x", "-1",
                           "8:64:x", "18446744073709551616", "99999999999999999999M"}) {
    const auto sizes = parse_sizes(text);
    ASSERT_FALSE(sizes) << text;
    EXPECT_EQ(sizes.error().status, Status::kInvalidArgument);
    EXPECT_THAT(sizes.error().message, HasSubstr("use ")) << text;
  }
}

TEST(Plan, product_has_each_case_once) {
  Plan plan;
  plan.tests = all_tests();
  plan.ways = all_ways();
  plan.sizes_bytes = {8, 4096};
  plan.scopes = {"thread", "warp", "block"};
  plan.endpoints = {1, 4};
  plan.depths = {8, 64};
  plan.batches = {1, 8};
  const auto cases = cases_of(plan);
  ASSERT_TRUE(cases) << cases.error().message;
  std::set<std::string> keys;
  for (const Case& item : *cases) keys.insert(key_of(item));
  EXPECT_GT(cases->size(), 300u);
  EXPECT_EQ(keys.size(), cases->size());
  for (const Case& item : *cases) {
    const bool no_payload = item.operation == Operation::kGet || item.operation == Operation::kFetchAdd;
    const bool one_way = item.way == Way::kNic || item.way == Way::kProxy;
    EXPECT_TRUE(item.measure != Measure::kLatency || item.depth * item.batch == 1) << key_of(item);
    EXPECT_TRUE(!no_payload || one_way) << key_of(item);
    EXPECT_TRUE(item.operation != Operation::kFetchAdd || item.bytes == 8);
    EXPECT_LE(item.batch, item.depth);
  }
}

TEST(Plan, inline_has_sizes_up_to_the_longest_put) {
  Plan plan;
  plan.tests = {"put_lat"};
  plan.ways = {"pull", "inline"};
  plan.sizes_bytes = {4096, 4097};
  EXPECT_EQ(cases_of(plan)->size(), 3u);
  plan.ways = {"inline"};
  plan.sizes_bytes = {4097};
  EXPECT_THAT(cases_of(plan).error().message, HasSubstr("'inline': a put takes at most 4096 bytes"));
}

std::vector<std::string> keys_of(const Plan& plan) {
  const auto cases = cases_of(plan).value();
  std::vector<std::string> keys(cases.size());
  std::ranges::transform(cases, keys.begin(), key_of);
  return keys;
}

TEST(Plan, names_are_those_of_the_command_line) {
  EXPECT_THAT(all_tests(), ElementsAre("put_lat", "put_signal_lat", "get_lat", "fetch_add_lat", "put_bw",
                                       "put_signal_bw", "get_bw", "fetch_add_bw"));
  EXPECT_THAT(collective_tests(), ElementsAre("alltoall", "incast", "allreduce"));
  EXPECT_THAT(all_ways(), ElementsAre("pull", "push", "inline", "bounce", "auto", "proxy"));
}

TEST(Plan, batch_that_no_window_holds_is_refused) {
  Plan plan;
  plan.sizes_bytes = {8};
  plan.depths = {16, 4};
  plan.batches = {1, 5};
  for (const char* const without : {"put_lat", "put_signal_bw"}) {
    plan.tests = {without};
    EXPECT_TRUE(cases_of(plan)) << without;
  }
  plan.tests = {"get_bw"};
  const auto refused = cases_of(plan);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message,
            "--batch: '5': a window of --depth 4 has fewer messages: use at most 4, or a greater depth");
  plan.batches = {4};
  EXPECT_TRUE(cases_of(plan));
}

// Batches are of puts and gets, windows and both directions of bandwidth alone.
TEST(Plan, each_case_has_the_conditions_of_its_kind) {
  Plan plan;
  plan.tests = {"put_bw", "put_signal_bw", "get_bw", "fetch_add_lat", "get_lat"};
  plan.ways = {"proxy", "push"};
  plan.sizes_bytes = {32};
  plan.scopes = {"thread"};
  plan.endpoints = {3};
  plan.depths = {2};
  plan.batches = {1, 2};
  plan.both_ways = true;
  EXPECT_THAT(keys_of(plan), ElementsAre("put bw proxy 32 B thread x3 depth 2 batch 1 both ways",
                                         "put bw push 32 B thread x3 depth 2 batch 1 both ways",
                                         "put bw proxy 32 B thread x3 depth 2 batch 2 both ways",
                                         "put bw push 32 B thread x3 depth 2 batch 2 both ways",
                                         "put_signal bw proxy 32 B thread x3 depth 2 batch 1 both ways",
                                         "put_signal bw push 32 B thread x3 depth 2 batch 1 both ways",
                                         "get bw nic 32 B thread x3 depth 2 batch 1 both ways",
                                         "get bw proxy 32 B thread x3 depth 2 batch 1 both ways",
                                         "get bw nic 32 B thread x3 depth 2 batch 2 both ways",
                                         "get bw proxy 32 B thread x3 depth 2 batch 2 both ways",
                                         "fetch_add lat nic 8 B thread x3 depth 1 batch 1",
                                         "fetch_add lat proxy 8 B thread x3 depth 1 batch 1",
                                         "get lat nic 32 B thread x3 depth 1 batch 1",
                                         "get lat proxy 32 B thread x3 depth 1 batch 1"));
  plan.tests = {"get_lat"};
  plan.ways = {"proxy"};
  EXPECT_THAT(keys_of(plan), ElementsAre("get lat proxy 32 B thread x3 depth 1 batch 1"));
  plan.tests = {"put_lat"};
  plan.ways = {"pull", "proxy", "inline", "bounce"};
  plan.queues = {"gpu", "host"};
  EXPECT_THAT(keys_of(plan), ElementsAre("put lat pull 32 B thread x3 depth 1 batch 1 host queues",
                                         "put lat pull 32 B thread x3 depth 1 batch 1 gpu queues",
                                         "put lat proxy 32 B thread x3 depth 1 batch 1 host queues",
                                         "put lat inline 32 B thread x3 depth 1 batch 1 host queues",
                                         "put lat inline 32 B thread x3 depth 1 batch 1 gpu queues",
                                         "put lat bounce 32 B thread x3 depth 1 batch 1 host queues",
                                         "put lat bounce 32 B thread x3 depth 1 batch 1 gpu queues"));
}

Plan collectives(std::uint32_t ranks) {
  Plan plan;
  plan.tests = collective_tests();
  plan.ways = {"pull", "auto"};
  plan.sizes_bytes = {12, 4096};
  plan.ranks = ranks;
  return plan;
}

// nccl-tests, doc/PERFORMANCE.md, and src/gather.cu.
TEST(Collectives, have_sizes_and_factors_of_nccl_tests) {
  const auto cases = cases_of(collectives(4));
  ASSERT_TRUE(cases) << cases.error().message;
  EXPECT_EQ(cases->size(), 12u);
  for (const Case& item : *cases) {
    const bool sums = item.operation == Operation::kAllReduce;
    EXPECT_EQ(bus_of(item).bytes, sums ? item.bytes : 4 * item.bytes) << key_of(item);
    EXPECT_DOUBLE_EQ(bus_of(item).factor, sums ? 1.5 : 0.75) << key_of(item);
  }
  EXPECT_EQ(key_of(cases->front()), "alltoall lat pull 12 B warp x1 depth 1 batch 1 4 ranks");
}

TEST(Collectives, have_the_doorbells_and_queues_of_a_team) {
  Plan plan = collectives(3);
  plan.tests = {"incast"};
  plan.sizes_bytes = {4};
  plan.ways = {"push"};
  plan.doorbells = {"plain", "blueflame"};
  plan.queues = {"host", "gpu"};
  const auto cases = cases_of(plan);
  ASSERT_TRUE(cases) << cases.error().message;
  ASSERT_EQ(cases->size(), 1u);
  EXPECT_EQ(key_of(cases->front()), "incast lat push 4 B warp x1 depth 1 batch 1 3 ranks plain host queues");
}

TEST(Collectives, refuse_conditions_that_they_do_not_have) {
  const auto message = [](auto change) {
    Plan plan = collectives(3);
    change(plan);
    return cases_of(plan).error().message;
  };
  EXPECT_THAT(message([](Plan& plan) { plan.tests = {"put_lat"}; }),
              HasSubstr("put_lat runs between 2 ranks"));
  EXPECT_THAT(message([](Plan& plan) { plan.ways = {"proxy"}; }), HasSubstr("leave proxy out of --modes"));
  EXPECT_THAT(message([](Plan& plan) { plan.endpoints = {1, 2}; }), HasSubstr("leave out --endpoints"));
  EXPECT_THAT(message([](Plan& plan) { plan.sizes_bytes = {8, 10}; }), HasSubstr("multiples of 4"));
}

TEST(Plan, threads_and_proxies_ring_plainly_only) {
  Plan plan;
  plan.tests = {"put_lat"};
  plan.ways = {"pull", "proxy"};
  plan.sizes_bytes = {8};
  plan.scopes = {"thread", "warp"};
  plan.doorbells = {"blueflame", "plain"};
  std::vector<std::string> keys;
  const auto cases = cases_of(plan);
  ASSERT_TRUE(cases) << cases.error().message;
  for (const Case& item : *cases) keys.push_back(key_of(item));
  EXPECT_THAT(keys, ElementsAre("put lat pull 8 B thread x1 depth 1 batch 1 plain",
                                "put lat proxy 8 B thread x1 depth 1 batch 1 plain",
                                "put lat pull 8 B warp x1 depth 1 batch 1 plain",
                                "put lat pull 8 B warp x1 depth 1 batch 1 blueflame",
                                "put lat proxy 8 B warp x1 depth 1 batch 1 plain"));
  plan.scopes = {"thread"};
  plan.doorbells = {"blueflame"};
  EXPECT_THAT(cases_of(plan).error().message, HasSubstr("threads, proxies and collectives ring plainly"));
}

TEST(Plan, both_ranks_get_the_same_plan) {
  Plan plan;
  plan.tests = {"put_bw", "get_lat"};
  plan.ways = {"push", "proxy"};
  plan.sizes_bytes = {8, 1 << 26};
  plan.scopes = {"block"};
  plan.endpoints = {2};
  plan.posters = {7};
  plan.depths = {3};
  plan.batches = {2};
  plan.doorbells = {"blueflame"};
  plan.queues = {"gpu", "host"};
  plan.ranks = 5;
  plan.both_ways = true;
  plan.adaptive_routing = true;
  plan.rounds = 9;
  plan.messages = 11;
  plan.seconds = 2.5;
  plan.hca = "mlx5_0";
  plan.memory = "gpu";
  plan.workers = 13;
  plan.peers = true;
  plan.kill_rank = 1;
  plan.break_memory = true;
  const auto read = plan_from_json(to_json(plan).dump());
  ASSERT_TRUE(read);
  EXPECT_EQ(to_json(*read), to_json(plan));
  EXPECT_EQ(
      to_json(plan).dump(),
      R"({"tests":["put_bw","get_lat"],"modes":["push","proxy"],"sizes":[8,67108864],"scopes":["block"],)"
      R"("endpoints":[2],"posters":[7],"depths":[3],"batches":[2],"doorbells":["blueflame"],"queues":["gpu","host"],)"
      R"("ranks":5,"both_ways":true,"adaptive_routing":true,"rounds":9,"messages":11,"seconds":2.5,)"
      R"("hca":"mlx5_0","memory":"gpu",)"
      R"("workers":13,"peers":true,"kill_rank":1,"break_memory":true})");
  EXPECT_FALSE(plan_from_json("{}"));
  EXPECT_FALSE(plan_from_json("rubbish"));
}

TEST(Plan, unknown_words_are_refused_with_the_known_ones) {
  Plan plan;
  plan.sizes_bytes = {8};
  plan.tests = {"teleport_bw"};
  EXPECT_THAT(cases_of(plan).error().message,
              HasSubstr("'teleport_bw' is no benchmark, and no host that has an address: use put_lat, "));
  plan.tests = {"put_bw"};
  plan.ways = {"teleport"};
  EXPECT_THAT(cases_of(plan).error().message, HasSubstr("'teleport' is no mode: use pull, push"));
  plan.ways = {"push"};
  plan.scopes = {"grid"};
  EXPECT_THAT(cases_of(plan).error().message, HasSubstr("'grid' is no scope: use thread, warp, block"));
}

// A GPU's ns come in steps of a microsecond, its ticks do not.
TEST(Ticks, have_the_length_that_the_whole_time_gives_them) {
  LaneOutcome outcome{};
  EXPECT_EQ(ns_per_tick(outcome), 1);
  outcome.begin_ns = 5'000;
  outcome.end_ns = 1'005'000;
  outcome.begin_ticks = 70;
  outcome.end_ticks = 1'980'070;
  EXPECT_NEAR(ns_per_tick(outcome), 1 / 1.98, 1e-9);
}

TEST(Plan, half_of_the_cores_run_blocks_unless_the_plan_says_otherwise) {
  Plan plan;
  EXPECT_EQ(workers_of(plan, 16), 8u);
  EXPECT_EQ(workers_of(plan, 1), 1u);
  plan.workers = 3;
  EXPECT_EQ(workers_of(plan, 16), 3u);
}

}  // namespace plan_test
}  // namespace gdx::bench
