// gdx_credit_sim [--team|--tenants] FIRST LAST: the seeds of the credits' world, each with shared endpoints,
// of teams, or of the teams of two programs; the first that finds a problem is printed.
#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

#include "tests/sim/credits/seeds.h"

int main(int argc, char** argv) {
  using gdx::sim::Sharers;
  const std::string_view kind = argc == 4 ? argv[1] : "";
  const Sharers sharers = kind == "--team"      ? Sharers::kTeam
                          : kind == "--tenants" ? Sharers::kTenants
                                                : Sharers::kSome;
  if (argc != 3 && sharers == Sharers::kSome) {
    fmt::print(stderr, "gdx_credit_sim: which seeds? use gdx_credit_sim [--team|--tenants] FIRST LAST\n");
    return 2;
  }
  const auto report = gdx::sim::run_credit_seeds(std::strtoull(argv[argc - 2], nullptr, 10),
                                                 std::strtoull(argv[argc - 1], nullptr, 10), 10'000, sharers);
  const gdx::sim::CreditOutcome& sum = report.sum;
  fmt::print("up to seed {}: {} steps, {} of threads, {} pushes, {} waits, {} errors, {} deaths: {}\n",
             report.seed, sum.steps, sum.thread_steps, sum.pushes, sum.waits, sum.errors, sum.deaths,
             sum.problem.empty() ? "every promise was kept" : sum.problem);
  return sum.problem.empty() ? 0 : 1;
}
