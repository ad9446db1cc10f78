#include "host/programs/bench/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "tests/unit/bench/sample_journal.h"

namespace gdx::bench {
namespace compare_test {

using testing::HasSubstr;
using testing::Not;

TEST(Compare, equal_runs_do_not_differ) {
  const auto comparison = compare(sample_document(), sample_document());
  ASSERT_EQ(comparison["rows"].size(), 8u);
  for (const auto& row : comparison["rows"]) {
    EXPECT_EQ(row["ratio"], 1);
    EXPECT_EQ(row["b_is"], "");
    EXPECT_THAT(row["says"].get<std::string>(), HasSubstr("no difference seen ["));
  }
  EXPECT_THAT(comparison_table(comparison),
              HasSubstr("0 of 8 cases differ beyond noise; by chance alone about 0."));
}

TEST(Compare, slower_run_is_told_by_how_much) {
  const auto comparison = compare(sample_document(), sample_document(7, true, 1.5));
  for (const auto& row : comparison["rows"]) {
    const bool latency = row["of"] == "latency_us";
    EXPECT_NEAR(row["ratio"].get<double>(), latency ? 1.5 : 1 / 1.5, 0.001) << row;
    EXPECT_LE(row["low"].get<double>(), row["ratio"].get<double>());
    EXPECT_GE(row["high"].get<double>(), row["ratio"].get<double>());
    EXPECT_EQ(row["b_is"], "slower") << row;
  }
  EXPECT_EQ(compare(sample_document(7, true, 1.5), sample_document())["rows"][0]["b_is"], "faster");
  EXPECT_THAT(comparison_table(comparison),
              HasSubstr("8 of 8 cases differ beyond noise; by chance alone about 0."));
}

TEST(Compare, tells_what_else_differs) {
  auto other = sample_document(2, false);
  other["conditions"][0]["host"] = "b";
  other["conditions"][0]["address"] = "10.9.9.9";
  other["conditions"][1]["gpu"] = "one";
  other["conditions"][1]["clocks"] = "slow";
  other["plan"]["rounds"] = 2;
  other["rows"].erase(0);
  const auto comparison = compare(sample_document(), other);
  const std::string text = comparison_table(comparison);
  EXPECT_THAT(text, HasSubstr("differs: rank 0: host: a in A, b in B\n"));
  EXPECT_THAT(text, HasSubstr("differs: rank 1: gpu: null in A, one in B\n"));
  EXPECT_THAT(text, HasSubstr("differs: rank 1: clocks: null in A, slow in B\n"));
  EXPECT_THAT(text, HasSubstr("differs: plan: rounds: 7 in A, 2 in B\n"));
  EXPECT_THAT(text, Not(HasSubstr("10.9.9.9")));
  EXPECT_THAT(text, HasSubstr("in A alone: put lat pull 8 B warp x1 depth 1 batch 1\n"));
  EXPECT_THAT(text, HasSubstr("B is a partial report\n"));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

TEST(Compare, too_few_rounds_are_no_verdict) {
  const auto comparison = compare(sample_document(2), sample_document(2, true, 9));
  for (const auto& row : comparison["rows"]) EXPECT_EQ(row["says"], "too few rounds");
  EXPECT_THAT(comparison_table(comparison), HasSubstr("\n0 of 0 cases differ beyond noise; "));
}

}  // namespace compare_test
}  // namespace gdx::bench
