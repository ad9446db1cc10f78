#include "host/programs/bench/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <utility>

#include "base/size_text.h"

namespace gdx::bench {
namespace {

constexpr double kWidth = 480;
constexpr double kLeft = 58;
constexpr double kRight = 16;
constexpr double kTop = 50;
constexpr double kPlotHeight = 210;
constexpr double kLegendTop = kTop + kPlotHeight + 52;
constexpr double kLegendLine = 18;
constexpr double kLetter = 6.8;   // width of one in a legend, about
constexpr double kBetween = 5;    // from one line's marker to the next one's of the same x
constexpr double kLeastGap = 46;  // between two ticks across

// A marker around 0, 0: of one mode each, so that a reader needs no colours.
struct Look {
  std::string_view mode;
  std::string_view marker;
};
constexpr Look kLooks[] = {{"pull", "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z"},
                           {"push", "M-4,-4h8v8h-8z"},
                           {"inline", "M0,-5L4.6,3.6h-9.2z"},
                           {"bounce", "M0,-5.4L5.4,0L0,5.4L-5.4,0z"},
                           {"auto", "M-4.5,-1.5h3v-3h3v3h3v3h-3v3h-3v-3h-3z"},
                           {"proxy", "M0,5L4.6,-3.6h-9.2z"},
                           {"nic", "M-2,-5h4l3,5l-3,5h-4l-3,-5z"},
                           {"other", "M-1.5,-5h3v10h-3z"}};

const Look& look_of(std::string_view mode) {
  const auto* const found = std::ranges::find(kLooks, mode, &Look::mode);
  return found == std::end(kLooks) ? *std::prev(std::end(kLooks)) : *found;
}

// From a value to a pixel.
class Axis {
 public:
  Axis(std::vector<double> values, bool logarithmic, double first_px, double last_px)
      : logarithmic_(logarithmic), first_px_(first_px), last_px_(last_px) {
    const auto [least, most] = std::ranges::minmax(values);
    low_ = at(least);
    high_ = at(most);
    const double room = high_ > low_ ? 0.06 * (high_ - low_) : logarithmic ? 0.3 : 1;
    low_ = logarithmic ? low_ - room : std::min(0.0, low_);
    high_ += room;
  }
  [[nodiscard]] double px(double value) const {
    return first_px_ + (at(value) - low_) / (high_ - low_) * (last_px_ - first_px_);
  }
  // Round values within the axis, of each power of ten the more the fewer powers there are.
  [[nodiscard]] std::vector<double> ticks() const {
    std::vector<double> all;
    if (logarithmic_) {
      const double span = high_ - low_;
      using Digits = std::vector<double>;
      const Digits digits = span > 2.5 ? Digits{1}
                            : span > 1 ? Digits{1, 2, 5}
                                       : Digits{1, 1.5, 2, 3, 4, 5, 6, 8};
      for (double power = std::floor(low_); power <= high_; ++power) {
        for (const double digit : digits) {
          const double value = digit * std::pow(10, power);
          if (at(value) >= low_ && at(value) <= high_) all.push_back(value);
        }
      }
      return all;
    }
    const double power = std::pow(10, std::floor(std::log10(high_ - low_)));
    const double parts = (high_ - low_) / power;
    const double step = power * (parts < 2 ? 0.5 : parts < 5 ? 1 : 2);
    for (double value = 0; value <= high_; value += step) all.push_back(value);
    return all;
  }

