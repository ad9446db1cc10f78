// From a measurement to its table, and what `gdx calibrate` prints of both.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "host/calibration/calibration_file.h"
#include "host/calibration/choose_modes.h"
#include "host/programs/calibrate/measure.h"

namespace gdx::calibration {

// The cheapest table of those that differ from the default only at sizes where another mode is faster beyond
// noise: the interval of its ratio to the default's, round by round, excludes 1. Errors: those of best_table.
[[nodiscard]] Result<Calibration> calibration_of(const std::string& hca, const KernelSite& site,
                                                 const Measurement& measurement, std::uint32_t rounds);

// `file`: where the table is stored.
[[nodiscard]] std::string report_text(const Calibration& calibration, const Measurement& measurement,
                                      const std::string& file);
[[nodiscard]] std::string report_json(const Calibration& calibration, const Measurement& measurement,
                                      const std::string& file);

}  // namespace gdx::calibration
