#include "host/programs/bench/document.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "host/programs/bench/experts.h"
#include "host/programs/bench/modelled.h"
#include "tests/unit/bench/sample_journal.h"

namespace gdx::bench {
namespace document_test {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

const Json& row(const Json& document, const std::string& measure, const std::string& mode, int bytes) {
  for (const Json& one : document.at("rows")) {
    if (one.at("measure") == measure && one.at("mode") == mode && one.at("bytes") == bytes) return one;
  }
  throw std::out_of_range("no such row");
}

TEST(Document, figures_are_those_of_the_rounds) {
  const Json document = sample_document();
  EXPECT_TRUE(document["whole"]);
  EXPECT_TRUE(document["ended_by"].is_null());
  EXPECT_EQ(document["rows"].size(), 8u);
  const Json& pull = row(document, "lat", "pull", 8);
  EXPECT_EQ(pull["series"], "measured on the software HCA, kernels on the CPU layer");
  EXPECT_EQ(pull["rounds"], 7);
  EXPECT_EQ(pull["messages"], 700);
  EXPECT_EQ(pull["latency_us"]["median"], 2.08);  // of the 4th of 7 rounds
  EXPECT_EQ(pull["latency_us"]["low"], 2.02);
  EXPECT_EQ(pull["latency_us"]["high"], 2.14);
  EXPECT_EQ(pull["cpu_us_per_message"]["rank_0"], 1);
  EXPECT_EQ(pull["cpu_us_per_message"]["rank_1"], 2);
  EXPECT_EQ(pull["pcie_reads_per_message"], 2);
  EXPECT_EQ(pull["pcie_record_reads_per_message"], 1);
  EXPECT_EQ(pull["pcie_writes_per_message"], 3);
  EXPECT_EQ(pull["credit_stalls"], 21);
  EXPECT_EQ(pull["occupancy"].dump(), R"({"us":[0.0,350.0],"leased_slots":[1,16],"in_flight":[0,9]})")
      << "of the last round";
  EXPECT_EQ(pull["bytes_verified"], 7 * 4096);
  const Json& bandwidth = row(document, "bw", "pull", 4096);
  EXPECT_TRUE(bandwidth["latency_us"].is_null());
  EXPECT_EQ(bandwidth["messages_per_s"]["median"], 961'500);
  EXPECT_EQ(bandwidth["gigabytes_per_s"]["median"], 3.938);
}

TEST(Document, ratio_is_to_pull_in_the_same_round) {
  const Json document = sample_document();
  EXPECT_TRUE(row(document, "lat", "pull", 8)["ratio_to_pull"].is_null());
  EXPECT_EQ(row(document, "lat", "push", 8)["ratio_to_pull"]["says"], "0.5 [0.5, 0.5]");
  EXPECT_EQ(row(document, "bw", "push", 4096)["ratio_to_pull"]["ratio"], 2);
  EXPECT_EQ(row(sample_document(2), "lat", "push", 8)["ratio_to_pull"]["says"], "too few rounds");
}

// 700 messages of a case tell no quantile of which fewer than ten would lie beyond.
TEST(Document, quantile_of_too_few_messages_is_left_out) {
  const Json few = row(sample_document(7), "lat", "pull", 8)["latency_us"];
  EXPECT_TRUE(few["p99"].is_null());
  EXPECT_TRUE(few["p99_9"].is_null());
  EXPECT_FALSE(few["p50"].is_null());
  const Json more = row(sample_document(10), "lat", "pull", 8)["latency_us"];
  EXPECT_EQ(more["p99"], 2.2);
  EXPECT_TRUE(more["p99_9"].is_null());
}

TEST(Document, figures_of_counters_name_who_counted) {
  EXPECT_EQ(sample_document()["rows"][0]["pcie_counted_by"], "the software HCA");
  auto line = sample_line(0, 1, 2000, 1e6);
  line["pcie_reads"] = nullptr;
  EXPECT_TRUE(document_of(kConditionsLine + ("\n" + line.dump()))["rows"][0]["pcie_counted_by"].is_null());
}

TEST(Document, ratios_that_chance_alone_gives_are_counted) {
  const Json document = sample_document();
  EXPECT_EQ(document["ratios"]["count"], 4);
  EXPECT_EQ(document["ratios"]["differ"], 4);
  EXPECT_EQ(document["ratios"]["by_chance"], 0.0624);  // 4 of level 0.9844
  EXPECT_EQ(sample_document(5)["ratios"]["count"], 0) << "of level 0.9375";
}

// Rounding of the bounds decides nothing: 0.99999 in every round differs.
TEST(Document, ratio_that_rounds_to_1_differs) {
  std::string journal = std::string(kConditionsLine) + "\n";
  for (int round = 1; round <= 7; ++round) {
    journal += sample_line(0, round, 2000, 1).dump() + "\n";
    journal += sample_line(1, round, 1999.98, 1).dump() + "\n";
  }
  const auto document = document_of(journal);
  const auto& ratio = row(document, "lat", "push", 8)["ratio_to_pull"];
  EXPECT_EQ(ratio["high"], 1);
  EXPECT_EQ(ratio["differs"], true);
  EXPECT_EQ(ratio["says"], "1 [1, 1]");
  EXPECT_EQ(document["ratios"]["differ"], 1);
}

TEST(Document, damage_in_what_is_dropped_is_kept) {
  EXPECT_TRUE(sample_document()["dropped_damage"].empty());
  const Json document = document_of(sample_journal(2) + R"({"dropped":1,"bad_bytes":5})" + "\n");
  ASSERT_EQ(document["dropped_damage"].size(), 1u);
  EXPECT_EQ(document["dropped_damage"][0]["case"], "put lat push 8 B warp x1 depth 1 batch 1");
  EXPECT_EQ(document["dropped_damage"][0]["bad_bytes"], 5);
}

// Push takes half the time of pull at 8 B, and as long in two rounds of seven at 4 KiB.
TEST(Document, modes_that_noise_does_not_tell_apart_are_both_the_fastest) {
  std::string journal = std::string(kConditionsLine) + "\n";
  for (int round = 1; round <= 7; ++round) {
    journal += sample_line(0, round, 2000 + round, 1).dump() + "\n" +
               sample_line(1, round, 1000 + round, 1).dump() + "\n" +
               sample_line(2, round, 2000 + round, 1).dump() + "\n" +
               sample_line(3, round, round < 3 ? 2003 : 1000, 1).dump() + "\n";
  }
  const Json fastest = document_of(journal)["fastest"];
  ASSERT_EQ(fastest.size(), 2u) << fastest;
  EXPECT_EQ(fastest[0]["mode"], "push");
  EXPECT_EQ(fastest[0]["to_bytes"], 8);
  EXPECT_EQ(fastest[1]["mode"], "pull or push");
  EXPECT_EQ(sample_document(2)["fastest"][0]["mode"], "too few rounds");
}

TEST(Document, run_that_was_cut_off_keeps_what_was_measured_and_says_so) {
  const std::string journal = sample_journal(3, false);
  const auto cases = *cases_of(sample_plan());
  for (const std::size_t length :
       {journal.size(), journal.size() - 1, journal.size() - 200, journal.size() / 2}) {
    const Json document =
        make_document(sample_plan(), cases, journal.substr(0, length), "gdx bench", "signal 9: Killed");
    EXPECT_FALSE(document["whole"]);
    EXPECT_EQ(document["ended_by"], "signal 9: Killed");
    EXPECT_FALSE(document["rows"].empty());
    for (const Json& one : document["rows"]) EXPECT_LE(one["rounds"], 3);
  }
  const std::string reason = R"({"failure":"rank 1 failed rank 0: peer unreachable"})";
  const Json document = make_document(sample_plan(), cases, journal + reason + "\n", "gdx bench", "status 1");
  EXPECT_EQ(document["ended_by"], "rank 1 failed rank 0: peer unreachable; status 1");
}

// Ranks that ended well may have had no time for all of the plan.
TEST(Document, run_without_all_rounds_or_figures_is_not_whole) {
  EXPECT_FALSE(sample_document(6)["whole"]);
  EXPECT_EQ(sample_document(6)["ended_by"], "no time for all of its plan: allow more --seconds");
  std::string journal = std::string(kConditionsLine) + "\n{\"no_figure\":1}\n";
  for (int round = 1; round <= 7; ++round) journal += sample_line(0, round, 2000, 1).dump() + "\n";
  journal += "{\"end\":true,\"staging_violations\":0}\n";
  const Json document = document_of(journal);
  EXPECT_EQ(document["without_figure"].dump(), R"(["put lat push 8 B warp x1 depth 1 batch 1"])");
  EXPECT_FALSE(document["whole"]);
}

TEST(Document, modelled_figures_are_a_series_of_their_own) {
  Json document = sample_document();
  const Json measured = document["rows"];
  add_modelled(
      document,
      Json::parse(
          R"({"path":"PHB","generation":5,"lanes":16,"platform":"generic","doorbell":"plain",
      "record":"read","queues":"gpu","rows":[
      {"mode":"push","size_bytes":4096,"delivered_ns":1.0,"completed_ns":2345.678,"messages_per_s":2e6},
      {"mode":"pull","size_bytes":8,"delivered_ns":1.0,"completed_ns":1.0,"messages_per_s":null}]})"),
      {{},
       {{"operation", "put"}, {"endpoints", 4}, {"batch", 1}, {"ranks", 2}, {"latency_of", "completion"}}});
  EXPECT_EQ(document["rows"], measured);
  ASSERT_EQ(document["modelled"].size(), 2u);
  const Json& one = document["modelled"][0];
  EXPECT_EQ(one["series"],
            "modelled by gdx model: PHB, PCIe 5 x16, generic platform, plain doorbells, records read, "
            "queues in gpu memory, 4 endpoints");
  EXPECT_EQ(one["latency_us"], 2.346);
  EXPECT_EQ(one["gigabytes_per_s"], 8.192);
  EXPECT_TRUE(document["modelled"][1]["gigabytes_per_s"].is_null()) << "the model withholds the rate";
}

// Questions are of what was measured: each doorbell, memory of queues and number of endpoints once.
TEST(Document, models_have_the_rows_own_conditions) {
  Plan plan;
  plan.sizes_bytes = {64, 32 << 20};
  plan.ways = {"pull", "auto"};
  Json document = sample_document();
  document["conditions"][0]["queues"] = "kernels' in gpu memory, proxies' in host memory";
  Json& rows = document["rows"];
  rows.erase(rows.begin() + 1, rows.end());
  rows.push_back(rows[0]);
  rows[1]["doorbell"] = "blueflame";
  rows[1]["queues"] = "host";
  rows[1]["endpoints"] = rows[1]["posters"] = 4;
  rows.push_back(rows[0]);
  rows[2]["posters"] = 8;  // of shared endpoints: no model
  const auto questions = questions_of(document, plan, "plain");
  ASSERT_EQ(questions.size(), 2u);
  const std::vector<std::string> sizes = {"--mode", "pull", "--size-bytes", "64", "--json"};
  std::vector<std::string> first = {"--queues",    "gpu", "--doorbell", "plain",
                                    "--endpoints", "1",   "--batch",    "1"};
  std::vector<std::string> second = {"--queues",    "host", "--doorbell", "blueflame",
                                     "--endpoints", "4",    "--batch",    "1"};
  first.insert(first.end(), sizes.begin(), sizes.end());
  second.insert(second.end(), sizes.begin(), sizes.end());
  EXPECT_EQ(questions[0].options, first);
  EXPECT_EQ(questions[1].options, second);
  rows.erase(rows.begin() + 1, rows.end());
  rows[0]["operation"] = "dispatch";
  rows[0]["ranks"] = 2;
  const auto rounds = questions_of(document, plan, "plain");
  ASSERT_EQ(rounds.size(), 2u) << "and 64 ranks";
  EXPECT_EQ(rounds[1].fields["ranks"], 64);
  EXPECT_EQ(rounds[1].options[1], "host") << "a team's";
  EXPECT_EQ(rounds[1].options[5], "63");
  EXPECT_EQ(rounds[1].round_messages, messages_to_others(Operation::kDispatch, 0, 64));
}

// Each token of each rank goes to 8 experts, and comes back from where it went.
TEST(Experts, routes_are_whole) {
  for (const std::uint32_t ranks : {2u, 3u, 16u, 64u}) {
    std::uint32_t sum = 0;
    for (std::uint32_t to = 0; to < ranks; ++to) {
      sum += messages_between(Operation::kDispatch, 1, to, ranks);
      EXPECT_EQ(messages_between(Operation::kDispatch, 1, to, ranks),
                messages_between(Operation::kCombine, to, 1, ranks));
      EXPECT_LE(messages_between(Operation::kDispatch, 1, to, ranks),
                to == 1 ? kRoutes : most_messages_between(ranks));
    }
    EXPECT_EQ(sum, kRoutes);
    const double even = static_cast<double>(kRoutes) * (ranks - 1) / ranks;
    EXPECT_NEAR(messages_to_others(Operation::kDispatch, 0, ranks), even, 0.1 * even) << "of uniform experts";
  }
}

class DocumentFile : public testing::Test {
 protected:
  void TearDown() override { std::remove(file_.c_str()); }
  std::string error_of(const std::string& text) {
    std::ofstream(file_) << text;
    const auto read = read_document(file_);
    return read ? "" : read.error().message;
  }
  std::string file_ = testing::TempDir() + "gdx_document_" + std::to_string(getpid());
};

TEST_F(DocumentFile, is_read_as_it_was_written) {
  EXPECT_EQ(error_of(to_text(sample_document())), "");
  EXPECT_EQ(*read_document(file_), sample_document());
}

TEST_F(DocumentFile, which_is_none_is_refused) {
  EXPECT_THAT(error_of("rubbish"), HasSubstr("no result of gdx bench: make one"));
  EXPECT_THAT(error_of("{}"), HasSubstr("no result of gdx bench: make one"));
  EXPECT_THAT(error_of(R"({"gdx_bench":1,"rows":[]})"), HasSubstr("of version 1, this gdx reads version 3"));
  EXPECT_THAT(error_of(R"({"gdx_bench":3,"rows":[{"operation":1}]})"), HasSubstr("no result of gdx bench"));
  EXPECT_THAT(read_document("/nonexistent/a.json").error().message, HasSubstr("cannot be read"));
}

TEST(Rounded, to_four_digits) {
  EXPECT_EQ(rounded(1234.5), 1234);
  EXPECT_EQ(rounded(0.00123456), 0.001235);
  EXPECT_EQ(rounded(0), 0);
  EXPECT_EQ(rounded(123456789), 123500000);
}

}  // namespace document_test
}  // namespace gdx::bench