 private:
  [[nodiscard]] double at(double value) const { return logarithmic_ ? std::log10(value) : value; }
  bool logarithmic_;
  double first_px_;
  double last_px_;
  double low_ = 0;
  double high_ = 0;
};

// Leaves out what an axis cannot show.
std::vector<ChartLine> visible(const Chart& chart) {
  std::vector<ChartLine> lines = chart.lines;
  if (!chart.over_time) {
    for (ChartLine& line : lines)
      std::erase_if(line.points, [](const ChartPoint& point) { return point.x <= 0 || point.y <= 0; });
  }
  std::erase_if(lines, [](const ChartLine& line) { return line.points.empty(); });
  for (ChartLine& line : lines) std::ranges::sort(line.points, {}, &ChartPoint::x);
  return lines;
}

std::string marker(std::string_view mode, double x, double y, bool sure, const std::string& at) {
  return fmt::format("<path class=\"mark{}\" transform=\"translate({:.1f},{:.1f})\" d=\"{}\"{}/>",
                     sure ? "" : " open", x, y, look_of(mode).marker,
                     at.empty() ? "" : fmt::format(" data-at=\"{}\"", at));
}

std::string text_at(double x, double y, const char* anchor, const std::string& text, const char* kind) {
  return fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", kind, x,
                     y, anchor, escaped(text));
}

std::string grid(const Chart& chart, const Axis& across, const Axis& up, const std::set<double>& xs) {
  std::string text;
  const double bottom = kTop + kPlotHeight;
  for (const double value : up.ticks()) {
    const double y = up.px(value);
    text += fmt::format("<path class=\"grid\" d=\"M{},{:.1f}H{}\"/>", kLeft, y, kWidth - kRight);
    text += text_at(kLeft - 6, y + 4, "end", fmt::format("{:.6g}", value), "tick");
  }
  // A tick at what was measured, where there is room.
  double last_px = -kLeastGap;
  const std::vector<double> round = chart.over_time ? across.ticks() : std::vector(xs.begin(), xs.end());
  for (const double value : round) {
    const double x = across.px(value);
    text += fmt::format("<path class=\"grid\" d=\"M{:.1f},{}v{}\"/>", x, bottom, 5);
    if (x - last_px < kLeastGap) continue;
    last_px = x;
    const auto whole = static_cast<std::uint64_t>(value);
    text += text_at(x, bottom + 18, "middle", chart.sizes ? size_text(whole) : fmt::format("{:.6g}", value),
                    "tick");
  }
  text += fmt::format("<path class=\"grid\" d=\"M{},{}H{}\"/>", kLeft, bottom, kWidth - kRight);
  return text + text_at((kLeft + kWidth - kRight) / 2, bottom + 36, "middle", chart.x_name, "axis") +
         text_at(kLeft - 44, kTop - 16, "start", chart.y_name, "axis");
}

// One line with its intervals, moved aside so that those of one x stand beside one another.
std::string drawn(const Chart& chart, const ChartLine& line, const Axis& across, const Axis& up,
                  double aside) {
  std::string path;
  std::string marks;
  for (const ChartPoint& point : line.points) {
    const double x = across.px(point.x) + aside;
    const double y = up.px(point.y);
    path += fmt::format("{}{:.1f},{:.1f}", path.empty() ? "M" : "L", x, y);
    if (point.interval) {
      marks += fmt::format(
          "<path class=\"interval\" d=\"M{0:.1f},{1:.2f}V{2:.2f}M{3:.1f},{1:.2f}h6M{3:.1f},{2:.2f}h6\"/>", x,
          up.px(point.interval->first), up.px(point.interval->second), x - 3);
    }
    if (!chart.over_time) marks += marker(line.mode, x, y, point.sure, point.at);
  }
  return fmt::format("<g class=\"mode {}{}\"><path class=\"line\" d=\"{}\"/>{}</g>\n", colour_of(line.mode),
                     chart.modelled ? " modelled" : "", path, marks);
}

// Returns the legend's text and, in `height`, the whole chart's.
std::string legend(const Chart& chart, const std::vector<ChartLine>& lines, double& height) {
  std::string text;
  double x = kLeft;
  double y = kLegendTop;
  for (const ChartLine& line : lines) {
    const double width = 34 + kLetter * static_cast<double>(line.name.size());
    if (x > kLeft && x + width > kWidth) {
      x = kLeft;
      y += kLegendLine;
    }
    text += fmt::format("<g class=\"mode {}{}\"><path class=\"line\" d=\"M{:.1f},{:.1f}h20\"/>{}</g>",
                        colour_of(line.mode), chart.modelled ? " modelled" : "", x - 10, y - 4,
                        chart.over_time ? "" : marker(line.mode, x, y - 4, true, ""));
    text += text_at(x + 15, y, "start", line.name, "key");
    x += width;
  }
  height = y + 12;
  return text;
}

}  // namespace

std::string_view colour_of(std::string_view mode) { return look_of(mode).mode; }

std::string escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string svg_of(const Chart& chart) {
  const std::vector<ChartLine> lines = visible(chart);
  if (lines.empty()) return {};
  std::vector<double> ys;
  std::set<double> xs;
  for (const ChartLine& line : lines) {
    for (const ChartPoint& point : line.points) {
      xs.insert(point.x);
      ys.push_back(point.y);
      if (!point.interval) continue;
      ys.push_back(point.interval->second);
      if (point.interval->first > 0) ys.push_back(point.interval->first);
    }
  }
  const Axis across({xs.begin(), xs.end()}, !chart.over_time, kLeft, kWidth - kRight);
  const Axis up(std::move(ys), !chart.over_time, kTop + kPlotHeight, kTop);
  double height = 0;
  const std::string keys = legend(chart, lines, height);
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1:.0f}\" width=\"{0}\" "
      "height=\"{1:.0f}\" role=\"img\" "
      "aria-label=\"{2}; its points are in the tables\">\n",
      kWidth, height, escaped(chart.name));
  text += text_at(kLeft - 44, 18, "start", chart.name, "name") + grid(chart, across, up, xs);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const double aside =
        chart.over_time || chart.modelled
            ? 0
            : kBetween * (static_cast<double>(i) - static_cast<double>(lines.size() - 1) / 2);
    text += drawn(chart, lines[i], across, up, aside);
  }
  return text + keys + "</svg>\n";
}

}  // namespace gdx::bench
