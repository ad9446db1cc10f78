// Calibration files, honest and hostile, and what an endpoint makes of them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "host/calibration/calibration_file.h"
#include "host/calibration/choose_modes.h"

namespace gdx {
namespace calibration_test {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr QueueShape kShape{.slot_count = 32,
                            .slot_bytes = 4096,
                            .bounce_slot_count = 64,
                            .bounce_slot_bytes = 65536,
                            .blueflame = true};
constexpr ModeMeans kAll{true, true};

// By kernels on a GPU with payload in its memory.
Calibration measured(const std::string& hca, std::optional<PathClass> path, const ModeTable& modes) {
  return {.key = {.hca = hca,
                  .kernels = Processor::kGpu,
                  .payload = Placement::kGpu,
                  .path = path,
                  .shape = kShape},
          .modes = modes,
          .rounds = 5,
          .measured_on = "HCA mlx5_0, kernels of a GPU",
          .why = {"push from 29 B: faster"}};
}

Calibration measured_by_cpu(const ModeTable& modes) {
  Calibration table = measured("mlx5_0", std::nullopt, modes);
  table.key.kernels = Processor::kCpu;
  table.key.payload = Placement::kHost;
  return table;
}

class CalibrationFile : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / ("gdx_calibration_" + std::to_string(getpid()));
    fs::create_directories(folder_);
    file_ = (folder_ / "calibration.json").string();
    setenv("XDG_CONFIG_HOME", (folder_ / "config").c_str(), 1);
    unsetenv(kCalibrationVariable);
    setenv(kPathClassVariable, "SYS", 1);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const std::string& text) const {
    fs::create_directories(fs::path(file_).parent_path());
    std::ofstream(file_, std::ios::binary) << text;
  }
  // A file of one table, whose fields these replace or are added to.
  void write_table(const std::string& fields) const {
    write(R"({"format": "gdx calibration", "version": 4, "tables": [{"hca": "mlx5_0", "kernels": "gpu",
              "payload": "gpu", "path_class": "SYS", "queues": "host", "slot_count": 32, "slot_bytes": 4096,
              "bounce_slot_count": 64, "bounce_slot_bytes": 65536, "blueflame": true, "queue_layout_version": 6,
              "inline_bytes": 28, "push_bytes": 4096, "pull_bytes": null, "rounds": 5, "measured_on": "x",
              "why": [])" +
          fields + "}]}");
  }
  [[nodiscard]] std::string refusal() const {
    const auto read = read_calibrations(file_);
    if (read) return "";
    EXPECT_EQ(read.error().message.find('\n'), std::string::npos);
    EXPECT_THAT(read.error().message, HasSubstr(file_));
    EXPECT_THAT(read.error().message, HasSubstr("gdx calibrate"));
    return read.error().message;
  }

  fs::path folder_;
  std::string file_;
};

TEST_F(CalibrationFile, stored_table_is_read_back) {
  const Calibration stored = measured("mlx5_0", PathClass::kSys, {28, 4096, 65536});
  ASSERT_TRUE(store_calibration(file_, stored));
  const auto read = read_calibrations(file_);
  ASSERT_TRUE(read) << read.error().message;
  ASSERT_THAT(*read, SizeIs(1));
  EXPECT_EQ(read->front().key, stored.key);
  EXPECT_EQ(read->front().modes, stored.modes);
  EXPECT_EQ(read->front().rounds, stored.rounds);
  EXPECT_EQ(read->front().measured_on, stored.measured_on);
  EXPECT_EQ(read->front().why, stored.why);
}

TEST_F(CalibrationFile, no_limit_and_no_path_survive) {
  ASSERT_TRUE(store_calibration(file_, measured("gdx0", std::nullopt, {0, kNoSizeLimit, kNoSizeLimit})));
  const auto read = read_calibrations(file_);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->front().key.path, std::nullopt);
  EXPECT_EQ(read->front().modes, (ModeTable{0, kNoSizeLimit, kNoSizeLimit}));
}

