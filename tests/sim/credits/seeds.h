// Many seeds of the credits' world.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "tests/sim/credits/world.h"

namespace gdx::sim {

struct CreditReport {
  std::uint64_t seed = 0;  // the first with a problem
  CreditOutcome sum;       // the problem of that seed, counters of all that ran
};

inline CreditReport run_credit_seeds(std::uint64_t first, std::uint64_t last, std::uint32_t steps,
                                     Sharers sharers = Sharers::kNone) {
  CreditReport report;
  for (std::uint64_t seed = first; seed <= last && report.sum.problem.empty(); ++seed) {
    const CreditOutcome outcome = CreditWorld(seed, sharers).run(steps);
    report.seed = seed;
    report.sum.problem = outcome.problem;
    report.sum.steps += outcome.steps;
    report.sum.pushes += outcome.pushes;
    report.sum.stalls += outcome.stalls;
    report.sum.errors += outcome.errors;
    report.sum.deaths += outcome.deaths;
    report.sum.bad_returns += outcome.bad_returns;
    report.sum.thread_steps += outcome.thread_steps;
    report.sum.waits += outcome.waits;
  }
  return report;
}

// Returns the counters of each seed's run, a line each.
inline std::string credit_courses(std::uint64_t seeds, std::uint32_t steps, Sharers sharers) {
  std::string text = "# seed: pushes stalls errors deaths bad_returns thread_steps waits\n";
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    const CreditOutcome outcome = CreditWorld(seed, sharers).run(steps);
    text += fmt::format("{}: {} {} {} {} {} {} {}\n", seed, outcome.pushes, outcome.stalls, outcome.errors,
                        outcome.deaths, outcome.bad_returns, outcome.thread_steps, outcome.waits);
  }
  return text;
}

}  // namespace gdx::sim
