// Mode tables that `gdx calibrate` measured, kept in a file of JSON. Any person may have edited a file, so
// all of it is validated before use.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/calibration/conditions.h"
#include "proto/gpu/mode_table.h"
#include "proto/gpu/queue.h"
#include "proto/path_class.h"

namespace gdx {

// Version of calibration files. From version 4 on, a table by BlueFlame proves that the probe passed, with
// the store that kernels ring with.
inline constexpr std::uint32_t kCalibrationVersion = 4;
inline constexpr std::uint32_t kMaxCalibrationRounds = 1000;

// Tables of different keys are for different programs, or different endpoints of one.
struct CalibrationKey {
  std::string hca;
  Processor kernels = Processor::kCpu;
  Placement payload = Placement::kHost;          // kGpu: in memory of the GPU that runs the kernels
  std::optional<PathClass> path = std::nullopt;  // between that GPU and the HCA; absent: unknown, or no GPU
  QueueShape shape = {};
  std::uint32_t queue_layout_version = kQueueLayoutVersion;

  friend bool operator==(const CalibrationKey&, const CalibrationKey&) = default;
};

// Errors: kInvalidArgument for kernels on a CPU that have a path, or payload in a GPU's memory.
[[nodiscard]] Result<void> check_calibration_key(const CalibrationKey& key);

struct Calibration {
  CalibrationKey key;
  ModeTable modes{};             // possible with all means
  std::uint32_t rounds = 0;      // rounds measured, whose median counts; 1 to kMaxCalibrationRounds
  std::string measured_on;       // "the software HCA, CPU kernels"
  std::vector<std::string> why;  // one line for each range, with the spread of its figures
};

// "HCA mlx5_0, kernels on a GPU with payload in its memory, SYS path": all but shape and layout.
[[nodiscard]] std::string describe(const CalibrationKey& key);

// $XDG_CONFIG_HOME/gdx/calibration.json, or below $HOME/.config; empty where neither is an absolute path.
[[nodiscard]] std::string default_calibration_file();

// Errors: kNotFound without such a file; kVersionMismatch for one of another version; kInvalidArgument naming
// what is wrong with it; kSystem when it cannot be read.
[[nodiscard]] Result<std::vector<Calibration>> read_calibrations(const std::string& file);

// Replaces the calibration with this key, and leaves the others. Readers get the old file or the new one,
// whole. Makes the folder. Errors: those of read_calibrations for the present content, except kNotFound; a
// file that is no calibration stays as it is.
[[nodiscard]] Result<void> store_calibration(const std::string& file, const Calibration& calibration);

}  // namespace gdx