TEST_F(CalibrationFile, table_takes_the_place_of_its_own_key_alone) {
  ASSERT_TRUE(store_calibration(file_, measured("mlx5_0", PathClass::kSys, {28, 28, 28})));
  ASSERT_TRUE(store_calibration(file_, measured("mlx5_0", PathClass::kPix, {1, 1, 1})));
  ASSERT_TRUE(store_calibration(file_, measured("mlx5_0", PathClass::kSys, {28, 64, 64})));
  const auto read = read_calibrations(file_);
  ASSERT_TRUE(read) << read.error().message;
  ASSERT_THAT(*read, SizeIs(2));
  EXPECT_EQ(read->front().modes, (ModeTable{1, 1, 1}));
  EXPECT_EQ(read->back().modes, (ModeTable{28, 64, 64}));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1) << "nothing but the file is left";
}

TEST_F(CalibrationFile, what_is_no_calibration_is_left_alone) {
  write("precious");
  const auto stored = store_calibration(file_, measured("mlx5_0", PathClass::kSys, {28, 28, 28}));
  ASSERT_FALSE(stored);
  EXPECT_EQ(stored.error().status, Status::kInvalidArgument);
  std::ifstream in(file_);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), "precious");
}

TEST_F(CalibrationFile, place_that_cannot_be_written_is_said) {
  write("");
  const auto stored = store_calibration(file_ + "/x/y.json", measured("mlx5_0", std::nullopt, {28, 28, 28}));
  ASSERT_FALSE(stored);
  EXPECT_EQ(stored.error().status, Status::kSystem);
  EXPECT_THAT(stored.error().message, HasSubstr("--output"));
}

