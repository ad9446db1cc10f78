// Many seeds of the connectors' world.
#pragma once

#include <cstdint>

#include "tests/sim/connector/world.h"

namespace gdx::sim {

struct ConnectorReport {
  std::uint64_t seed = 0;  // the first with a problem
  ConnectorOutcome sum;    // the problem of that seed, counters of all that ran
};

inline ConnectorReport run_connector_seeds(std::uint64_t first, std::uint64_t last, std::uint32_t ranks = 0) {
  ConnectorReport report;
  for (std::uint64_t seed = first; seed <= last && report.sum.problem.empty(); ++seed) {
    const ConnectorOutcome outcome = ConnectorWorld(seed, ranks).run();
    report.seed = seed;
    report.sum.problem = outcome.problem;
    report.sum.add(outcome);
  }
  return report;
}

}  // namespace gdx::sim
