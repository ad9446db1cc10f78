// Draws a report with gnuplot: latency and rate over message size, one line a mode.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "driver-shim/pcie/model/report.h"

namespace gdx::pcie {

// Checks that the plot can be drawn, before any computation for it.
// Errors: kInvalidArgument with fewer than two sizes, or when `file` ends neither in .svg nor in .png or
// cannot be written; kNotFound without gnuplot.
[[nodiscard]] Result<void> check_plot(const std::vector<std::uint64_t>& sizes_bytes, const std::string& file);

// Writes `file`, which has passed check_plot. Errors: kSystem when gnuplot fails.
[[nodiscard]] Result<void> plot(const Report& report, const std::string& file);

}  // namespace gdx::pcie
