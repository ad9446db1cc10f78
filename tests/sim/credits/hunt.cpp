// Succeeds if and only if a seed finds what is wrong with the credits' code it was linked with. The argument
// `shared` adds shared endpoints; `team` means only those of a team, `tenants` those of two programs.
#include <fmt/format.h>

#include <string_view>

#include "tests/sim/credits/seeds.h"

int main(int argc, char** argv) {
  using gdx::sim::Sharers;
  constexpr std::uint64_t kSeeds = 2000;
  const std::string_view kind = argc > 1 ? argv[1] : "";
  const Sharers sharers = kind == "team"      ? Sharers::kTeam
                          : kind == "tenants" ? Sharers::kTenants
                          : kind == "shared"  ? Sharers::kSome
                                              : Sharers::kNone;
  const auto report = gdx::sim::run_credit_seeds(1, kSeeds, 10'000, sharers);
  if (report.sum.problem.empty()) {
    fmt::print("seeds 1..{} find nothing: the simulation is blind to this bug\n", kSeeds);
    return 1;
  }
  fmt::print("seed {} finds it: {}\n", report.seed, report.sum.problem);
  return 0;
}
