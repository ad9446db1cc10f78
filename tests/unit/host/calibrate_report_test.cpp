// Table, report and file that gdx calibrate makes of measured times.
#include "host/programs/calibrate/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/expected_text.h"

namespace gdx::calibration {
namespace calibrate_report_test {

constexpr double kNone = 0;

// Adds a size with six rounds of each mode, whose median is `ns`; or none. `noise_ns` is one round's own.
void add_size(Measurement& measurement, std::uint64_t bytes, const std::array<double, 4>& ns,
              double noise_ns = 0) {
  ModeRounds rounds;
  for (std::size_t mode = 0; mode < ns.size(); ++mode) {
    if (ns[mode] == kNone) continue;
    rounds[mode] = {ns[mode] + 900, ns[mode] - 5, ns[mode], ns[mode] + 1, ns[mode] - 70, ns[mode] - 1};
    rounds[mode][mode] += noise_ns;
  }
  measurement.sizes.push_back(size_of_rounds(bytes, rounds));
  measurement.rounds.push_back(rounds);
}

Measurement by_gpu() {
  Measurement measurement{.payload = Placement::kGpu,
                          .shape = {.queues = Placement::kGpu,
                                    .slot_count = 32,
                                    .slot_bytes = 4096,
                                    .bounce_slot_count = 63,
                                    .bounce_slot_bytes = 65536,
                                    .blueflame = true},
                          .measured_on = "HCA mlx5_3 (firmware 28.1), kernels of a GPU",
                          .copies = 200,
                          .whole_copies = 190};
  add_size(measurement, 8, {1000, 1100, 2000, 3000});
  add_size(measurement, 28, {1010, 1120, 2010, 3010});
  add_size(measurement, 220, {1900, 1200, 2050, 3050});
  add_size(measurement, 4096, {kNone, 1900, 2200, 3300});
  add_size(measurement, 65536, {kNone, 40'000, 19'000, 24'000});
  add_size(measurement, 1 << 20, {kNone, 800'000, 190'000, 120'000});
  return measurement;
}

// Without memory of the NIC, and by plain doorbells.
Measurement by_cpu() {
  Measurement measurement{.shape = {.bounce_slot_count = 7, .bounce_slot_bytes = 8192},
                          .measured_on = "the software HCA, CPU kernels"};
  add_size(measurement, 8, {300, kNone, 200, 400});
  add_size(measurement, 6000, {kNone, kNone, 2200, 2000});
  return measurement;
}

TEST(CalibrateReport, has_the_table_and_each_figure_that_it_comes_from) {
  const std::string file = ::testing::TempDir() + "gdx_report_" + std::to_string(getpid());
  auto gpu = calibration_of("mlx5_3", {Processor::kGpu, PathClass::kNode}, by_gpu(), 6);
  auto cpu = calibration_of("gdx0", {}, by_cpu(), 4);
  ASSERT_TRUE(gpu && cpu);
  gpu->key.queue_layout_version = cpu->key.queue_layout_version = 3;
  ASSERT_TRUE(store_calibration(file, *gpu) && store_calibration(file, *cpu));
  std::ifstream kept(file);
  const std::string text(std::istreambuf_iterator<char>(kept), {});
  expect_text("calibrate.txt",
              report_text(*gpu, by_gpu(), "the file") + report_json(*gpu, by_gpu(), "the file") +
                  report_text(*cpu, by_cpu(), "another") + report_json(*cpu, by_cpu(), "another") + text);
  std::remove(file.c_str());
}

TEST(CalibrateReport, of_a_size_that_no_mode_serves_is_an_error) {
  Measurement measurement = by_cpu();
  add_size(measurement, 8192, {1, kNone, kNone, kNone});
  EXPECT_EQ(calibration_of("gdx0", {}, measurement, 5).error().status, Status::kInvalidArgument);
}

// Pull and bounce of 6000 B take less time in their medians, and in one round of six more than the other. At
// 8 B pull is faster in all rounds.
TEST(CalibrateReport, mode_changes_only_where_the_interval_of_its_ratio_excludes_1) {
  Measurement measurement{.shape = by_cpu().shape, .measured_on = "a test"};
  const ModeTable defaults = default_modes({}, measurement.shape).modes;
  add_size(measurement, 6000, {kNone, kNone, 2200, 2000}, 1000);
  auto made = calibration_of("gdx0", {}, measurement, 6);
  ASSERT_TRUE(made);
  EXPECT_EQ(made->modes, defaults) << "beyond the sizes that were measured, too";
  EXPECT_EQ(made->why.back(), "the default's mode at 1 of 1 sizes, where no other is faster beyond noise");
  EXPECT_THAT(report_text(*made, measurement, "x"), testing::HasSubstr("\nthe default stays: defaults for "));
  measurement.rounds.front()[2].resize(5);
  EXPECT_EQ(calibration_of("gdx0", {}, measurement, 5)->why.back(),
            "the default's mode at 1 of 1 sizes, where no other is faster beyond noise, by too few rounds");
  Measurement faster{.shape = by_cpu().shape, .measured_on = "a test"};
  add_size(faster, 6000, {kNone, kNone, 2200, 2000});
  made = calibration_of("gdx0", {}, faster, 6);
  ASSERT_TRUE(made);
  EXPECT_EQ(mode_of(made->modes, 6000), TableMode::kBounce);
  EXPECT_EQ(made->why.back(), "the default's mode at 0 of 1 sizes, where no other is faster beyond noise");
}

// Of an even number of rounds the upper one of the two in the middle.
TEST(CalibrateReport, median_is_that_of_the_rounds_in_any_order) {
  const MeasuredSize size = size_of_rounds(64, {{{7}, {4, 1, 3, 2}, {}, {9, 1, 5}}});
  EXPECT_EQ(size.bytes, 64u);
  const std::array<std::optional<double>, 4> medians = {7, 3, std::nullopt, 5};
  EXPECT_EQ(size.ns, medians);
  EXPECT_EQ(size.spread[1].least_ns, 1);
  EXPECT_EQ(size.spread[3].most_ns, 9);
  EXPECT_EQ(size.spread[2].most_ns, 0);
}

}  // namespace calibrate_report_test
}  // namespace gdx::calibration
