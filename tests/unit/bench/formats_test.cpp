// Peers' layouts are read back by parsers written from those peers' documentation.
#include "host/programs/bench/formats.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/unit/bench/sample_journal.h"

namespace gdx::bench {
namespace formats_test {

using testing::HasSubstr;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  std::istringstream stream(line);
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

// Names of perftest's columns, which may hold blanks but not two.
std::vector<std::string> columns_of(const std::string& line) {
  std::vector<std::string> columns;
  for (const char* const unit :
       {"#bytes", "#iterations", "t_min[usec]", "t_max[usec]", "t_typical[usec]", "t_avg[usec]",
        "t_stdev[usec]", "99% percentile[usec]", "99.9% percentile[usec]", "BW peak[MB/sec]",
        "BW average[MB/sec]", "MsgRate[Mpps]"}) {
    if (line.find(unit) != std::string::npos) columns.push_back(unit);
  }
  return columns;
}

// perftest's manual: rows below the line of column names, up to the next rule.
std::vector<std::map<std::string, double>> parse_perftest(const std::string& text) {
  std::vector<std::map<std::string, double>> rows;
  std::vector<std::string> columns;
  for (const std::string& line : lines_of(text)) {
    if (line.starts_with(" #bytes")) {
      columns = columns_of(line);
    } else if (line.starts_with("---")) {
      columns.clear();
    } else if (!columns.empty()) {
      const auto words = words_of(line);
      EXPECT_EQ(words.size(), columns.size()) << line;
      std::map<std::string, double> row;
      for (std::size_t i = 0; i < std::min(words.size(), columns.size()); ++i)
        row[columns[i]] = std::stod(words[i]);
      rows.push_back(row);
    }
  }
  return rows;
}

TEST(Table, is_100_columns_wide_and_labelled) {
  const std::string text = table(sample_document());
  for (const std::string& line : lines_of(text)) EXPECT_LE(line.size(), 100u) << line;
  EXPECT_THAT(
      text,
      HasSubstr("measured on the software HCA, kernels on the CPU layer; begun 2026-11-30T08:15:00Z\n"));
  EXPECT_THAT(text, HasSubstr("rank 1, where it differs: address: 10.0.0.2\n"));
  EXPECT_THAT(text, HasSubstr("0.5 [0.5, 0.5]"));
  EXPECT_THAT(text, HasSubstr("every one right"));
  EXPECT_THAT(text, HasSubstr("7 of 7 rounds, of 100 messages or more; intervals of level 0.9844\n"));
  EXPECT_THAT(text, testing::Not(HasSubstr("PARTIAL")));
}

TEST(Table, says_that_a_run_is_partial_or_that_bytes_are_wrong) {
  EXPECT_THAT(table(sample_document(2, false)),
              HasSubstr("PARTIAL: the run ended early: signal 9: Killed\n"));
  auto document = sample_document();
  document["rows"][3]["bad_bytes"] = 5;
  EXPECT_THAT(table(document),
              HasSubstr("DAMAGED: put lat push 4096 B warp x1 depth 1 batch 1: 5 B wrong\n"));
  EXPECT_THAT(table(document), testing::Not(HasSubstr("every one right")));
}

TEST(Table, tells_how_many_ratios_chance_would_give) {
  EXPECT_THAT(table(sample_document()),
              HasSubstr("\n4 of 4 ratios differ beyond noise; by chance alone about 0.0624 would\n"));
}

TEST(Table, has_a_dash_for_a_quantile_of_too_few_messages) {
  EXPECT_THAT(table(sample_document()), testing::ContainsRegex("put +pull +8 B +700 +2.08 .* +- +- +2.14 "));
}

// Of all layouts, because scripts read them without the table's last lines.
TEST(Layouts, say_that_a_run_is_partial_or_that_bytes_are_wrong) {
  const auto document = document_of(sample_journal(2, false) + R"({"dropped":1,"bad_bytes":5})" + "\n");
  const char* const partial = "# PARTIAL: the run ended early: signal 9: Killed\n";
  const char* const damaged =
      "# DAMAGED: put lat push 8 B warp x1 depth 1 batch 1: 5 B wrong in a round that warms up\n";
  for (const std::string& text : {csv(document), perftest(document), nvshmem(document, false),
                                  nvshmem(document, true), nccl_tests(document)}) {
    EXPECT_THAT(text, HasSubstr(partial));
    EXPECT_THAT(text, HasSubstr(damaged));
  }
  EXPECT_THAT(table(document), testing::Not(HasSubstr("every one right")));
  for (const std::string& text :
       {csv(sample_document()), perftest(sample_document()), nvshmem(sample_document(), true)}) {
    EXPECT_THAT(text, testing::Not(HasSubstr("# PARTIAL")));
    EXPECT_THAT(text, testing::Not(HasSubstr("# DAMAGED")));
  }
}

// Each figure stands beside its number of messages, and each layout tells when and where it was measured.
TEST(Layouts, tell_messages_time_and_conditions) {
  const auto document = sample_document(3);
  EXPECT_THAT(table(document),
              HasSubstr("\n3 of 7 rounds, of 100 messages or more; intervals of level 0.75\n"));
  EXPECT_THAT(table(document), testing::ContainsRegex("\nput +pull +8 B +300 +2.04 "));
  EXPECT_THAT(table(document), testing::ContainsRegex("\nput +push +4 KiB +300 +1.961e"));
  for (const std::string& text :
       {csv(document), perftest(document), nvshmem(document, false), nccl_tests(document)}) {
    EXPECT_THAT(
        text,
        HasSubstr("# measured on the software HCA, kernels on the CPU layer; begun 2026-11-30T08:15:00Z\n"));
    EXPECT_THAT(text, HasSubstr("# rank 1, where it differs: address: 10.0.0.2\n"));
    EXPECT_THAT(text, HasSubstr("# 3 of 7 rounds, of 100 messages or more; "));
  }
  for (const std::string& text : {nvshmem(document, false), nvshmem(document, true), nccl_tests(document)})
    EXPECT_THAT(text, HasSubstr("# messages of each row: 300, 300\n"));
}

TEST(Perftest, rows_are_read_by_its_columns) {
  const auto rows = parse_perftest(perftest(sample_document()));
  ASSERT_EQ(rows.size(), 8u);
  const auto& latency = rows[0];
  EXPECT_EQ(latency.at("#bytes"), 8);
  EXPECT_EQ(latency.at("#iterations"), 700);
  EXPECT_EQ(latency.at("t_typical[usec]"), 2.08);
  EXPECT_EQ(latency.at("t_min[usec]"), 2.02);
  EXPECT_EQ(latency.at("t_max[usec]"), 2.14);
  EXPECT_TRUE(std::isnan(latency.at("99.9% percentile[usec]"))) << "of 700 messages";
  const auto bandwidth = std::ranges::find_if(
      rows, [](const auto& row) { return row.contains("MsgRate[Mpps]") && row.at("#bytes") == 4096; });
  ASSERT_NE(bandwidth, rows.end());
  // Its MB is 2^20 B.
  EXPECT_NEAR(bandwidth->at("BW average[MB/sec]"), 3.938e9 / (1 << 20), 0.01);
  EXPECT_NEAR(bandwidth->at("MsgRate[Mpps]"), 0.9615, 1e-6);
  EXPECT_GE(bandwidth->at("BW peak[MB/sec]"), bandwidth->at("BW average[MB/sec]"));
}

TEST(Nvshmem, rows_have_size_scope_and_figure) {
  std::map<std::string, std::map<int, double>> tables;
  std::string job;
  for (const std::string& line : lines_of(nvshmem(sample_document(), false))) {
    const auto words = words_of(line);
    if (line.starts_with("#")) {
      job = words_of(line.substr(1)).at(0);
    } else if (words.at(0) != "size(B)") {
      ASSERT_EQ(words.size(), 3u) << line;
      EXPECT_EQ(words[1], "warp");
      tables[job][std::stoi(words[0])] = std::stod(words[2]);
    } else {
      EXPECT_THAT(line, HasSubstr(job.find("_lat_") != std::string::npos ? "latency(us)" : "BW (GB/sec)"));
    }
  }
  EXPECT_EQ(tables.size(), 4u);
  EXPECT_EQ(tables.at("gdx_put_lat_pull").at(8), 2.08);
  EXPECT_EQ(tables.at("gdx_put_bw_pull_depth16").at(4096), 3.938);
}

TEST(Nvshmem, conditions_without_a_column_are_tests_of_their_own) {
  auto document = sample_document();
  auto& rows = document["rows"];
  rows[4]["endpoints"] = 4;
  rows[4]["batch"] = 2;
  rows[6]["direction"] = "both ways";
  const std::string text = nvshmem(document, true);
  EXPECT_THAT(text, HasSubstr("# gdx put_bw pull: measured on the software HCA"));
  for (const char* const job : {"gdx_put_bw_pull_x4_depth16_batch2", "gdx_put_bw_pull_depth16_both"})
    EXPECT_THAT(text,
                testing::ContainsRegex(std::string("&&&& PERF ") + job + "___warp___size__[0-9]+___BW"));
}

TEST(Nvshmem, machine_readable_lines_are_its_own) {
  int found = 0;
  for (const std::string& line : lines_of(nvshmem(sample_document(), true))) {
    if (!line.starts_with("&&&& PERF ")) continue;
    const auto words = words_of(line);
    ASSERT_EQ(words.size(), 5u) << line;
    EXPECT_THAT(words[2], testing::MatchesRegex("gdx_[a-z_0-9]+___warp___size__[0-9]+___(latency|BW)"));
    EXPECT_TRUE(words[4] == "-us" || words[4] == "+GB/sec") << line;
    found += words[2] == "gdx_put_lat_push___warp___size__8___latency" && std::stod(words[3]) == 1.04;
  }
  EXPECT_EQ(found, 1);
}

// nccl-tests, doc/PERFORMANCE.md: size, count, type, redop, root, then time, algbw, busbw, #wrong twice.
TEST(NcclTests, rows_have_thirteen_columns) {
  int rows = 0;
  for (const std::string& line : lines_of(nccl_tests(sample_document()))) {
    if (line.starts_with("#")) continue;
    const auto words = words_of(line);
    ASSERT_EQ(words.size(), 13u) << line;
    EXPECT_EQ(words[0], words[1]);  // bytes are counted
    EXPECT_EQ(words[3], "none");
    EXPECT_EQ(words[8], "0");
    EXPECT_EQ(words[9], "N/A");
    // algbw is the size over the time.
    const double gigabytes = std::stod(words[0]) / std::stod(words[5]) / 1e3;
    EXPECT_NEAR(std::stod(words[6]), gigabytes, 0.01 + 0.001 * gigabytes);
    ++rows;
  }
  EXPECT_EQ(rows, 8);
}

// Of 4 ranks and 4 KiB: size is what all ranks have for one, and busbw is algbw by the factor.
TEST(NcclTests, collectives_have_the_size_and_busbw_of_their_kind) {
  Plan plan = sample_plan();
  plan.tests = collective_tests();
  plan.ways = {"pull"};
  plan.sizes_bytes = {4096};
  plan.ranks = 4;
  std::string journal = std::string(kConditionsLine) + "\n";
  for (std::size_t i = 0; i < 3; ++i) journal += sample_line(i, 1, 10'000, 1).dump() + "\n";
  const auto document = document_of(journal, plan);
  std::vector<std::string> rows;
  for (const std::string& line : lines_of(nccl_tests(document))) {
    if (line.starts_with("#")) continue;
    const auto words = words_of(line);
    ASSERT_EQ(words.size(), 13u) << line;
    rows.push_back(fmt::format("{}", fmt::join(words.begin(), words.begin() + 9, " ")));
  }
  EXPECT_THAT(rows, testing::ElementsAre("16384 4096 uint8 none -1 10.00 1.64 1.23 0",
                                         "16384 4096 uint8 none 0 10.00 1.64 1.23 0",
                                         "4096 1024 float sum -1 10.00 0.41 0.61 0"));
  const std::string text = table(document);
  EXPECT_THAT(text, HasSubstr("\ntime of a round, us: 4 ranks, warp scope\n"));
  EXPECT_THAT(text, testing::ContainsRegex("\nallreduce +pull +4 KiB +100 +10 .* 0.4096 +0.6144 "));
  EXPECT_THAT(nvshmem(document, false), HasSubstr("gdx_alltoall_pull_ranks4"));
}

TEST(NcclTests, figures_are_decimals_however_large_and_end_in_a_sum) {
  Plan plan = sample_plan();
  plan.tests = {"alltoall"};
  plan.ways = {"pull"};
  plan.sizes_bytes = {4096};
  plan.ranks = 4;
  const auto document = document_of(
      std::string(kConditionsLine) + "\n" + sample_line(0, 1, 1'234'567'890'000, 1).dump() + "\n", plan);
  const std::string text = nccl_tests(document);
  EXPECT_THAT(text, HasSubstr(" 1235000000 ")) << "us, without a decimal";
  EXPECT_THAT(text, testing::EndsWith("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 9.95e-09\n"));
}

TEST(Csv, every_row_has_the_columns_of_the_first_line) {
  auto document = sample_document();
  document["modelled"].push_back({{"series", "modelled, somehow"},
                                  {"operation", "put"},
                                  {"mode", "push"},
                                  {"bytes", 8},
                                  {"latency_us", 1.5},
                                  {"messages_per_s", 2.0}});
  auto lines = lines_of(csv(document));
  std::erase_if(lines, [](const std::string& line) { return line.starts_with("# "); });
  ASSERT_EQ(lines.size(), 10u);
  // Commas in quotes separate nothing.
  const auto cells = [](const std::string& line) {
    std::vector<std::string> out(1);
    bool quoted = false;
    for (const char c : line) {
      if (c == '"')
        quoted = !quoted;
      else if (c == ',' && !quoted)
        out.emplace_back();
      else
        out.back() += c;
    }
    return out;
  };
  const auto names = cells(lines[0]);
  for (const std::string& line : lines) EXPECT_EQ(cells(line).size(), names.size()) << line;
  const auto column = [&](const std::string& name) {
    return static_cast<std::size_t>(std::ranges::find(names, name) - names.begin());
  };
  ASSERT_LT(column("latency_us_median"), names.size());
  EXPECT_EQ(cells(lines[1])[column("latency_us_median")], "2.08");
  EXPECT_EQ(cells(lines[1])[column("ratio_to_pull_ratio")], "");
  EXPECT_EQ(cells(lines[1])[column("latency_us_p99")], "");
  EXPECT_EQ(cells(lines[1])[column("pcie_counted_by")], "the software HCA");
  EXPECT_EQ(cells(lines[9])[column("latency_us_median")], "1.5");
  EXPECT_EQ(cells(lines[9])[column("series")], "modelled, somehow");
}

}  // namespace formats_test
}  // namespace gdx::bench
