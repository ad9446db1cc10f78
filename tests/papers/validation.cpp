// gdx_validation: each published figure beside the model's. papers/push-vs-pull.sh keeps what it prints.
#include <fmt/format.h>

#include "tests/unit/pcie/published_figures.h"

namespace gdx::pcie::test {
namespace {

constexpr char kRow[] = "{:<9} | {:<42} | {:<42} | {:>12} | {:>8} | {:>6} | {:>7} | {:<4} | {}\n";

std::string_view name(Basis basis) {
  switch (basis) {
    case Basis::kFormula: return "formula";
    case Basis::kFitted: return "fitted";
    case Basis::kPredicted: return "predicted";
    case Basis::kMissed: return "missed";
  }
  return "";
}

std::string published(const PublishedFigure& one) {
  return one.low == one.high ? fmt::format("{}", one.low) : fmt::format("{} to {}", one.low, one.high);
}

void print_all() {
  fmt::print(
      "modelled: published figures, and what the model gives for them. theirs: by the figure's own "
      "accounting of\n"
      "link-layer packets, which no option chooses. off: of the modelled figure from the published.\n\n");
  fmt::print(kRow, "basis", "figure", "platform", "published", "modelled", "theirs", "off", "unit", "source");
  for (const PublishedFigure& one : published_figures()) {
    const double nearest = one.modelled > one.high ? one.high : one.low;
    fmt::print(kRow, name(one.basis), one.figure, one.platform, published(one),
               fmt::format("{:.2f}", one.modelled),
               one.by_its_accounting ? fmt::format("{:.1f}", *one.by_its_accounting) : "-",
               fmt::format("{:+.1f}%", 100 * (one.modelled / nearest - 1)), one.unit, one.source);
  }
}

}  // namespace
}  // namespace gdx::pcie::test

int main() { gdx::pcie::test::print_all(); }
