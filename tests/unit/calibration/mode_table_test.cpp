#include "host/calibration/mode_table.h"
#include "base/size_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gdx {
namespace mode_table_test {

using testing::HasSubstr;

constexpr ModeMeans kAll{true, true};
constexpr ModeMeans kNone{false, false};
constexpr ModeMeans kPushOnly{true, false};
constexpr ModeMeans kBounceOnly{false, true};
constexpr DoorbellKind kPlain = DoorbellKind::kPlain;
constexpr DoorbellKind kBlueFlame = DoorbellKind::kBlueFlame;

std::string refusal_of(const ModeTable& table, ModeMeans means) {
  const auto checked = check_mode_table(table, means);
  if (checked) return "";
  EXPECT_EQ(checked.error().status, Status::kInvalidArgument);
  return checked.error().message;
}

TEST(ModeTable, possible_tables_pass) {
  EXPECT_EQ(refusal_of({28, 4096, 65536}, kAll), "");
  EXPECT_EQ(refusal_of({220, 220, 220}, kAll), "");
  EXPECT_EQ(refusal_of({0, 0, 0}, kBounceOnly), "");
  EXPECT_EQ(refusal_of({0, kNoSizeLimit, kNoSizeLimit}, kPushOnly), "");
  EXPECT_EQ(refusal_of({28, 28, kNoSizeLimit}, kNone), "");
}

TEST(ModeTable, impossible_tables_are_refused_with_the_threshold) {
  EXPECT_THAT(refusal_of({221, 4096, kNoSizeLimit}, kAll), HasSubstr("inline up to 221 B does not fit"));
  EXPECT_THAT(refusal_of({kNoSizeLimit, kNoSizeLimit, kNoSizeLimit}, kAll),
              HasSubstr("inline up to any size"));
  EXPECT_THAT(refusal_of({28, 27, kNoSizeLimit}, kAll),
              HasSubstr("push up to 27 B ends below inline up to 28 B"));
  EXPECT_THAT(refusal_of({28, 4096, 4095}, kAll),
              HasSubstr("pull up to 4095 B ends below push up to 4096 B"));
  EXPECT_THAT(refusal_of({28, 4096, kNoSizeLimit}, kNone), HasSubstr("no slots of the NIC's memory"));
  EXPECT_THAT(refusal_of({28, 28, 4096}, kPushOnly), HasSubstr("no slots of host memory"));
}

TEST(ModeTable, defaults_are_possible_whatever_the_path_and_the_means) {
  for (const ModeMeans means : {kAll, kNone, kPushOnly, kBounceOnly}) {
    for (const Placement queues : {Placement::kHost, Placement::kGpu}) {
      for (const DoorbellKind doorbell : {kPlain, kBlueFlame}) {
        EXPECT_EQ(refusal_of(default_mode_table(std::nullopt, queues, means, doorbell), means), "");
        for (const PathClass path : kPathClasses)
          EXPECT_EQ(refusal_of(default_mode_table(path, queues, means, doorbell), means), "");
      }
    }
  }
}

TEST(ModeTable, defaults_pull_nothing_across_a_root_complex_that_can_be_stored) {
  for (const PathClass path : {PathClass::kPhb, PathClass::kNode, PathClass::kSys}) {
    EXPECT_EQ(default_mode_table(path, Placement::kHost, kAll, kBlueFlame), (ModeTable{28, 16384, 16384}));
    EXPECT_EQ(default_mode_table(path, Placement::kHost, kPushOnly, kBlueFlame),
              (ModeTable{28, kNoSizeLimit, kNoSizeLimit}));
    EXPECT_EQ(default_mode_table(path, Placement::kHost, kBounceOnly, kBlueFlame), (ModeTable{28, 28, 28}));
    EXPECT_EQ(default_mode_table(path, Placement::kHost, kNone, kBlueFlame),
              (ModeTable{28, 28, kNoSizeLimit}));
  }
  EXPECT_EQ(default_mode_table(PathClass::kPix, Placement::kHost, kAll, kBlueFlame),
            (ModeTable{28, 16384, kNoSizeLimit}));
  EXPECT_EQ(default_mode_table(std::nullopt, Placement::kHost, kAll, kBlueFlame),
            (ModeTable{28, 4096, kNoSizeLimit}));
}

TEST(ModeTable, defaults_with_queues_in_gpu_memory_push_only_between_root_complexes_without_bounce) {
  constexpr Placement kGpu = Placement::kGpu;
  for (const ModeMeans means : {kAll, kNone, kPushOnly, kBounceOnly}) {
    EXPECT_EQ(default_mode_table(PathClass::kPxb, kGpu, means, kBlueFlame),
              (ModeTable{28, 28, kNoSizeLimit}));
  }
  EXPECT_EQ(default_mode_table(PathClass::kPhb, kGpu, kAll, kBlueFlame), (ModeTable{28, 28, 8192}));
  EXPECT_EQ(default_mode_table(PathClass::kPhb, kGpu, kPushOnly, kBlueFlame),
            (ModeTable{28, 28, kNoSizeLimit}));
  EXPECT_EQ(default_mode_table(PathClass::kSys, kGpu, kAll, kBlueFlame), (ModeTable{28, 28, 4096}));
  for (const PathClass path : {PathClass::kNode, PathClass::kSys}) {
    EXPECT_EQ(default_mode_table(path, kGpu, kPushOnly, kBlueFlame),
              (ModeTable{28, kNoSizeLimit, kNoSizeLimit}));
  }
  EXPECT_EQ(default_mode_table(PathClass::kSys, kGpu, kNone, kBlueFlame), (ModeTable{28, 28, kNoSizeLimit}));
}

// Every mode then reads record and WQE, so that longer inline data saves the payload's read at no cost.
TEST(ModeTable, defaults_by_plain_doorbells_differ_in_inline_data_where_nothing_is_pushed) {
  constexpr Placement kGpu = Placement::kGpu;
  EXPECT_EQ(default_mode_table(PathClass::kPix, Placement::kHost, kAll, kPlain),
            (ModeTable{28, 16384, kNoSizeLimit}));
  EXPECT_EQ(default_mode_table(PathClass::kPix, Placement::kHost, kNone, kPlain),
            (ModeTable{220, 220, kNoSizeLimit}));
  EXPECT_EQ(default_mode_table(PathClass::kSys, Placement::kHost, kBounceOnly, kPlain),
            (ModeTable{220, 220, 220}));
  EXPECT_EQ(default_mode_table(PathClass::kSys, kGpu, kAll, kPlain), (ModeTable{220, 220, 4096}));
  EXPECT_EQ(default_mode_table(PathClass::kSys, kGpu, kPushOnly, kPlain),
            (ModeTable{220, kNoSizeLimit, kNoSizeLimit}));
  EXPECT_EQ(default_mode_table(std::nullopt, kGpu, kNone, kPlain), (ModeTable{28, 28, kNoSizeLimit}));
}

TEST(ModeTable, missing_means_leave_their_sizes_to_pull) {
  constexpr ModeTable kMeasured{28, 4096, 65536};
  EXPECT_EQ(with_pull_for_missing(kMeasured, kAll), kMeasured);
  EXPECT_EQ(with_pull_for_missing(kMeasured, kPushOnly), (ModeTable{28, 4096, kNoSizeLimit}));
  EXPECT_EQ(with_pull_for_missing(kMeasured, kBounceOnly), (ModeTable{28, 28, 65536}));
  EXPECT_EQ(with_pull_for_missing(kMeasured, kNone), (ModeTable{28, 28, kNoSizeLimit}));
}

TEST(ModeTable, description_names_the_ranges_that_are_not_empty) {
  EXPECT_EQ(describe(ModeTable{28, 4096, kNoSizeLimit}), "inline up to 28 B, push up to 4 KiB, then pull");
  EXPECT_EQ(describe(ModeTable{0, 0, 0}), "always bounce");
  EXPECT_EQ(describe(ModeTable{0, kNoSizeLimit, kNoSizeLimit}), "always push");
  EXPECT_EQ(describe(ModeTable{28, 28, 1 << 20}), "inline up to 28 B, pull up to 1 MiB, then bounce");
  EXPECT_EQ(size_text(6000), "6000 B");
}

}  // namespace mode_table_test
}  // namespace gdx
