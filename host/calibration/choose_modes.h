// Choice of an endpoint's mode table, with its reason.
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

// Purpose of an endpoint. The defaults are for programs that map memory to their GPU before they make
// endpoints.
struct ModeOptions {
  std::optional<ModeTable> table = std::nullopt;  // the table itself; overrides all other members
  // Absent: a GPU if one is named, has a named path, is in use (Gpu::in_use) or is near the HCA. Also a GPU
  // if the CUDA driver is loaded. Otherwise a CPU.
  std::optional<Processor> kernels = std::nullopt;
  // PCI bus id of the GPU that runs the kernels. Empty: the one in use, and failing that the one nearest to
  // the HCA. Of several that are not equally near the nearest counts, with a warning.
  std::string gpu = {};
  std::optional<Placement> payload = std::nullopt;  // absent: in the memory of what runs the kernels
  // Path between that GPU and the HCA. Absent: $GDX_PATH_CLASS, or without it the topology's.
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
  std::string why;  // source of the table
};

// Finds the site of kernels in the options, the environment, this process or this machine's topology.
// Errors: kInvalidArgument (impossible $GDX_PATH_CLASS, GPU that is no PCI bus id, path or GPU of kernels on
// a CPU).
[[nodiscard]] Result<KernelSite> site_of_kernels(const std::string& hca, const ModeOptions& options);

// Returns the modes that are used without a calibration. Threads: any.
[[nodiscard]] ModeChoice default_modes(const KernelSite& site, const QueueShape& shape);

// Errors: those of check_mode_table, site_of_kernels, check_calibration_key, and for a named file those of
// read_calibrations. For a named file also kNotFound (no table for this HCA and site) and kVersionMismatch
// (another layout of queues). kUnsupported if measured with another shape than `shape`.
// Threads: any.
[[nodiscard]] Result<ModeChoice> choose_modes(const std::string& hca, const ModeOptions& options,
                                              const QueueShape& shape);

// Checks that BlueFlame's probe has passed on this HCA for the kernels' processor and its path. `gdx
// calibrate` keeps a table by BlueFlame only after a passed probe. Errors: those of site_of_kernels;
// kUnsupported without such a table. Threads: any.
[[nodiscard]] Result<void> check_blueflame_probe(const std::string& hca, const ModeOptions& options);

// Logs the choice, at level info and once for each that differs. Threads: any.
void announce(const std::string& hca, const ModeChoice& choice);

}  // namespace gdx
