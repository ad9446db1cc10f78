// Documents of which no two figures are alike, in every layout, letter by letter.
#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

#include "host/programs/bench/compare.h"
#include "host/programs/bench/formats.h"
#include "host/programs/bench/modelled.h"
#include "host/programs/bench/page.h"
#include "host/programs/bench/peers.h"
#include "tests/expected_text.h"
#include "tests/unit/bench/sample_journal.h"

namespace gdx::bench {
namespace layouts_test {

using Json = nlohmann::ordered_json;

// A line of case `index`, of which rounds have their least, most and stalls in different order.
Json line_of(std::size_t index, int round, std::size_t ranks) {
  const auto number = static_cast<std::uint64_t>(index) + 1;
  const auto turn = static_cast<std::uint64_t>(round * 3 % 8);
  const double median_ns = 1000.0 * static_cast<double>(number) + 11 * static_cast<double>(turn);
  Json cpu_ns = Json::array();
  for (std::uint64_t rank = 0; rank < ranks; ++rank) cpu_ns.push_back(70'000 * (rank + 1) * number + turn);
  return {{"case", index},
          {"round", round},
          {"messages", 1000 * number + 7 * turn},
          {"elapsed_ns", 1'000'000 + turn},
          {"messages_per_s", 1e6 / static_cast<double>(number) + 1300 * static_cast<double>(turn)},
          {"median_ns", median_ns},
          {"mean_ns", median_ns + 130},
          {"mean_square_ns2", (median_ns + 130) * (median_ns + 130) + 4e4 * static_cast<double>(number)},
          {"least_ns", median_ns - 200},
          {"most_ns", median_ns + 5000},
          {"histogram_ns", {{1024 * number, 900 * number}, {2048 * number, 96 * number}, {4096 * number, 4}}},
          {"cpu_ns", cpu_ns},
          {"posted", 1100 * number + 3 * turn},
          {"credit_stalls", 2 * number + turn},
          {"occupancy", {{0, turn, 1}, {50'000 * round, 16 + number, 90 + round}}},
          {"retransmissions", 5 * number},
          {"pcie_reads", 2900 * number + turn},
          {"pcie_record_reads", 1100 * number + turn},
          {"pcie_writes", 3700 * number + turn},
          {"checked_bytes", 4096 * number + turn},
          {"bad_bytes", 0}};
}

// All cases in `rounds`, but that the second misses the second round.
std::string journal_of(const Plan& plan, int rounds) {
  Json conditions = Json::array();
  for (std::uint32_t rank = 0; rank < plan.ranks; ++rank) {
    conditions.push_back({{"host", "a<&>\"b\""},
                          {"cores", 96},
                          {"gpu", nullptr},
                          {"processors", "0-3,8,12-15,20-23,28-31,36-39,44-47,52-55,60-63,68-71,76-79,84-87"},
                          {"address", "10.0.0." + std::to_string(rank)}});
  }
  Json begun = {{"begun", "2026-11-30T08:15:00Z"},
                {"conditions", conditions},
                {"measured_on", "HCA mlx5_0, kernels on N"},
                {"hca", "HCA mlx5_0"}};
  std::string text = begun.dump() + "\n";
  const auto cases = cases_of(plan).value();
  for (int round = 1; round <= rounds; ++round) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      if (i != 1 || round != 2) text += line_of(i, round, plan.ranks).dump() + "\n";
    }
    for (std::size_t i = 0; i < peer_runs(plan, cases).size(); ++i) {
      const double own = static_cast<double>(i + 1) + 0.01 * round;
      Json line = to_json(PeerFigures{8, 20'000, 1.5 * own, 2.5 * own, 3.5 * own, 100'000 * own});
      line["peer"] = i;
      line["round"] = round;
      text += line.dump() + "\n";
    }
  }
  return text;
}

std::string all_layouts(const Json& document) {
  return to_text(document) + table(document) + csv(document) + perftest(document) + nvshmem(document, false) +
         nvshmem(document, true) + nccl_tests(document);
}

constexpr char kEnd[] = "{\"end\":true,\"staging_violations\":0}\n";

Json model() {
  return Json::parse(
      R"({"path":"PHB","generation":5,"lanes":16,"platform":"generic","doorbell":"plain",
      "record":"read","queues":"host","rows":[
      {"mode":"pull","size_bytes":8,"delivered_ns":1.0,"completed_ns":2345.678,"messages_per_s":2e6},
      {"mode":"push","size_bytes":8,"delivered_ns":1.0,"completed_ns":1345.678,"messages_per_s":3e6},
      {"mode":"push","size_bytes":64,"delivered_ns":1.0,"completed_ns":1445.678,"messages_per_s":2.5e6},
      {"mode":"pull","size_bytes":256,"delivered_ns":1.0,"completed_ns":1545.678,"messages_per_s":1e6}]})");
}

ModelQuestion puts() {
  return {{},
          {{"operation", "put"}, {"endpoints", 1}, {"batch", 1}, {"ranks", 2}, {"latency_of", "completion"}}};
}

Plan pairs_plan() {
  Plan plan;
  plan.tests = {"put_signal_lat", "put_bw"};
  plan.ways = {"pull", "push"};
  plan.sizes_bytes = {8};
  plan.peers = true;
  return plan;
}

TEST(Layouts, of_two_ranks_with_peers_and_models) {
  const Plan plan = pairs_plan();
  Json document = document_of(journal_of(plan, 7) + kEnd, plan);
  add_modelled(document, model(), puts());
  expect_text("pairs.txt", all_layouts(document));
}

TEST(Layouts, of_a_damaged_and_partial_run_of_other_doorbells_and_queues) {
  Plan plan;
  plan.tests = {"put_bw", "get_lat"};
  plan.ways = {"pull"};
  plan.sizes_bytes = {1 << 20};
  plan.scopes = {"block"};
  plan.endpoints = {4};
  plan.depths = {5};
  plan.batches = {2};
  plan.doorbells = {"blueflame"};
  plan.queues = {"gpu"};
  plan.both_ways = true;
  std::string journal = journal_of(plan, 3);
  Json line = line_of(0, 4, 2);
  line["bad_bytes"] = 5;
  line["pcie_reads"] = nullptr;
  journal +=
      line.dump() + "\n{\"no_figure\":1}\n{\"dropped\":1,\"bad_bytes\":6}\n{\"dropped\":1,\"bad_bytes\":1}\n";
  Json document = document_of(journal, plan);
  document["staging_violations"] = 3;
  expect_text("damaged.txt", all_layouts(document));
}

TEST(Layouts, of_collectives) {
  Plan plan;
  plan.tests = collective_tests();
  plan.ways = {"push"};
  plan.sizes_bytes = {12};
  plan.ranks = 3;
  plan.rounds = 2;
  expect_text("collectives.txt", all_layouts(document_of(journal_of(plan, 2) + kEnd, plan)));
}

// The page without its style, in which no figure is, and without what can be saved.
std::string body_of(const std::string& page) {
  const std::string body = page.substr(0, page.find("<style>")) + page.substr(page.find("</style></head>"));
  return std::regex_replace(body, std::regex("base64,[^\"]*"), "base64,...");
}

TEST(Page, has_each_figure_with_its_place) {
  const Plan plan = pairs_plan();
  Json document = document_of(journal_of(plan, 7), plan);
  add_modelled(document, model(), puts());
  document["command"] = "gdx bench <\"&\"> {{json}}";
  const std::string text = page(document);
  expect_text("page.txt", body_of(text));
  EXPECT_EQ(text.find("<script"), std::string::npos);
}

TEST(Compare, has_each_figure_of_both_runs) {
  const Plan plan = pairs_plan();
  const Json a = document_of(journal_of(plan, 7) + kEnd, plan);
  Json b = a;
  for (const std::size_t slower : {0, 2}) {
    for (Json& sample : b["rows"][slower]["samples"]) sample = 1.25 * sample.get<double>();
  }
  b["rows"][1]["samples"][0] = 7.5;
  b["rows"][3]["mode"] = "an extraordinarily long name of a mode";
  b["conditions"].erase(1);
  b["conditions"][0]["cores"] = 64;
  b["plan"]["rounds"] = 9;
  b["whole"] = false;
  const Json there = compare(a, b);
  expect_text("comparison.txt", to_text(there) + comparison_table(there) + comparison_table(compare(b, a)));
}

}  // namespace layouts_test
}  // namespace gdx::bench
