// gdx_calibrate: measures what each mode costs on this machine and keeps the table that `auto` then goes by;
// start it as `gdx calibrate`.
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "base/command_line.h"
#include "base/output.h"
#include "host/calibration/calibration_file.h"
#include "host/calibration/choose_modes.h"
#include "host/programs/calibrate/measure.h"
#include "host/programs/calibrate/put_kernels.h"
#include "host/programs/calibrate/report.h"

namespace gdx::calibration {
namespace {

constexpr char kProgram[] = "gdx calibrate";

struct Options {
  std::string hca;
  std::string path_class;
  std::string payload;
  std::string output;
  MeasureOptions measure;
  bool json = false;
  bool probe = false;
};

// Returns the site of the table: this program's kernels, and the place where they run.
Result<ModeOptions> mode_options(const Options& options, const Gpu* gpu) {
  ModeOptions modes;
  modes.kernels = gpu != nullptr ? Processor::kGpu : Processor::kCpu;
  if (gpu != nullptr) modes.gpu = gpu->pci_bus_id();
  if (!options.path_class.empty()) modes.path = path_class(options.path_class);
  if (gpu != nullptr || !modes.path) return modes;
  return fail(
      Status::kInvalidArgument,
      "--path-class: it is between a GPU and the HCA, and these kernels run on a CPU; leave it out, or "
      "add --gpu");
}

// Returns the file for the table. Does not make a home directory that is missing, because daemons and build
// users have /nonexistent.
Result<std::string> table_file(const Options& options) {
  if (!options.output.empty()) return options.output;
  std::string file = default_calibration_file();
  const char* home = std::getenv("HOME");
  std::error_code ignored;
  const bool below_home = home != nullptr && file.starts_with(std::string(home) + "/");
  if (!file.empty() && (!below_home || std::filesystem::is_directory(home, ignored))) return file;
  return fail(Status::kInvalidArgument,
              "nowhere to keep the table: set XDG_CONFIG_HOME or HOME to a folder, or give --output");
}

// Measures and stores. Reports faults of the options before any measurement.
Result<void> calibrate(const Options& options, const Gpu* gpu) {
  if (auto checked = check_measure_options(options.measure); !checked) return checked;
  const auto wanted = GDX_TRY(mode_options(options, gpu));
  const std::string file = GDX_TRY(table_file(options));
  if (const auto present = read_calibrations(file); !present && present.error().status != Status::kNotFound)
    return tl::unexpected(present.error());
  const auto hca = GDX_TRY(Hca::open({.name = options.hca, .in_this_process = true}));
  const auto site = GDX_TRY(site_of_kernels(hca.name(), wanted));

  const auto measurement = GDX_TRY(measure_modes(hca, gpu, options.measure));
  const auto calibration = GDX_TRY(calibration_of(hca.name(), site, measurement, options.measure.rounds));
  if (auto stored = store_calibration(file, calibration); !stored) return stored;
  write_output(options.json ? report_json(calibration, measurement, file)
                            : report_text(calibration, measurement, file));
  return {};
}

// Prints what ran the kernels, and then a line for each way. `gdx doctor` reads them.
Result<void> probe_all_ways(const Options& options, const Gpu* gpu) {
  const auto hca = GDX_TRY(Hca::open({.name = options.hca, .in_this_process = true}));
  print("{}\n", gpu != nullptr ? fmt::format("GPU {}", gpu->name()) : "CPU kernels");
  for (const ProbeWay& way : kProbeWays) {
    const auto probe = probe_blueflame(hca, gpu, way.shape);
    if (!probe && probe.error().status != Status::kUnsupported) return tl::unexpected(probe.error());
    print("{}: {}\n", way.name,
          probe ? describe(*probe) : fmt::format("not offered here: {}", probe.error().message));
  }
  return {};
}

void add_options(command_line::Command app, Options& options) {
  using command_line::whole;
  constexpr std::uint64_t kMaxSlotBytes = 1 << 30;
  app.add_option("--hca", options.hca, "HCA to measure on (the first)")
      .check(command_line::not_empty("the name of an HCA"));
  app.add_option("--path-class", options.path_class, "Between GPU and HCA, where the topology does not say")
      .check(command_line::one_of({"PIX", "PXB", "PHB", "NODE", "SYS"}));
  app.add_option("--payload", options.payload, "In whose memory: host or gpu (of what runs the kernels)")
      .check(command_line::one_of({"host", "gpu"}));
  app.add_option("--output", options.output,
                 "File to keep the table in (gdx/calibration.json in XDG_CONFIG_HOME)")
      .check(command_line::not_empty("the name of a file"));
  app.add_option("--max-bytes", options.measure.max_bytes, "Largest message, a power of two (16777216)")
      .check(whole(kMinMaxBytes, kMaxMaxBytes));
  app.add_option("--rounds", options.measure.rounds, "Rounds, of which the median counts (31)")
      .check(whole(1, kMaxCalibrationRounds));
  app.add_option("--slots", options.measure.slot_count, "Slots of NIC memory that an endpoint may hold (all)")
      .check(whole(1, UINT32_MAX));
  app.add_option("--slot-bytes", options.measure.slot_bytes, "Of how much each, a power of two (4096)")
      .check(whole(kMinSlotBytes, kMaxSlotBytes));
  app.add_option("--bounce-slots", options.measure.bounce_slot_count, "The same of host memory (all)")
      .check(whole(1, UINT32_MAX));
  app.add_option("--bounce-slot-bytes", options.measure.bounce_slot_bytes, "Of how much each (65536)")
      .check(whole(kMinSlotBytes, kMaxSlotBytes));
  app.add_flag("--json", options.json, "As JSON");
  app.add_flag("--probe", options.probe, "Only ring by BlueFlame, and count copies that arrive whole");
  // gdx calibrate takes these itself, and its --help is this program's.
  app.add_flag("--gpu", "Kernels run on this machine's GPU (needs a build of the cuda preset)");
  app.add_flag("--softhca", "On the software HCA");
  app.show_examples({"gdx calibrate --softhca", "gdx calibrate --gpu --hca mlx5_0",
                     "gdx calibrate --softhca --rounds 9 --json"});
}

int report(const Error& error) {
  print_error("{}: {}\n", kProgram, error.message);
  return error.status == Status::kInvalidArgument ? command_line::kExitUsage : 1;
}

int run(Options& options) {
  if (!options.payload.empty())
    options.measure.payload = options.payload == "gpu" ? Placement::kGpu : Placement::kHost;
  std::optional<Gpu> gpu;
  if (kernels_run_on_gpu()) {
    const auto opened = open_gpu_or_skip();
    if (!opened) {
      const int status = report(opened.error());
      return exit_status_without_gpu(opened.error()) == kExitNoGpu ? kExitNoGpu : status;
    }
    gpu = *opened;
  }
  const Gpu* const runs_on = gpu ? &*gpu : nullptr;
  const auto done = options.probe ? probe_all_ways(options, runs_on) : calibrate(options, runs_on);
  return done ? 0 : report(done.error());
}

int run_command_line(int argc, char** argv) {
  Options options;
  command_line::App app(
      "Measures pull, push, inline and bounce on this machine, and keeps the table that auto goes by",
      kProgram);
  add_options(app, options);
  if (const auto ends = app.parse(kProgram, argc, argv)) return *ends;
  return run(options);
}

}  // namespace
}  // namespace gdx::calibration

int main(int argc, char** argv) {
  return gdx::run_program(gdx::calibration::kProgram,
                          [&] { return gdx::calibration::run_command_line(argc, argv); });
}
