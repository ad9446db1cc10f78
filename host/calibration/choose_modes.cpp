#include "host/calibration/choose_modes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "base/log.h"
#include "host/calibration/calibration_file.h"
#include "host/topo/topology.h"

namespace gdx {
namespace {

void log_once(log::Level level, const std::string& line) {
  static std::mutex mutex;
  static auto& said = *new std::set<std::string>;
  const std::lock_guard lock(mutex);
  if (said.insert(line).second) log::line(level, "{}", line);
}

struct CalibrationPlace {
  std::string file;  // empty: none
  bool named = false;
};

CalibrationPlace calibration_place(const ModeOptions& options) {
  if (!options.calibration_file.empty()) return {options.calibration_file, true};
  if (const char* named = std::getenv(kCalibrationVariable); named != nullptr) return {named, true};
  return {default_calibration_file(), false};
}

// Why a file without this key has no table for it.
Error no_table_for(const CalibrationKey& key, const std::string& file,
                   const std::vector<Calibration>& tables) {
  const auto older = std::ranges::find_if(tables, [&](const Calibration& table) {
    return table.key.hca == key.hca && table.key.path == key.path;
  });
  const std::string what =
      older == tables.end()
          ? fmt::format("{} has no table for {}", file, describe(key))
          : fmt::format("{} has a table for {}, but measured with layout {} of queues, and this is {}", file,
                        describe(key), older->key.queue_layout_version, key.queue_layout_version);
  return {Status::kNotFound, what + "; measure it with gdx calibrate"};
}

// The table of `key` in the file.
Result<Calibration> look_up(const CalibrationKey& key, const std::string& file) {
  auto tables = read_calibrations(file);
  if (!tables) return tl::unexpected(tables.error());
  const auto found = std::ranges::find(*tables, key, &Calibration::key);
  if (found == tables->end()) return tl::unexpected(no_table_for(key, file, *tables));
  return std::move(*found);
}

std::string origin_of_defaults(std::optional<PathClass> path) {
  return path ? fmt::format("defaults for a {} path, modelled", name(*path))
              : "defaults for a path of unknown class";
}

}  // namespace

Result<std::optional<PathClass>> path_to(const std::string& hca, const ModeOptions& options) {
  if (options.path) return options.path;
  if (const char* text = std::getenv(kPathClassVariable); text != nullptr) {
    if (const auto path = path_class(text)) return path;
    return fail(Status::kInvalidArgument,
                fmt::format("{} = '{}': use PIX, PXB, PHB, NODE or SYS", kPathClassVariable, text));
  }
  static const Result<Topology> machine = read_topology();
  return machine ? nearest_gpu(*machine, hca) : std::nullopt;
}

Result<ModeChoice> choose_modes(const std::string& hca, const ModeOptions& options, ModeMeans means) {
  if (options.table) {
    if (auto checked = check_mode_table(*options.table, means); !checked)
      return tl::unexpected(checked.error());
    return ModeChoice{*options.table, options.path, "given by the program"};
  }
  const auto path = path_to(hca, options);
  if (!path) return tl::unexpected(path.error());
  const CalibrationPlace place = calibration_place(options);
  std::string without = "no calibration";
  if (!place.file.empty()) {
    const auto found = look_up({.hca = hca, .path = *path}, place.file);
    if (found) {
      return ModeChoice{with_pull_for_missing(found->modes, means), *path,
                        fmt::format("measured on {}, {}", found->measured_on, place.file)};
    }
    if (place.named) return tl::unexpected(found.error());
    without = found.error().message;
    // Not to have measured is no mistake; what was meant as a calibration and is none, is one.
    if (found.error().status != Status::kNotFound) log_once(log::Level::kWarn, without + "; defaults serve");
  }
  return ModeChoice{default_mode_table(*path, means), *path,
                    fmt::format("{}: {}", origin_of_defaults(*path), without)};
}

void announce(const std::string& hca, const ModeChoice& choice) {
  log_once(log::Level::kInfo, fmt::format("auto on HCA {}: {}; {}", hca, describe(choice.modes), choice.why));
}

}  // namespace gdx
