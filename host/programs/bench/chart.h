// Lines with intervals as SVG. A mode has the same colour and the same marker in every chart.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gdx::bench {

struct ChartPoint {
  double x;
  double y;
  std::string at;  // the figure's place in the document; empty: it has none of its own
  std::optional<std::pair<double, double>> interval = std::nullopt;
  bool sure = true;  // false: drawn hollow, because its interval is no verdict
};

struct ChartLine {
  std::string name;
  std::string mode;
  std::vector<ChartPoint> points;
};

struct Chart {
  std::string name;
  std::string x_name;
  std::string y_name;
  bool sizes = false;      // x is bytes
  bool over_time = false;  // both axes are linear, and lines have no markers
  bool modelled = false;   // dashed
  std::vector<ChartLine> lines = {};
};

// Returns "pull" to "nic", or "other": the name of the mode's colour in page.html.
[[nodiscard]] std::string_view colour_of(std::string_view mode);

// Points that are not above 0 are left out of axes that are logarithmic.
[[nodiscard]] std::string svg_of(const Chart& chart);

[[nodiscard]] std::string escaped(std::string_view text);

}  // namespace gdx::bench
