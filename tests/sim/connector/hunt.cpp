// Succeeds if and only if a seed finds what is wrong with the connector it was linked with.
#include <fmt/format.h>

#include "tests/sim/connector/seeds.h"

int main() {
  constexpr std::uint64_t kSeeds = 2000;
  const auto report = gdx::sim::run_connector_seeds(1, kSeeds);
  if (report.sum.problem.empty()) {
    fmt::print("seeds 1..{} find nothing: the simulation is blind to this bug\n", kSeeds);
    return 1;
  }
  fmt::print("seed {} finds it: {}\n", report.seed, report.sum.problem);
  return 0;
}
