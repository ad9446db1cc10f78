// A benchmark's document as one self-contained page: tables of every figure, and charts where a chart library
// was found.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"

namespace gdx::bench {

inline constexpr char kChartVariable[] = "GDX_CHART_JS";

// Chart.js 3 or later, in the form that browsers take without modules.
struct ChartLibrary {
  std::string script;   // empty: none was found
  std::string missing;  // then what to do about it
};

// Reads `file`, else that of $GDX_CHART_JS, else the one that Debian's libjs-chart.js or npm has installed.
// Errors: kNotFound for a file that was named.
[[nodiscard]] Result<ChartLibrary> find_chart_library(const std::string& file);

// Every figure of a table carries the place that it has in the embedded document, as a JSON pointer.
[[nodiscard]] std::string page(const nlohmann::ordered_json& document, const ChartLibrary& library);

}  // namespace gdx::bench
