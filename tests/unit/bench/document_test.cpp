#include "host/bench/document.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tests/unit/bench/sample_journal.h"

namespace gdx::bench {
namespace {

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
  EXPECT_EQ(pull["pcie_writes_per_message"], 3);
  EXPECT_EQ(pull["credit_stalls"], 21);
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
  EXPECT_EQ(document["ended_by"], "rank 1 failed rank 0: peer unreachable");
}

TEST(Document, modelled_figures_are_a_series_of_their_own) {
  Json document = sample_document();
  const Json measured = document["rows"];
  add_modelled(document, Json::parse(R"({"path":"PHB","generation":5,"lanes":16,"platform":"generic","rows":[
      {"mode":"push","size_bytes":4096,"delivered_ns":1.0,"completed_ns":2345.678,"messages_per_s":2e6}]})"));
  EXPECT_EQ(document["rows"], measured);
  ASSERT_EQ(document["modelled"].size(), 1u);
  const Json& one = document["modelled"][0];
  EXPECT_EQ(one["series"], "modelled by gdx model: PHB, PCIe 5 x16, generic platform");
  EXPECT_EQ(one["latency_us"], 2.346);
  EXPECT_EQ(one["gigabytes_per_s"], 8.192);
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
  EXPECT_THAT(error_of(R"({"gdx_bench":2,"rows":[]})"), HasSubstr("of version 2, this gdx reads version 1"));
  EXPECT_THAT(error_of(R"({"gdx_bench":1,"rows":[{"operation":1}]})"), HasSubstr("no result of gdx bench"));
  EXPECT_THAT(read_document("/nonexistent/a.json").error().message, HasSubstr("cannot be read"));
}

TEST(Rounded, to_four_digits) {
  EXPECT_EQ(rounded(1234.5), 1234);
  EXPECT_EQ(rounded(0.00123456), 0.001235);
  EXPECT_EQ(rounded(0), 0);
  EXPECT_EQ(rounded(123456789), 123500000);
}

}  // namespace
}  // namespace gdx::bench
