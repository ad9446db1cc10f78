#include "host/programs/calibrate/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/size_text.h"
#include "host/programs/bench/statistics.h"

namespace gdx::calibration {
namespace {

using Json = nlohmann::ordered_json;

// "4.10 (4.02-4.31)": median, least and most.
std::string cell(const MeasuredSize& size, std::size_t mode) {
  if (!size.ns[mode]) return "-";
  const Spread& spread = size.spread[mode];
  return fmt::format("{:.2f} ({:.2f}-{:.2f})", *size.ns[mode] / 1e3, spread.least_ns / 1e3,
                     spread.most_ns / 1e3);
}

Json limit_json(std::uint64_t bytes) { return bytes == kNoSizeLimit ? Json(nullptr) : Json(bytes); }

// Returns whether a mode takes less time than another one beyond noise, in the same rounds.
bool is_faster(const std::vector<double>& mode, const std::vector<double>& other) {
  const bench::Interval ratio = bench::paired_ratio(mode, other);
  return bench::differs(ratio) && ratio.high < 1;
}

// Leaves each size its default's mode, and those that are faster beyond noise.
std::vector<MeasuredSize> worth_a_choice(const Measurement& measurement, const ModeTable& defaults) {
  std::vector<MeasuredSize> sizes = measurement.sizes;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const ModeRounds& rounds = measurement.rounds[i];
    const auto stays = static_cast<std::size_t>(mode_of(defaults, sizes[i].bytes));
    if (rounds[stays].empty()) continue;
    for (std::size_t mode = 0; mode < rounds.size(); ++mode) {
      if (mode != stays && !is_faster(rounds[mode], rounds[stays])) sizes[i].ns[mode].reset();
    }
  }
  return sizes;
}

// Sizes at which both tables choose one mode.
std::size_t count_equal(const ModeTable& a, const ModeTable& b, std::span<const MeasuredSize> sizes) {
  return static_cast<std::size_t>(std::ranges::count_if(
      sizes, [&](const MeasuredSize& size) { return mode_of(a, size.bytes) == mode_of(b, size.bytes); }));
}

ModeChoice defaults_of(const CalibrationKey& key) {
  return default_modes({key.kernels, key.path}, key.shape);
}

}  // namespace

Result<Calibration> calibration_of(const std::string& hca, const KernelSite& site,
                                   const Measurement& measurement, std::uint32_t rounds) {
  const std::string measured_on = fmt::format("{}, {} rounds", measurement.measured_on, rounds);
  Calibration calibration{.key = {.hca = hca,
                                  .kernels = site.kernels,
                                  .payload = measurement.payload,
                                  .path = site.path,
                                  .shape = measurement.shape},
                          .rounds = rounds,
                          .measured_on = measurement.measured_on,
                          .why = {}};
  const ModeTable defaults = defaults_of(calibration.key).modes;
  calibration.modes = GDX_TRY(best_table(worth_a_choice(measurement, defaults)));
  const std::size_t all = measurement.sizes.size();
  const std::size_t equal = count_equal(calibration.modes, defaults, measurement.sizes);
  // Takes the default where both agree at all sizes measured, so that they agree at all other sizes, too.
  if (equal == all) calibration.modes = defaults;
  calibration.why = explain(calibration.modes, measurement.sizes, measured_on);
  calibration.why.push_back(fmt::format(
      "the default's mode at {} of {} sizes, where no other is faster beyond noise{}", equal, all,
      bench::median_interval(std::vector<double>(rounds)).level < bench::kLeastLevel ? ", by too few rounds"
                                                                                     : ""));
  return calibration;
}

std::string report_text(const Calibration& calibration, const Measurement& measurement,
                        const std::string& file) {
  std::string text;
  if (measurement.copies != 0)
    text += fmt::format("BlueFlame: {} of {} copies arrived whole\n", measurement.whole_copies,
                        measurement.copies);
  text += fmt::format("{}; measured on {}\n{}\nus of one message, median of {} rounds (least-most)\n{:>8}",
                      describe(calibration.key), calibration.measured_on, describe(calibration.key.shape),
                      calibration.rounds, "size");
  for (const std::string_view mode : kTableModeNames) text += fmt::format(" {:>26}", mode);
  text += "\n";
  for (const MeasuredSize& size : measurement.sizes) {
    text += fmt::format("{:>8}", size_text(size.bytes));
    for (std::size_t mode = 0; mode < size.ns.size(); ++mode)
      text += fmt::format(" {:>26}", cell(size, mode));
    text += "\n";
  }
  text += fmt::format("\nauto: {}\n", gdx::describe(calibration.modes));
  for (const std::string& line : calibration.why) text += fmt::format("  {}\n", line);
  const ModeChoice before = defaults_of(calibration.key);
  text += before.modes == calibration.modes
              ? fmt::format("the default stays: {}\n", before.why)
              : fmt::format("instead of: {}; {}\n", gdx::describe(before.modes), before.why);
  text += fmt::format("stored in {}\n", file);
  return text;
}

std::string report_json(const Calibration& calibration, const Measurement& measurement,
                        const std::string& file) {
  Json rows = Json::array();
  for (const MeasuredSize& size : measurement.sizes) {
    Json row = {{"bytes", size.bytes}};
    for (std::size_t mode = 0; mode < size.ns.size(); ++mode) {
      if (!size.ns[mode]) continue;
      const std::string_view mode_name = kTableModeNames[mode];
      row[fmt::format("{}_ns", mode_name)] = *size.ns[mode];
      row[fmt::format("{}_least_ns", mode_name)] = size.spread[mode].least_ns;
      row[fmt::format("{}_most_ns", mode_name)] = size.spread[mode].most_ns;
    }
    rows.push_back(std::move(row));
  }
  const CalibrationKey& key = calibration.key;
  const Json json = {{"hca", key.hca},
                     {"kernels", name(key.kernels)},
                     {"payload", name(key.payload)},
                     {"path_class", key.path ? Json(name(*key.path)) : Json(nullptr)},
                     {"queues", name(key.shape.queues)},
                     {"slot_count", key.shape.slot_count},
                     {"slot_bytes", key.shape.slot_bytes},
                     {"bounce_slot_count", key.shape.bounce_slot_count},
                     {"bounce_slot_bytes", key.shape.bounce_slot_bytes},
                     {"blueflame", key.shape.blueflame},
                     {"blueflame_copies", measurement.copies},
                     {"blueflame_copies_whole", measurement.whole_copies},
                     {"rounds", calibration.rounds},
                     {"measured_on", calibration.measured_on},
                     {"inline_bytes", limit_json(calibration.modes.inline_bytes)},
                     {"push_bytes", limit_json(calibration.modes.push_bytes)},
                     {"pull_bytes", limit_json(calibration.modes.pull_bytes)},
                     {"why", calibration.why},
                     {"rows", std::move(rows)},
                     {"file", file}};
  return json.dump(2) + "\n";
}

}  // namespace gdx::calibration
