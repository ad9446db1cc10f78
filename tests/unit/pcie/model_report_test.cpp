// The text of gdx model for a report of which no two figures are alike, and what it has gnuplot draw.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "driver-shim/pcie/model/plot.h"
#include "driver-shim/pcie/model/report.h"
#include "tests/expected_text.h"

namespace gdx::pcie {
namespace model_report_test {

namespace fs = std::filesystem;
using testing::HasSubstr;

Row row_of(Mode mode, std::uint64_t bytes, std::uint64_t number) {
  const auto figure = static_cast<double>(number);
  Row row{.mode = mode,
          .size_bytes = bytes,
          .latency = {.delivered_ns = 1234.5678 * figure, .completed_ns = 2345.6789 * figure, .counters = {}},
          .rate = Rate{.bytes_per_s = 1.25e9 * figure, .messages_per_s = 3.456789e6 * figure}};
  // Of the first row all purposes, and each of the others lacks some.
  for (std::uint64_t i = 0; i < kPurposes; ++i) {
    if (i % number == 0) row.latency.counters.reads[i] = {10 * number + i, 20 * number + i, 30 * number + i};
    if (i % number == 1) row.latency.counters.writes[i] = {40 * number + i, 50 * number + i, 60 * number + i};
  }
  return row;
}

Report report_of(const WorldConfig& world) {
  Report report{.world = world,
                .rows = {row_of(Mode::kPull, 8, 1), row_of(Mode::kPull, 4096, 2),
                         row_of(Mode::kPushFlags, 8, 3), row_of(Mode::kPushFlags, 4096, 4)},
                .not_possible = {"push of 8 B: why", "inline of 4096 B: this is why"}};
  report.rows[2].rate.reset();
  return report;
}

WorldConfig other_world() {
  WorldConfig world;
  world.path = PathClass::kSys;
  world.queues = QueuePlacement::kGpu;
  world.record = RecordUse::kUnread;
  world.wire = {.bits_per_s = 200e9, .mtu_bytes = 1024};
  world.staging = {.pool_bytes = 65536, .slot_bytes = 2048};
  world.ordering = {.gpu_scope_ns = 71, .system_scope_ns = 72};
  world.lanes = 5;
  world.batch = 3;
  world.platform.link = {.generation = Generation::kGen4, .lanes = 8, .mps_bytes = 512};
  world.platform.root.peer_read_lines = 47;
  world.platform.root.socket_bytes_per_s = 5e9;
  world.platform.host_memory.completion_bytes = 128;
  world.platform.gpu_store_bytes = 64;
  return world;
}

TEST(ModelReport, has_each_figure_and_what_they_depend_on) {
  Report today = report_of({});
  today.world.doorbell = DoorbellKind::kPlain;
  today.rows.resize(2);
  today.rows[0].latency.counters = {};
  today.not_possible.clear();
  WorldConfig given = other_world();
  given.platform.root.peer_read_lines_are = Origin::kGiven;
  WorldConfig unread = other_world();
  unread.platform.root.peer_reads = false;
  expect_text("model.txt", to_text(today) + to_text(report_of(other_world())) +
                               to_json(report_of(other_world())) + caveat(given) + "\n[" + caveat(unread) +
                               caveat({}) + "]\n");
}

// A program named gnuplot that keeps what it is told in a file, and ends with a status.
class ModelPlot : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_ / "bin");
    setenv("PATH", (folder_ / "bin").c_str(), 1);
  }
  void TearDown() override {
    setenv("PATH", path_.c_str(), 1);
    fs::remove_all(folder_);
  }
  void install(int status) const {
    const fs::path program = folder_ / "bin/gnuplot";
    std::ofstream(program) << "#!/bin/sh\nwhile read -r line; do printf '%s\\n' \"$line\"; done >" << told()
                           << "\nexit " << status << "\n";
    fs::permissions(program, fs::perms::owner_all);
  }
  [[nodiscard]] std::string told() const { return (folder_ / "told").string(); }
  [[nodiscard]] std::string text_for(const std::string& file) const {
    EXPECT_TRUE(plot(report_of(other_world()), file));
    std::ifstream in(told());
    return {std::istreambuf_iterator<char>(in), {}};
  }

  const std::string path_ = std::getenv("PATH");
  const fs::path folder_ = fs::path(testing::TempDir()) / ("gdx_plot_" + std::to_string(getpid()));
};

TEST_F(ModelPlot, has_a_curve_of_each_mode_and_figure) {
  install(0);
  expect_text("plot.txt", text_for("it's a plot.svg") + text_for("plot.png"));
}

TEST_F(ModelPlot, that_cannot_be_drawn_is_an_error_before_and_after) {
  const std::string file = (folder_ / "a.svg").string();
  const auto refusal = [&](const std::vector<std::uint64_t>& sizes, const std::string& to) {
    const auto checked = check_plot(sizes, to);
    return checked ? std::string() : checked.error().message;
  };
  EXPECT_EQ(refusal({8, 64}, file), "no plot: gnuplot is missing; install Debian's gnuplot-nox");
  EXPECT_EQ(check_plot({8, 64}, file).error().status, Status::kNotFound);
  install(3);
  EXPECT_EQ(refusal({8, 64}, file), "");
  EXPECT_EQ(refusal({8, 64}, (folder_ / "a.png").string()), "");
  EXPECT_THAT(refusal({8, 8}, file), HasSubstr("--plot: one size is no curve: give --size-bytes more"));
  EXPECT_THAT(refusal({8, 64}, "a.gif"),
              HasSubstr("'a.gif': give the name of a file that ends in .svg or .png"));
  EXPECT_EQ(
      refusal({8, 64}, "/nonexistent/a.svg"),
      "--plot: '/nonexistent/a.svg': cannot be written (No such file or directory); choose another place");
  EXPECT_EQ(plot(report_of({}), file).error().message,
            "no plot: gnuplot could not write " + file + "; choose another place");
}

}  // namespace model_report_test
}  // namespace gdx::pcie
