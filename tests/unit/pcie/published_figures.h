// Published figures of PCIe and of puts, beside what the model gives for each.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace gdx::pcie::test {

enum class Basis {
  kFormula,    // published as a computation, and met by its accounting; evidence of arithmetic alone
  kFitted,     // a parameter was chosen to meet it; no evidence
  kPredicted,  // measured, no parameter was chosen by it, and met
  kMissed,     // measured, no parameter was chosen by it, and not met
};

struct PublishedFigure {
  Basis basis;
  std::string_view figure;
  std::string_view platform;
  std::string_view source;  // papers/push-vs-pull.md has authors, year and link
  std::string_view unit;
  double low;  // published, a range where several machines were measured
  double high;
  double modelled;                          // as every other figure of the model is computed
  double tolerance;                         // a share of the published figure
  std::optional<double> by_its_accounting;  // of link-layer packets: of a formula
};

// Returns whether the figure is met: within its tolerance.
[[nodiscard]] constexpr bool is_met(const PublishedFigure& one, double modelled) {
  return modelled >= one.low * (1 - one.tolerance) && modelled <= one.high * (1 + one.tolerance);
}

// Returns all of them, by basis. They are modelled once.
[[nodiscard]] const std::vector<PublishedFigure>& published_figures();

}  // namespace gdx::pcie::test
