#include "host/calibration/thresholds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace gdx {
namespace thresholds_test {

using testing::ElementsAre;

constexpr double kNone = 0;  // this mode is not possible

MeasuredSize at(std::uint64_t bytes, double inlined, double push, double pull, double bounce) {
  MeasuredSize size{.bytes = bytes};
  const double ns[] = {inlined, push, pull, bounce};
  for (std::size_t mode = 0; mode < 4; ++mode) {
    if (ns[mode] != kNone) size.ns[mode] = ns[mode];
  }
  return size;
}

ModeTable table_of(const std::vector<MeasuredSize>& sizes) {
  const auto table = best_table(sizes);
  EXPECT_TRUE(table) << table.error().message;
  return table ? *table : ModeTable{};
}

TEST(Thresholds, are_the_largest_sizes_at_which_each_mode_wins) {
  EXPECT_EQ(table_of({at(8, 10, 20, 30, 40), at(128, 20, 10, 30, 40), at(256, kNone, 10, 30, 40),
                      at(4096, kNone, 40, 20, 30), at(8192, kNone, 40, 30, 20)}),
            (ModeTable{8, 256, 4096}));
}

TEST(Thresholds, range_that_reaches_the_largest_size_has_no_limit_unless_it_is_inlines) {
  EXPECT_EQ(table_of({at(8, 10, 20, 30, 40), at(4096, kNone, 10, 20, 30)}),
            (ModeTable{8, kNoSizeLimit, kNoSizeLimit}));
  EXPECT_EQ(table_of({at(8, 10, 20, 30, 40), at(4096, kNone, 20, 10, 30)}), (ModeTable{8, 8, kNoSizeLimit}));
  EXPECT_EQ(table_of({at(8, 40, 30, 20, 10), at(4096, kNone, 20, 20, 10)}), (ModeTable{0, 0, 0}));
  EXPECT_EQ(table_of({at(8, 10, 20, 30, 40), at(64, 10, 20, 30, 40)}), (ModeTable{64, 64, kNoSizeLimit}));
}

TEST(Thresholds, missing_modes_are_never_chosen) {
  EXPECT_EQ(table_of({at(8, 10, kNone, 30, 40), at(4096, kNone, kNone, 40, 20)}), (ModeTable{8, 8, 8}));
  EXPECT_EQ(table_of({at(8, kNone, kNone, 30, kNone)}), (ModeTable{0, 0, kNoSizeLimit}));
}

TEST(Thresholds, inline_beyond_a_work_request_is_never_chosen) {
  EXPECT_EQ(table_of({at(220, 10, 20, 30, 40), at(256, 10, 20, 30, 40), at(512, 10, 30, 20, 40)}),
            (ModeTable{220, 256, kNoSizeLimit}));
}

// At 64 B pull is a little faster, within what a round differs from another: no range of its own.
TEST(Thresholds, one_noisy_figure_does_not_part_a_range) {
  EXPECT_EQ(table_of({at(32, kNone, 10, 20, 40), at(64, kNone, 10.5, 10, 40), at(128, kNone, 10, 20, 40),
                      at(256, kNone, 40, 20, 40)}),
            (ModeTable{0, 128, kNoSizeLimit}));
}

TEST(Thresholds, of_equal_modes_pull_is_chosen) {
  EXPECT_EQ(table_of({at(8, 10, 10, 10, 10), at(4096, kNone, 10, 10, 10)}), (ModeTable{0, 0, kNoSizeLimit}));
}

TEST(Thresholds, measurements_without_a_figure_are_refused) {
  EXPECT_FALSE(best_table({}));
  const double inf = std::numeric_limits<double>::infinity();
  for (const MeasuredSize& spoiled : {MeasuredSize{.bytes = 8}, at(8, -1, 2, 3, 4), at(8, inf, 2, 3, 4),
                                      at(0, 1, 2, 3, 4), at(4096, 5, kNone, kNone, kNone)}) {
    EXPECT_FALSE(best_table({&spoiled, 1}));
  }
}

TEST(Thresholds, reasons_compare_the_middle_of_each_range) {
  const std::vector<MeasuredSize> sizes = {at(8, 1000, 2000, 3000, kNone), at(4096, kNone, 4096, 8192, kNone),
                                           at(1 << 20, kNone, 1 << 20, 1 << 19, kNone)};
  EXPECT_THAT(explain(table_of(sizes), sizes, "a test"),
              ElementsAre("inline from 8 B: at 8 B 1.0 us, push 2.0, pull 3.0; measured on a test",
                          "push from 4 KiB: at 4 KiB 1.00 GB/s, pull 0.50; measured on a test",
                          "pull from 1 MiB: at 1 MiB 2.00 GB/s, push 1.00; measured on a test"));
}

TEST(Thresholds, reasons_tell_the_spread_of_rounds) {
  MeasuredSize small = at(8, 1000, 2000, kNone, kNone);
  small.spread = {Spread{900, 1100}, Spread{1900, 2500}};
  MeasuredSize large = at(4096, kNone, 4096, 8192, kNone);
  large.spread[1] = {2048, 8192};
  const std::vector<MeasuredSize> sizes = {small, large};
  EXPECT_THAT(
      explain(table_of(sizes), sizes, "a test"),
      ElementsAre("inline from 8 B: at 8 B 1.0 us (0.9 to 1.1), push 2.0 (1.9 to 2.5); measured on a test",
                  "push from 4 KiB: at 4 KiB 1.00 GB/s (0.50 to 2.00), pull 0.50; measured on a test"));
}

}  // namespace thresholds_test
}  // namespace gdx
