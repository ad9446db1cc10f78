#include "host/calibration/choose_modes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "base/fork_mutex.h"
#include "base/log.h"
#include "driver-shim/cuda/driver.h"
#include "host/calibration/calibration_file.h"
#include "host/gpu/gpu.h"
#include "host/topo/topology.h"

namespace gdx {
namespace {

void log_once(log::Level level, const std::string& line) {
  static ForkMutex mutex;
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

bool is_for_site(const CalibrationKey& table, const CalibrationKey& wanted) {
  return table.hca == wanted.hca && table.kernels == wanted.kernels && table.payload == wanted.payload &&
         table.path == wanted.path;
}

// Returns, among the tables that hold for this endpoint, the one measured with the most slots.
Result<Calibration> look_up(const CalibrationKey& wanted, const std::string& file) {
  auto tables = GDX_TRY(read_calibrations(file));
  const auto slots = [](const Calibration& table) {
    return std::pair(table.key.shape.slot_count, table.key.shape.bounce_slot_count);
  };
  const Calibration* best = nullptr;
  Error without{Status::kNotFound, fmt::format("{} has no table for {}", file, describe(wanted))};
  for (const Calibration& table : tables) {
    if (!is_for_site(table.key, wanted)) continue;
    if (table.key.queue_layout_version != wanted.queue_layout_version) {
      without = {
          Status::kVersionMismatch,
          fmt::format("{} has a table for {}, but measured with layout {} of queues, and this is {}", file,
                      describe(wanted), table.key.queue_layout_version, wanted.queue_layout_version)};
    } else if (!holds_for(table.key.shape, wanted.shape)) {
      without = {Status::kUnsupported,
                 fmt::format("{} has a table for {}, but measured with {}, and this endpoint has {}", file,
                             describe(wanted), describe(table.key.shape), describe(wanted.shape))};
    } else if (best == nullptr || slots(table) > slots(*best)) {
      best = &table;
    }
  }
  if (best != nullptr) return *best;
  without.message += "; measure it with gdx calibrate";
  return tl::unexpected(std::move(without));
}

std::string origin_of_defaults(const KernelSite& site, const QueueShape& shape) {
  if (site.path) {
    return fmt::format("defaults for a {} path, {} and queues in {} memory, modelled", name(*site.path),
                       shape.blueflame ? "BlueFlame" : "plain doorbells",
                       shape.queues == Placement::kGpu ? "GPU" : "host");
  }
  return site.kernels == Processor::kGpu ? "defaults for a path of unknown class"
                                         : "defaults for kernels on a CPU";
}

Result<std::optional<PathClass>> path_in_environment() {
  const char* const text = std::getenv(kPathClassVariable);
  if (text == nullptr) return std::nullopt;
  if (const auto path = path_class(text)) return path;
  return fail(Status::kInvalidArgument,
              fmt::format("{} = '{}': use PIX, PXB, PHB, NODE or SYS", kPathClassVariable, text));
}

// Returns the path class of the nearest of these GPUs; of all GPUs without ids.
std::optional<PathClass> nearest_of(const std::vector<std::string>& gpus, const std::string& hca) {
  const std::vector<PathClass> paths = paths_to(this_machine(), hca, gpus);
  if (paths.empty()) return std::nullopt;
  if (paths.front() != paths.back()) {
    log_once(
        log::Level::kWarn,
        fmt::format("auto on HCA {} goes by the nearest GPU, {} away, and others are {} away: say which one "
                    "runs the kernels (ModeOptions::gpu), or map memory to it before endpoints are made",
                    hca, name(paths.front()), name(paths.back())));
  }
  return paths.front();
}

}  // namespace

Result<KernelSite> site_of_kernels(const std::string& hca, const ModeOptions& options) {
  const auto said = GDX_TRY(path_in_environment());
  if (options.kernels == Processor::kCpu) {
    if (!options.path && options.gpu.empty()) return KernelSite{};
    return fail(
        Status::kInvalidArgument,
        "kernels on a CPU have no path from a GPU: leave path and GPU out, or say that a GPU runs them");
  }
  std::vector<std::string> gpus;
  if (!options.gpu.empty()) {
    if (!canonical_bus_id(options.gpu)) {
      return fail(Status::kInvalidArgument,
                  fmt::format("GPU '{}': use its PCI bus id, as 0000:3b:00.0", options.gpu));
    }
    gpus = {options.gpu};
  }
  if (options.path || said) return KernelSite{Processor::kGpu, options.path ? options.path : said};
  if (gpus.empty()) gpus = Gpu::in_use();
  const auto path = nearest_of(gpus, hca);
  const bool on_gpu = options.kernels || !gpus.empty() || path || cuda::loaded_driver() != nullptr;
  return KernelSite{on_gpu ? Processor::kGpu : Processor::kCpu, path};
}

ModeChoice default_modes(const KernelSite& site, const QueueShape& shape) {
  return {default_mode_table(site.path, shape.queues, means_of(shape), doorbell_of(shape)), site,
          origin_of_defaults(site, shape)};
}

Result<ModeChoice> choose_modes(const std::string& hca, const ModeOptions& options, const QueueShape& shape) {
  const ModeMeans means = means_of(shape);
  if (options.table) {
    GDX_TRY(check_mode_table(*options.table, means));
    return ModeChoice{*options.table, {}, "given by the program"};
  }
  const auto site = GDX_TRY(site_of_kernels(hca, options));
  const Placement own = site.kernels == Processor::kGpu ? Placement::kGpu : Placement::kHost;
  const CalibrationKey key{.hca = hca,
                           .kernels = site.kernels,
                           .payload = options.payload.value_or(own),
                           .path = site.path,
                           .shape = shape};
  GDX_TRY(check_calibration_key(key));
  const CalibrationPlace place = calibration_place(options);
  std::string without = "no calibration";
  if (!place.file.empty()) {
    const auto found = look_up(key, place.file);
    if (found) {
      return ModeChoice{with_pull_for_missing(found->modes, means), site,
                        fmt::format("measured on {}, {}", found->measured_on, place.file)};
    }
    if (place.named) return tl::unexpected(found.error());
    without = found.error().message;
    // Warns only of a file that is no valid calibration; a missing calibration is no mistake.
    if (found.error().status != Status::kNotFound) log_once(log::Level::kWarn, without + "; defaults serve");
  }
  ModeChoice choice = default_modes(site, shape);
  choice.why += ": " + without;
  return choice;
}

Result<void> check_blueflame_probe(const std::string& hca, const ModeOptions& options) {
  const auto site = GDX_TRY(site_of_kernels(hca, options));
  const auto passed = [&](const Calibration& table) {
    const CalibrationKey& key = table.key;
    return key.hca == hca && key.kernels == site.kernels && key.path == site.path && key.shape.blueflame;
  };
  const CalibrationPlace place = calibration_place(options);
  std::string without = "no calibration";
  if (!place.file.empty()) {
    const auto tables = read_calibrations(place.file);
    if (tables && std::ranges::any_of(*tables, passed)) return {};
    without =
        tables ? fmt::format("{} has no table by BlueFlame for them", place.file) : tables.error().message;
  }
  return fail(Status::kUnsupported,
              fmt::format("BlueFlame on HCA {} by kernels on a {}: no probe has passed ({}); run "
                          "GDX_DOORBELL=blueflame gdx calibrate{}, or use plain doorbells",
                          hca, site.kernels == Processor::kGpu ? "GPU" : "CPU", without,
                          site.kernels == Processor::kGpu ? " --gpu" : ""));
}

void announce(const std::string& hca, const ModeChoice& choice) {
  log_once(log::Level::kInfo, fmt::format("auto on HCA {}: {}; {}", hca, describe(choice.modes), choice.why));
}

}  // namespace gdx
