// Which mode table an endpoint gets, and why.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "host/calibration/mode_table.h"
#include "proto/gpu/mode_table.h"
#include "proto/path_class.h"

namespace gdx {

inline constexpr char kCalibrationVariable[] = "GDX_CALIBRATION";  // a file; set and empty: none
inline constexpr char kPathClassVariable[] = "GDX_PATH_CLASS";     // PIX, PXB, PHB, NODE or SYS

struct ModeOptions {
  std::optional<ModeTable> table = std::nullopt;  // what is to be; the rest is of no account then
  // Between the GPU and the NIC. Absent: $GDX_PATH_CLASS, and failing that of the GPU nearest to the NIC.
  std::optional<PathClass> path = std::nullopt;
  // Empty: $GDX_CALIBRATION, and failing that default_calibration_file(), which may be missing or unfit: then
  // defaults serve, with a warning. One that was named must fit.
  std::string calibration_file = {};
};

struct ModeChoice {
  ModeTable modes{};
  std::optional<PathClass> path;
  std::string why;  // where the table comes from
};

// The path class that the options, the environment or the topology of this machine say; absent: none does.
// Errors: kInvalidArgument for an impossible $GDX_PATH_CLASS.
[[nodiscard]] Result<std::optional<PathClass>> path_to(const std::string& hca, const ModeOptions& options);

// Errors: as check_mode_table, path_to, and for a named file as read_calibrations; kNotFound when such a file
// has no table for this HCA, path and layout of queues. Threads: any.
[[nodiscard]] Result<ModeChoice> choose_modes(const std::string& hca, const ModeOptions& options,
                                              ModeMeans means);

// Logs the choice, at level info and once for each that differs. Threads: any.
void announce(const std::string& hca, const ModeChoice& choice);

}  // namespace gdx
