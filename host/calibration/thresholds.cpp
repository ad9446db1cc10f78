#include "host/calibration/thresholds.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/size_text.h"
#include "host/calibration/mode_table.h"

namespace gdx {
namespace {

constexpr double kImpossible = 1e6;  // above the sum of all logarithms
constexpr std::uint64_t kRatesFromBytes = 4096;

std::size_t index_of(TableMode mode) { return static_cast<std::size_t>(mode); }

double best_ns(const MeasuredSize& size) {
  double best = HUGE_VAL;
  for (const auto& ns : size.ns) best = std::min(best, ns.value_or(HUGE_VAL));
  return best;
}

// Returns costs, of which element k is that of taking `mode` for the first k sizes.
std::vector<double> running_cost(TableMode mode, std::span<const MeasuredSize> sizes) {
  std::vector<double> cost{0};
  for (const MeasuredSize& size : sizes) {
    const auto& ns = size.ns[index_of(mode)];
    const bool fits = mode != TableMode::kInline || size.bytes <= kMaxAutoInlineBytes;
    cost.push_back(cost.back() + (ns && fits ? std::log(*ns / best_ns(size)) : kImpossible));
  }
  return cost;
}

bool is_usable(const MeasuredSize& size) {
  return size.bytes != 0 && std::isfinite(best_ns(size)) &&
         std::ranges::all_of(size.ns, [](const auto& ns) { return !ns || (std::isfinite(*ns) && *ns > 0); });
}

// Ends of the ranges: each is a number of sizes.
struct Ends {
  std::size_t inlined = 0;
  std::size_t pushed = 0;
  std::size_t pulled = 0;
};

ModeTable table_of(const Ends& ends, std::span<const MeasuredSize> sizes) {
  const auto limit = [&](std::size_t end, std::uint64_t below) {
    if (end == 0) return below;
    return end == sizes.size() ? kNoSizeLimit : std::max(below, sizes[end - 1].bytes);
  };
  ModeTable table{};
  if (ends.inlined != 0) table.inline_bytes = sizes[ends.inlined - 1].bytes;
  table.push_bytes =
      ends.pushed == ends.inlined ? table.inline_bytes : limit(ends.pushed, table.inline_bytes);
  table.pull_bytes = ends.pulled == ends.pushed && ends.pushed != sizes.size()
                         ? table.push_bytes
                         : limit(ends.pulled, table.push_bytes);
  return table;
}

// Returns a measured value with its spread, such as "1.00 GB/s (0.90 to 1.10)".
std::string figure(const MeasuredSize& size, TableMode mode, bool with_unit) {
  const bool as_rate = size.bytes >= kRatesFromBytes;
  const auto text = [&](double ns) {
    return as_rate ? fmt::format("{:.2f}", static_cast<double>(size.bytes) / ns)
                   : fmt::format("{:.1f}", ns / 1e3);
  };
  std::string shown = text(*size.ns[index_of(mode)]);
  if (with_unit) shown += as_rate ? " GB/s" : " us";
  const Spread& spread = size.spread[index_of(mode)];
  if (spread.least_ns <= 0) return shown;
  const std::string fast = text(spread.least_ns);
  const std::string slow = text(spread.most_ns);
  return fmt::format("{} ({} to {})", shown, as_rate ? slow : fast, as_rate ? fast : slow);
}

std::string compare_at(const MeasuredSize& size, TableMode chosen) {
  std::string text = fmt::format("at {} {}", size_text(size.bytes), figure(size, chosen, true));
  for (std::size_t mode = 0; mode < size.ns.size(); ++mode) {
    if (mode != index_of(chosen) && size.ns[mode])
      text +=
          fmt::format(", {} {}", kTableModeNames[mode], figure(size, static_cast<TableMode>(mode), false));
  }
  return text;
}

}  // namespace

TableMode mode_of(const ModeTable& table, std::uint64_t bytes) {
  if (bytes <= table.inline_bytes) return TableMode::kInline;
  if (bytes <= table.push_bytes) return TableMode::kPush;
  return bytes <= table.pull_bytes ? TableMode::kPull : TableMode::kBounce;
}

Result<ModeTable> best_table(std::span<const MeasuredSize> sizes) {
  if (sizes.empty() || !std::ranges::all_of(sizes, is_usable))
    return fail(Status::kInvalidArgument,
                "no mode table from these measurements: a size has no usable figure");
  std::array<std::vector<double>, 4> cost;
  for (const TableMode mode : {TableMode::kInline, TableMode::kPush, TableMode::kPull, TableMode::kBounce})
    cost[index_of(mode)] = running_cost(mode, sizes);
  const auto part = [&](TableMode mode, std::size_t begin, std::size_t end) {
    return cost[index_of(mode)][end] - cost[index_of(mode)][begin];
  };
  const std::size_t n = sizes.size();
  Ends best;
  double least = HUGE_VAL;
  for (std::size_t i = 0; i <= n; ++i) {
    for (std::size_t j = i; j <= n; ++j) {
      for (std::size_t k = n + 1; k-- > j;) {
        const double total = part(TableMode::kInline, 0, i) + part(TableMode::kPush, i, j) +
                             part(TableMode::kPull, j, k) + part(TableMode::kBounce, k, n);
        if (total >= least - 1e-12) continue;
        least = total;
        best = {i, j, k};
      }
    }
  }
  if (least >= kImpossible)
    return fail(Status::kInvalidArgument,
                "no mode table from these measurements: no order of modes serves all sizes");
  return table_of(best, sizes);
}

std::vector<std::string> explain(const ModeTable& table, std::span<const MeasuredSize> sizes,
                                 const std::string& measured_on) {
  const std::array<std::uint64_t, 4> limits = {table.inline_bytes, table.push_bytes, table.pull_bytes,
                                               kNoSizeLimit};
  std::vector<std::string> lines;
  std::uint64_t below = 0;
  for (std::size_t mode = 0; mode < limits.size(); ++mode) {
    std::vector<const MeasuredSize*> within;
    for (const MeasuredSize& size : sizes) {
      if (size.bytes > below && size.bytes <= limits[mode] && size.ns[mode]) within.push_back(&size);
    }
    below = std::max(below, limits[mode]);
    if (within.empty()) continue;
    lines.push_back(
        fmt::format("{} from {}: {}; measured on {}", kTableModeNames[mode], size_text(within.front()->bytes),
                    compare_at(*within[within.size() / 2], static_cast<TableMode>(mode)), measured_on));
  }
  return lines;
}

}  // namespace gdx
