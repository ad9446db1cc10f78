// Which mode table an endpoint gets, and why.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "host/calibration/conditions.h"
#include "proto/gpu/mode_table.h"
#include "proto/path_class.h"

namespace gdx {

inline constexpr char kCalibrationVariable[] = "GDX_CALIBRATION";  // a file; set and empty: none
inline constexpr char kPathClassVariable[] = "GDX_PATH_CLASS";     // PIX, PXB, PHB, NODE or SYS

// What an endpoint is for. The defaults are for programs that map memory to their GPU before they make
// endpoints.
struct ModeOptions {
  std::optional<ModeTable> table = std::nullopt;  // what is to be; the rest is of no account then
  // Absent: a GPU, where one is named, or a path to one, or in use (Gpu::in_use), or near the HCA on this
  // machine, or where the CUDA driver is loaded; failing all that a CPU.
  std::optional<Processor> kernels = std::nullopt;
  // PCI bus id of the GPU that runs the kernels. Empty: the one in use, and failing that the one nearest to
  // the HCA. Of several that are not equally near the nearest counts, with a warning.
  std::string gpu = {};
  std::optional<Placement> payload = std::nullopt;  // absent: in the memory of what runs the kernels
  // Between that GPU and the HCA. Absent: $GDX_PATH_CLASS, and failing that what the topology says.
  std::optional<PathClass> path = std::nullopt;
  // Empty: $GDX_CALIBRATION, and failing that default_calibration_file(), which may be missing or unfit: then
  // defaults serve, with a warning. One that was named must fit.
  std::string calibration_file = {};
};

struct KernelSite {
  Processor kernels = Processor::kCpu;
  std::optional<PathClass> path = std::nullopt;  // absent: unknown, or no GPU
};

struct ModeChoice {
  ModeTable modes{};
  KernelSite site;
  std::string why;  // where the table comes from
};

// Where the options, the environment, this process or the topology of this machine say that kernels run.
// Errors: kInvalidArgument for an impossible $GDX_PATH_CLASS, a GPU that is no PCI bus id, or a path or GPU
// of kernels on a CPU.
[[nodiscard]] Result<KernelSite> site_of_kernels(const std::string& hca, const ModeOptions& options);

// Without a calibration. Threads: any.
[[nodiscard]] ModeChoice default_modes(const KernelSite& site, const QueueShape& shape);

// Errors: as check_mode_table, site_of_kernels, check_calibration_key, and for a named file as
// read_calibrations; there kNotFound when it has no table for this HCA and site, kVersionMismatch when it has
// one of another layout of queues, kUnsupported when it was measured with another shape than `shape`.
// Threads: any.
[[nodiscard]] Result<ModeChoice> choose_modes(const std::string& hca, const ModeOptions& options,
                                              const QueueShape& shape);

// Logs the choice, at level info and once for each that differs. Threads: any.
void announce(const std::string& hca, const ModeChoice& choice);

}  // namespace gdx
