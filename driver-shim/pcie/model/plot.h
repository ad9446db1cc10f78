// Draws a report with gnuplot: latency and rate over message size, one line a mode.
#pragma once

#include <string>

#include "driver-shim/pcie/model/report.h"

namespace gdx::pcie {

// Writes `file`: SVG, or PNG when it ends so.
// Errors: kNotFound without gnuplot, kInvalidArgument with fewer than two sizes, kSystem when gnuplot fails.
[[nodiscard]] Result<void> plot(const Report& report, const std::string& file);

}  // namespace gdx::pcie
