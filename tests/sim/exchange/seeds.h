// Many seeds of the exchange's world.
#pragma once

#include <cstdint>

#include "tests/sim/exchange/world.h"

namespace gdx::sim {

struct ExchangeReport {
  std::uint64_t seed = 0;  // the first with a problem
  ExchangeOutcome sum;     // the problem of that seed, the last whole run's traffic, counters of all that ran
};

inline ExchangeReport run_exchange_seeds(std::uint64_t first, std::uint64_t last, std::uint32_t ranks) {
  ExchangeReport report;
  ExchangeOutcome& sum = report.sum;
  for (std::uint64_t seed = first; seed <= last && sum.problem.empty(); ++seed) {
    const ExchangeOutcome outcome = ExchangeWorld(seed, ranks).run();
    report.seed = seed;
    sum.problem = outcome.problem;
    sum.losses += outcome.losses;
    sum.named += outcome.named;
    sum.told += outcome.told;
    sum.whole += outcome.whole;
    if (outcome.losses != 0) continue;
    sum.sent = outcome.sent;
    sum.received = outcome.received;
  }
  return report;
}

}  // namespace gdx::sim
