#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "base/command_line.h"

namespace gdx::command_line {
namespace option_values_test {

using ::testing::HasSubstr;

TEST(OptionValues, whole_numbers_are_decimal_and_in_their_range) {
  const Check check = whole(8, 100);
  for (const char* const text : {"8", "10", "100"}) EXPECT_EQ(check(text), "") << text;
  for (const char* const text :
       {"", "7", "101", "-8", "+8", " 8", "8 ", "8.5", "0x10", "1e1", "ten", "18446744073709551624"})
    EXPECT_EQ(check(text), fmt::format("'{}': use a whole number from 8 to 100", text));
  for (const char* const text : {"010", "0010", "08"})
    EXPECT_EQ(check(text), fmt::format("'{}': use it without the leading zero", text));
  EXPECT_EQ(whole(0, 1)("0"), "");
  EXPECT_EQ(whole(0, UINT64_MAX)("18446744073709551615"), "");
}

TEST(OptionValues, real_numbers_are_in_their_range) {
  const Check check = real(0.5, 2);
  for (const char* const text : {"0.5", "1", "2", "2.0", "5e-1"}) EXPECT_EQ(check(text), "") << text;
  for (const char* const text : {"", "0.4999", "2.0001", "-1", "nan", "inf", "1s"})
    EXPECT_EQ(check(text), fmt::format("'{}': use a number from 0.5 to 2", text));
}

// CLI11 would read 010 as 8.
TEST(OptionValues, number_that_was_checked_is_the_number_that_is_read) {
  const auto parse = [](const char* text) {
    App app("a program", "it");
    std::uint32_t ranks = 0;
    app.add_option("--ranks", ranks, "How many").check(whole(1, 1024));
    const auto status = app.parse("it", {"--ranks", text});
    return status ? std::to_string(*status) + " at exit" : std::to_string(ranks);
  };
  EXPECT_EQ(parse("10"), "10");
  testing::internal::CaptureStderr();
  EXPECT_EQ(parse("010"), "2 at exit");
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("it: --ranks: '010': use it without the leading zero; see it --help"));
}

}  // namespace option_values_test
}  // namespace gdx::command_line
