// gdx_calibrate: measures what each mode costs on this machine and keeps the table that `auto` then goes by;
// start it as `gdx calibrate`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "host/calibration/calibration_file.h"
#include "host/calibration/choose_modes.h"
#include "host/calibration/measure.h"

namespace gdx::calibration {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kExitUsage = 2;

struct Options {
  std::string hca;
  std::string path_class;
  std::string output;
  MeasureOptions measure;
  bool json = false;
};

std::string cell(const std::optional<double>& ns) { return ns ? fmt::format("{:.2f}", *ns / 1e3) : "-"; }

void print_text(const Calibration& calibration, const Measurement& measurement, const std::string& file) {
  fmt::print("{}; measured on {}\n{:>8}{:>12}{:>12}{:>12}{:>12}\n", describe(calibration.key),
             calibration.measured_on, "size", "inline us", "push us", "pull us", "bounce us");
  for (const MeasuredSize& size : measurement.sizes) {
    fmt::print("{:>8}{:>12}{:>12}{:>12}{:>12}\n", size_text(size.bytes), cell(size.ns[0]), cell(size.ns[1]),
               cell(size.ns[2]), cell(size.ns[3]));
  }
  fmt::print("\nauto: {}\n", gdx::describe(calibration.modes));
  for (const std::string& line : calibration.why) fmt::print("  {}\n", line);
  fmt::print("stored in {}\n", file);
}

Json limit_json(std::uint64_t bytes) { return bytes == kNoSizeLimit ? Json(nullptr) : Json(bytes); }

void print_json(const Calibration& calibration, const Measurement& measurement, const std::string& file) {
  Json rows = Json::array();
  for (const MeasuredSize& size : measurement.sizes) {
    Json row = {{"bytes", size.bytes}};
    for (std::size_t mode = 0; mode < size.ns.size(); ++mode) {
      if (size.ns[mode]) row[fmt::format("{}_ns", kTableModeNames[mode])] = *size.ns[mode];
    }
    rows.push_back(std::move(row));
  }
  const auto& path = calibration.key.path;
  const Json json = {{"hca", calibration.key.hca},
                     {"path_class", path ? Json(std::string(name(*path))) : Json(nullptr)},
                     {"measured_on", calibration.measured_on},
                     {"inline_bytes", limit_json(calibration.modes.inline_bytes)},
                     {"push_bytes", limit_json(calibration.modes.push_bytes)},
                     {"pull_bytes", limit_json(calibration.modes.pull_bytes)},
                     {"why", calibration.why},
                     {"rows", std::move(rows)},
                     {"file", file}};
  fmt::print("{}\n", json.dump(2));
}

// What can be wrong with the options is said before anything is measured.
Result<void> calibrate(const Options& options) {
  if (auto checked = check_measure_options(options.measure); !checked) return checked;
  ModeOptions wanted;
  if (!options.path_class.empty()) {
    wanted.path = path_class(options.path_class);
    if (!wanted.path) {
      return fail(Status::kInvalidArgument,
                  fmt::format("--path-class '{}': use PIX, PXB, PHB, NODE or SYS", options.path_class));
    }
  }
  const std::string file = options.output.empty() ? default_calibration_file() : options.output;
  if (file.empty()) {
    return fail(Status::kInvalidArgument,
                "nowhere to keep the table: set XDG_CONFIG_HOME or HOME to a folder, or give --output");
  }
  if (const auto present = read_calibrations(file); !present && present.error().status != Status::kNotFound)
    return tl::unexpected(present.error());
  const auto hca = Hca::open({.name = options.hca});
  if (!hca) return tl::unexpected(hca.error());
  const auto path = path_to(hca->name(), wanted);
  if (!path) return tl::unexpected(path.error());

  const auto measurement = measure_modes(*hca, options.measure);
  if (!measurement) return tl::unexpected(measurement.error());
  const auto table = best_table(measurement->sizes);
  if (!table) return tl::unexpected(table.error());
  const Calibration calibration{.key = {.hca = hca->name(), .path = *path},
                                .modes = *table,
                                .measured_on = measurement->measured_on,
                                .why = explain(*table, measurement->sizes, measurement->measured_on)};
  if (auto stored = store_calibration(file, calibration); !stored) return stored;
  if (options.json) {
    print_json(calibration, *measurement, file);
  } else {
    print_text(calibration, *measurement, file);
  }
  return {};
}

}  // namespace
}  // namespace gdx::calibration

int main(int argc, char** argv) {
  gdx::calibration::Options options;
  CLI::App app{
      "Measures pull, push, inline and bounce on this machine, and keeps the table that auto goes by"};
  app.name("gdx calibrate");
  app.add_option("--hca", options.hca, "HCA to measure on (the first)");
  app.add_option("--path-class", options.path_class,
                 "Between GPU and HCA: PIX, PXB, PHB, NODE or SYS (of the nearest GPU)");
  app.add_option("--output", options.output,
                 "File to keep the table in (gdx/calibration.json in XDG_CONFIG_HOME)");
  app.add_option("--max-bytes", options.measure.max_bytes, "Largest message (16777216)");
  app.add_option("--rounds", options.measure.rounds, "Rounds, of which the median counts (5)");
  app.add_flag("--json", options.json, "As JSON");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "gdx: {}; see gdx calibrate --help\n", error.what());
    return gdx::calibration::kExitUsage;
  }
  const auto done = gdx::calibration::calibrate(options);
  if (done) return 0;
  fmt::print(stderr, "gdx: {}\n", done.error().message);
  return done.error().status == gdx::Status::kInvalidArgument ? gdx::calibration::kExitUsage : 1;
}