TEST_F(CalibrationFile, hostile_files_are_refused_in_one_line) {
  for (const char* text :
       {"", "[", "[]", "{}", "null", "\xff\xfe", "{\"format\": 7}", "{\"format\": \"gdx calibration\"}",
        "{\"format\": \"gdx calibration\", \"version\": \"1\"}",
        "{\"format\": \"gdx calibration\", \"version\": 4}",
        "{\"format\": \"gdx calibration\", \"version\": 4, \"tables\": {}}",
        "{\"format\": \"gdx calibration\", \"version\": 4, \"tables\": [7]}",
        "{\"format\": \"gdx calibration\", \"version\": 4, \"tables\": [{}]}",
        "{\"format\": \"gdx calibration\", \"version\": 4, \"tables\": []} and more"}) {
    write(text);
    EXPECT_NE(refusal(), "") << text;
  }
  write(std::string(500'000, '['));
  EXPECT_NE(refusal(), "");
  write(std::string((1 << 20) + 1, ' '));
  EXPECT_THAT(refusal(), HasSubstr("1 MiB"));
}

// The later of two fields with one name counts.
TEST_F(CalibrationFile, hostile_fields_are_refused_by_name) {
  write_table("");
  EXPECT_EQ(refusal(), "");
  write_table(R"(, "hca": "")");
  EXPECT_THAT(refusal(), HasSubstr("hca"));
  write_table(R"(, "hca": "a\u001b[2J")");
  EXPECT_THAT(refusal(), HasSubstr("hca"));
  write_table(R"(, "path_class": "FAR")");
  EXPECT_THAT(refusal(), HasSubstr("path_class"));
  write_table(R"(, "kernels": "fpga")");
  EXPECT_THAT(refusal(), HasSubstr("kernels of a table is not cpu or gpu"));
  write_table(R"(, "payload": 1)");
  EXPECT_THAT(refusal(), HasSubstr("payload of a table is not host or gpu"));
  write_table(R"(, "queues": "")");
  EXPECT_THAT(refusal(), HasSubstr("queues"));
  write_table(R"(, "slot_bytes": 4294967296)");
  EXPECT_THAT(refusal(), HasSubstr("slot_bytes"));
  write_table(R"(, "blueflame": 1)");
  EXPECT_THAT(refusal(), HasSubstr("blueflame"));
  write_table(R"(, "rounds": 1001)");
  EXPECT_THAT(refusal(), HasSubstr("rounds"));
  write_table(R"(, "queue_layout_version": 4294967296)");
  EXPECT_THAT(refusal(), HasSubstr("queue_layout_version"));
  write_table(R"(, "push_bytes": -1)");
  EXPECT_THAT(refusal(), HasSubstr("push_bytes"));
  write_table(R"(, "push_bytes": 4096.5)");
  EXPECT_THAT(refusal(), HasSubstr("push_bytes"));
  write_table(R"(, "push_bytes": 27)");
  EXPECT_THAT(refusal(), HasSubstr("push up to 27 B ends below"));
  write_table(R"(, "inline_bytes": 4096)");
  EXPECT_THAT(refusal(), HasSubstr("does not fit a work request"));
  write_table(R"(, "why": "because")");
  EXPECT_THAT(refusal(), HasSubstr("why"));
  write_table(R"(, "why": [1])");
  EXPECT_THAT(refusal(), HasSubstr("why"));
}

// Fields of a table that is read, in the order of the file.
constexpr std::pair<const char*, const char*> kFields[] = {{"hca", "\"mlx5_0\""},
                                                           {"kernels", "\"gpu\""},
                                                           {"payload", "\"gpu\""},
                                                           {"path_class", "\"SYS\""},
                                                           {"queues", "\"host\""},
                                                           {"slot_count", "32"},
                                                           {"slot_bytes", "4096"},
                                                           {"bounce_slot_count", "64"},
                                                           {"bounce_slot_bytes", "65536"},
                                                           {"blueflame", "true"},
                                                           {"queue_layout_version", "6"},
                                                           {"inline_bytes", "28"},
                                                           {"push_bytes", "4096"},
                                                           {"pull_bytes", "null"},
                                                           {"rounds", "5"},
                                                           {"measured_on", "\"x\""},
                                                           {"why", "[]"}};

// A table without the field `changed`, or with `value` in it.
std::string table_with(const std::string& changed, const char* value) {
  std::string text = "{\"other\": 0";
  for (const auto& [name, usual] : kFields) {
    if (name != changed || value != nullptr)
      text += fmt::format(", \"{}\": {}", name, name == changed ? value : usual);
  }
  return text + "}";
}

TEST_F(CalibrationFile, each_field_is_needed_and_has_its_type) {
  const auto write_one = [&](const std::string& table) {
    write(R"({"format": "gdx calibration", "version": 4, "tables": [)" + table + "]}");
    return refusal();
  };
  EXPECT_EQ(write_one(table_with("", nullptr)), "");
  for (const auto& [name, usual] : kFields) {
    EXPECT_THAT(write_one(table_with(name, nullptr)), HasSubstr(fmt::format("a table has no {};", name)));
    for (const char* const wrong : {"{}", "-1", "[[]]"})
      EXPECT_THAT(write_one(table_with(name, wrong)), HasSubstr(fmt::format("{} of a table is not ", name)))
          << wrong;
  }
  EXPECT_THAT(write_one("7"), HasSubstr("a table is not an object"));
}

TEST_F(CalibrationFile, limits_of_the_format_hold_at_their_ends) {
  const auto texts = [](std::size_t count) {
    std::string list = "[";
    for (std::size_t i = 0; i < count; ++i) list += i == 0 ? "\"a\"" : ", \"a\"";
    return list + "]";
  };
  const auto text = [](std::size_t length) { return "\"" + std::string(length, '~') + "\""; };
  const struct {
    const char* field;
    std::string value;
    bool good;
  } cases[] = {{"why", texts(8), true},
               {"why", texts(9), false},
               {"hca", text(400), true},
               {"hca", text(401), false},
               {"measured_on", text(400), true},
               {"measured_on", "\"\"", false},
               {"measured_on", "\" ~\"", true},
               {"measured_on", "\"\\u007f\"", false},
               {"rounds", "1000", true},
               {"rounds", "1001", false},
               {"slot_count", "4294967295", true},
               {"slot_count", "4294967296", false},
               {"bounce_slot_count", "4294967296", false},
               {"bounce_slot_bytes", "4294967296", false},
               {"inline_bytes", "220", true},
               {"inline_bytes", "221", false},
               {"pull_bytes", "18446744073709551614", true},
               {"pull_bytes", "18446744073709551615", false}};
  for (const auto& [field, value, good] : cases) {
    write(R"({"format": "gdx calibration", "version": 4, "tables": [)" + table_with(field, value.c_str()) +
          "]}");
    EXPECT_EQ(refusal().empty(), good) << field << " " << value.substr(0, 30);
  }
  for (const int count : {1000, 1001}) {
    std::string tables;
    for (int i = 0; i < count; ++i)
      tables += (i == 0 ? "" : ", ") + table_with("hca", fmt::format("\"mlx5_{}\"", i).c_str());
    write(R"({"format": "gdx calibration", "version": 4, "tables": [)" + tables + "]}");
    EXPECT_EQ(refusal().empty(), count == 1000) << count;
  }
}

TEST_F(CalibrationFile, field_is_kept_under_its_own_name) {
  Calibration stored = measured("mlx5_3", PathClass::kNode, {7, 77, 777});
  stored.key.payload = Placement::kHost;
  stored.key.queue_layout_version = 3;
  stored.key.shape = {.queues = Placement::kGpu,
                      .slot_count = 11,
                      .slot_bytes = 12,
                      .bounce_slot_count = 13,
                      .bounce_slot_bytes = 14,
                      .blueflame = false};
  stored.why = {"one", "two"};
  ASSERT_TRUE(store_calibration(file_, stored));
  std::ifstream in(file_);
  std::string text(std::istreambuf_iterator<char>(in), {});
  std::erase_if(text, [](char c) { return c == ' ' || c == '\n'; });
  EXPECT_EQ(
      text,
      R"({"format":"gdxcalibration","version":4,"tables":[{"hca":"mlx5_3","kernels":"gpu","payload":"host",)"
      R"("path_class":"NODE","queues":"gpu","slot_count":11,"slot_bytes":12,"bounce_slot_count":13,)"
      R"("bounce_slot_bytes":14,"blueflame":false,"queue_layout_version":3,"inline_bytes":7,"push_bytes":77,)"
      R"("pull_bytes":777,"rounds":5,"measured_on":"HCAmlx5_0,kernelsofaGPU","why":["one","two"]}]})");
  EXPECT_EQ(read_calibrations(file_)->front().key, stored.key);
  EXPECT_EQ(describe(stored.key.shape),
            "queues in gpu memory, 11 slots of 12 B, 13 bounce slots of 14 B, plain doorbells");
  EXPECT_EQ(describe(QueueShape{}), "queues in host memory, no slots, no bounce slots, plain doorbells");
  EXPECT_EQ(describe(stored.key), "HCA mlx5_3, kernels on a GPU with payload in host memory, NODE path");
  stored.key.path.reset();
  EXPECT_EQ(describe(stored.key),
            "HCA mlx5_3, kernels on a GPU with payload in host memory, path of unknown class");
  EXPECT_EQ(describe(measured_by_cpu({}).key), "HCA mlx5_0, kernels on a CPU");
}

TEST_F(CalibrationFile, other_version_is_a_version_mismatch) {
  write(R"({"format": "gdx calibration", "version": 1, "tables": []})");
  EXPECT_THAT(refusal(), HasSubstr("version 1, this gdx reads 4"));
  EXPECT_EQ(read_calibrations(file_).error().status, Status::kVersionMismatch);
}

TEST_F(CalibrationFile, two_tables_of_one_key_are_refused) {
  ASSERT_TRUE(store_calibration(file_, measured("mlx5_0", PathClass::kSys, {28, 28, 28})));
  std::ifstream in(file_);
  std::string text(std::istreambuf_iterator<char>(in), {});
  const std::size_t from = text.find('[') + 1;
  const std::string table = text.substr(from, text.rfind(']') - from);
  write(text.insert(from, table + ","));
  EXPECT_THAT(refusal(),
              HasSubstr("two tables for HCA mlx5_0, kernels on a GPU with payload in its memory, SYS path"));
}

// A file by another hand, or of a gdx that kept a CPU's results under a GPU's path.
TEST_F(CalibrationFile, table_of_kernels_on_a_cpu_with_a_path_is_refused) {
  write_table(R"(, "kernels": "cpu", "payload": "host")");
  EXPECT_THAT(refusal(), HasSubstr("kernels on a CPU have no path"));
  write_table(R"(, "kernels": "cpu", "path_class": null)");
  EXPECT_THAT(refusal(), HasSubstr("no payload in its memory"));
  write_table(R"(, "kernels": "cpu", "payload": "host", "path_class": null)");
  EXPECT_EQ(refusal(), "");
}

// Opening one would wait for a writer.
TEST_F(CalibrationFile, pipes_and_folders_are_no_files) {
  ASSERT_EQ(mkfifo(file_.c_str(), 0600), 0);
  EXPECT_THAT(refusal(), HasSubstr("regular"));
  EXPECT_EQ(read_calibrations(folder_.string()).error().status, Status::kInvalidArgument);
}

class ChooseModes : public CalibrationFile {
 protected:
  static ModeChoice chosen(const ModeOptions& options, const QueueShape& shape = kShape) {
    auto choice = choose_modes("mlx5_0", options, shape);
    EXPECT_TRUE(choice) << choice.error().message;
    return choice ? *choice : ModeChoice{};
  }
  static Error refused(const ModeOptions& options, const QueueShape& shape = kShape) {
    auto choice = choose_modes("mlx5_0", options, shape);
    EXPECT_FALSE(choice);
    return choice ? Error{Status::kOk, ""} : choice.error();
  }
};

TEST_F(ChooseModes, without_a_file_defaults_of_the_path_serve) {
  const ModeChoice choice = chosen({});
  EXPECT_EQ(choice.modes,
            default_mode_table(PathClass::kSys, Placement::kHost, kAll, DoorbellKind::kBlueFlame));
  EXPECT_EQ(choice.site.path, PathClass::kSys);
  EXPECT_EQ(choice.site.kernels, Processor::kGpu);
  EXPECT_THAT(choice.why,
              HasSubstr("defaults for a SYS path, BlueFlame and queues in host memory, modelled: "));
  EXPECT_THAT(choice.why, HasSubstr(default_calibration_file()));
  EXPECT_EQ(chosen({.path = PathClass::kPix}).modes,
            default_mode_table(PathClass::kPix, Placement::kHost, kAll, DoorbellKind::kBlueFlame));
}

TEST_F(ChooseModes, defaults_go_by_where_queues_are) {
  QueueShape beside = kShape;
  beside.queues = Placement::kGpu;
  const ModeChoice choice = chosen({}, beside);
  EXPECT_EQ(choice.modes,
            default_mode_table(PathClass::kSys, Placement::kGpu, kAll, DoorbellKind::kBlueFlame));
  EXPECT_NE(choice.modes, chosen({}).modes);
  EXPECT_THAT(choice.why,
              HasSubstr("defaults for a SYS path, BlueFlame and queues in GPU memory, modelled: "));
}

TEST_F(ChooseModes, defaults_go_by_the_kind_of_doorbell) {
  QueueShape plain = kShape;
  plain.queues = Placement::kGpu;
  plain.blueflame = false;
  const ModeChoice choice = chosen({}, plain);
  EXPECT_EQ(choice.modes, default_mode_table(PathClass::kSys, Placement::kGpu, kAll, DoorbellKind::kPlain));
  EXPECT_THAT(choice.why, HasSubstr("defaults for a SYS path, plain doorbells and queues in GPU memory"));
}

TEST_F(ChooseModes, file_at_the_default_place_is_found) {
  ASSERT_TRUE(
      store_calibration(default_calibration_file(), measured("mlx5_0", PathClass::kSys, {7, 77, 777})));
  EXPECT_EQ(chosen({}).modes, (ModeTable{7, 77, 777}));
  EXPECT_THAT(chosen({}).why, HasSubstr("measured on HCA mlx5_0, kernels of a GPU"));
  QueueShape no_bounce = kShape;
  no_bounce.bounce_slot_count = no_bounce.bounce_slot_bytes = 0;
  EXPECT_EQ(chosen({}, no_bounce).modes, (ModeTable{7, 77, kNoSizeLimit}));
  setenv(kCalibrationVariable, "", 1);
  EXPECT_EQ(chosen({}).modes,
            default_mode_table(PathClass::kSys, Placement::kHost, kAll, DoorbellKind::kBlueFlame));
}

TEST_F(ChooseModes, option_goes_before_the_variable_and_the_variable_before_the_default_place) {
  ASSERT_TRUE(store_calibration(default_calibration_file(), measured("mlx5_0", PathClass::kSys, {1, 1, 1})));
  const std::string second = (folder_ / "second.json").string();
  ASSERT_TRUE(store_calibration(second, measured("mlx5_0", PathClass::kSys, {2, 2, 2})));
  setenv(kCalibrationVariable, second.c_str(), 1);
  EXPECT_EQ(chosen({}).modes, (ModeTable{2, 2, 2}));
  ASSERT_TRUE(store_calibration(file_, measured("mlx5_0", PathClass::kSys, {3, 3, 3})));
  EXPECT_EQ(chosen({.calibration_file = file_}).modes, (ModeTable{3, 3, 3}));
  EXPECT_EQ(chosen({.table = ModeTable{4, 4, 4}, .calibration_file = file_}).modes, (ModeTable{4, 4, 4}));
}

TEST_F(ChooseModes, unfit_file_at_the_default_place_leaves_defaults) {
  file_ = default_calibration_file();
  write("rubbish");
  EXPECT_EQ(chosen({}).modes,
            default_mode_table(PathClass::kSys, Placement::kHost, kAll, DoorbellKind::kBlueFlame));
  EXPECT_THAT(chosen({}).why, HasSubstr("is no calibration"));
}

TEST_F(ChooseModes, named_file_that_does_not_fit_is_an_error) {
  EXPECT_EQ(refused({.calibration_file = file_}).status, Status::kNotFound);
  write("rubbish");
  EXPECT_EQ(refused({.calibration_file = file_}).status, Status::kInvalidArgument);
  setenv(kCalibrationVariable, file_.c_str(), 1);
  EXPECT_EQ(refused({}).status, Status::kInvalidArgument);
}

TEST_F(ChooseModes, foreign_file_is_told_from_an_older_one) {
  ASSERT_TRUE(store_calibration(file_, measured("mlx5_9", PathClass::kSys, {1, 1, 1})));
  EXPECT_THAT(
      refused({.calibration_file = file_}).message,
      HasSubstr("has no table for HCA mlx5_0, kernels on a GPU with payload in its memory, SYS path;"));
  Calibration older = measured("mlx5_0", PathClass::kSys, {1, 1, 1});
  older.key.queue_layout_version = kQueueLayoutVersion - 1;
  ASSERT_TRUE(store_calibration(file_, older));
  EXPECT_THAT(refused({.calibration_file = file_}).message,
              HasSubstr(fmt::format("measured with layout {} of queues, and this is {}",
                                    kQueueLayoutVersion - 1, kQueueLayoutVersion)));
  EXPECT_EQ(refused({.calibration_file = file_}).status, Status::kVersionMismatch);
}

// The mistake this guards against: host memory and CPU kernels know nothing of a GPU behind two sockets.
TEST_F(ChooseModes, what_kernels_on_a_cpu_measured_is_for_kernels_on_a_cpu) {
  ASSERT_TRUE(store_calibration(default_calibration_file(), measured_by_cpu({7, 77, 777})));
  EXPECT_EQ(chosen({}).modes,
            default_mode_table(PathClass::kSys, Placement::kHost, kAll, DoorbellKind::kBlueFlame));
  EXPECT_EQ(chosen({.kernels = Processor::kGpu}).modes,
            default_mode_table(PathClass::kSys, Placement::kHost, kAll, DoorbellKind::kBlueFlame));
  const ModeChoice on_cpu = chosen({.kernels = Processor::kCpu});
  EXPECT_EQ(on_cpu.modes, (ModeTable{7, 77, 777}));
  EXPECT_EQ(on_cpu.site.path, std::nullopt);
  unsetenv(kPathClassVariable);
  EXPECT_EQ(chosen({.kernels = Processor::kGpu}).modes,
            default_mode_table(std::nullopt, Placement::kHost, kAll, DoorbellKind::kBlueFlame));
}

TEST_F(ChooseModes, payload_elsewhere_has_a_table_of_its_own) {
  ASSERT_TRUE(store_calibration(file_, measured("mlx5_0", PathClass::kSys, {7, 77, 777})));
  EXPECT_EQ(chosen({.calibration_file = file_}).modes, (ModeTable{7, 77, 777}));
  EXPECT_THAT(refused({.payload = Placement::kHost, .calibration_file = file_}).message,
              HasSubstr("kernels on a GPU with payload in host memory, SYS path"));
}

TEST_F(ChooseModes, sites_that_cannot_be_are_refused) {
  EXPECT_EQ(refused({.kernels = Processor::kCpu, .path = PathClass::kSys}).status, Status::kInvalidArgument);
  EXPECT_EQ(refused({.kernels = Processor::kCpu, .gpu = "0000:3b:00.0"}).status, Status::kInvalidArgument);
  EXPECT_EQ(refused({.kernels = Processor::kCpu, .payload = Placement::kGpu}).status,
            Status::kInvalidArgument);
  EXPECT_THAT(refused({.gpu = "the first"}).message, HasSubstr("GPU 'the first': use its PCI bus id"));
}

TEST_F(ChooseModes, table_measured_with_another_shape_is_not_applied) {
  ASSERT_TRUE(store_calibration(file_, measured("mlx5_0", PathClass::kSys, {7, 77, 777})));
  QueueShape one_slot = kShape;
  one_slot.slot_count = 1;
  const Error fewer = refused({.calibration_file = file_}, one_slot);
  EXPECT_EQ(fewer.status, Status::kUnsupported);
  EXPECT_THAT(fewer.message,
              HasSubstr("but measured with queues in host memory, 32 slots of 4 KiB, 64 bounce "
                        "slots of 64 KiB, BlueFlame, and this endpoint has queues in host memory, "
                        "1 slots of 4 KiB"));
  for (const auto& change :
       {+[](QueueShape& s) { s.slot_bytes = 2048; }, +[](QueueShape& s) { s.bounce_slot_count = 63; },
        +[](QueueShape& s) { s.bounce_slot_bytes = 4096; }, +[](QueueShape& s) { s.blueflame = false; },
        +[](QueueShape& s) { s.queues = Placement::kGpu; }}) {
    QueueShape other = kShape;
    change(other);
    EXPECT_EQ(refused({.calibration_file = file_}, other).status, Status::kUnsupported) << describe(other);
  }
  QueueShape more = kShape;
  more.slot_count = 64;
  EXPECT_EQ(chosen({.calibration_file = file_}, more).modes, (ModeTable{7, 77, 777}));
}

TEST_F(ChooseModes, of_tables_that_hold_that_with_most_slots_is_taken) {
  Calibration few = measured("mlx5_0", PathClass::kSys, {1, 1, 1});
  few.key.shape.slot_count = 8;
  ASSERT_TRUE(store_calibration(file_, measured("mlx5_0", PathClass::kSys, {2, 2, 2})));
  ASSERT_TRUE(store_calibration(file_, few));
  QueueShape offered = kShape;
  EXPECT_EQ(chosen({.calibration_file = file_}, offered).modes, (ModeTable{2, 2, 2}));
  offered.slot_count = 16;
  EXPECT_EQ(chosen({.calibration_file = file_}, offered).modes, (ModeTable{1, 1, 1}));
}

TEST_F(ChooseModes, blueflame_needs_a_probe_of_this_hca_by_these_kernels_over_this_path) {
  const auto message = [](const ModeOptions& options) {
    const auto checked = check_blueflame_probe("mlx5_0", options);
    if (checked) return std::string();
    EXPECT_EQ(checked.error().status, Status::kUnsupported);
    return checked.error().message;
  };
  const ModeOptions wanted{.calibration_file = file_};
  EXPECT_THAT(message(wanted), HasSubstr("no probe has passed (there is no calibration"));
  Calibration plain = measured("mlx5_0", PathClass::kSys, {1, 1, 1});
  plain.key.shape.blueflame = false;
  ASSERT_TRUE(store_calibration(file_, plain));
  ASSERT_TRUE(store_calibration(file_, measured("mlx5_1", PathClass::kSys, {1, 1, 1})));
  ASSERT_TRUE(store_calibration(file_, measured("mlx5_0", PathClass::kPix, {1, 1, 1})));
  ASSERT_TRUE(store_calibration(file_, measured_by_cpu({1, 1, 1})));
  EXPECT_THAT(message(wanted), HasSubstr("on HCA mlx5_0 by kernels on a GPU: no probe has passed"));
  EXPECT_THAT(message(wanted), HasSubstr("run GDX_DOORBELL=blueflame gdx calibrate --gpu, or use plain"));
  ASSERT_TRUE(store_calibration(file_, measured("mlx5_0", PathClass::kSys, {1, 1, 1})));
  EXPECT_EQ(message(wanted), "");
  EXPECT_NE(message({.path = PathClass::kNode, .calibration_file = file_}), "");
  const ModeOptions on_cpu{.kernels = Processor::kCpu, .calibration_file = file_};
  EXPECT_EQ(message(on_cpu), "");
  fs::remove(file_);
  ASSERT_TRUE(store_calibration(file_, measured("mlx5_0", PathClass::kSys, {1, 1, 1})));
  EXPECT_EQ(
      message(on_cpu),
      "BlueFlame on HCA mlx5_0 by kernels on a CPU: no probe has passed (" + file_ +
          " has no table by BlueFlame for them); run GDX_DOORBELL=blueflame gdx calibrate, or use plain "
          "doorbells");
}

TEST_F(ChooseModes, impossible_requests_are_refused) {
  EXPECT_EQ(refused({.table = ModeTable{28, 4096, kNoSizeLimit}}, QueueShape{}).status,
            Status::kInvalidArgument);
  setenv(kPathClassVariable, "FAR", 1);
  EXPECT_THAT(refused({}).message, HasSubstr("GDX_PATH_CLASS = 'FAR': use PIX"));
}

TEST_F(ChooseModes, default_place_needs_an_absolute_folder) {
  EXPECT_EQ(default_calibration_file(), (folder_ / "config/gdx/calibration.json").string());
  for (const char* const unfit : {"", "relative"}) {
    setenv("XDG_CONFIG_HOME", unfit, 1);
    setenv("HOME", "also/relative", 1);
    EXPECT_EQ(default_calibration_file(), "");
  }
  setenv("HOME", "/home/somebody", 1);
  EXPECT_EQ(default_calibration_file(), "/home/somebody/.config/gdx/calibration.json");
  setenv("HOME", "", 1);
  EXPECT_EQ(default_calibration_file(), "");
}

}  // namespace calibration_test
}  // namespace gdx
