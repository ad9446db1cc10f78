// Succeeds if and only if a seed finds what is wrong with the credits' code it was linked with. With an
// argument there are shared endpoints.
#include <fmt/format.h>

#include "tests/sim/credits/seeds.h"

int main(int argc, char**) {
  constexpr std::uint64_t kSeeds = 2000;
  const auto report = gdx::sim::run_credit_seeds(
      1, kSeeds, 10'000, argc > 1 ? gdx::sim::Sharers::kSome : gdx::sim::Sharers::kNone);
  if (report.sum.problem.empty()) {
    fmt::print("seeds 1..{} find nothing: the simulation is blind to this bug\n", kSeeds);
    return 1;
  }
  fmt::print("seed {} finds it: {}\n", report.seed, report.sum.problem);
  return 0;
}
