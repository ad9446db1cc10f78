// Many seeds of the windows' world.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tests/sim/windows/world.h"

namespace gdx::sim {

struct WindowReport {
  std::uint64_t seed = 0;  // the first with a problem
  WindowOutcome sum;       // the problem of that seed, counters of all that ran
};

inline WindowReport run_window_seeds(std::uint64_t first, std::uint64_t last) {
  WindowReport report;
  for (std::uint64_t seed = first; seed <= last && report.sum.problem.empty(); ++seed) {
    const WindowOutcome outcome = WindowWorld(seed).run();
    report.seed = seed;
    report.sum.problem = outcome.problem;
    report.sum.packets += outcome.packets;
    report.sum.lost += outcome.lost;
    report.sum.waits += outcome.waits;
    report.sum.deaths += outcome.deaths;
    report.sum.restarts += outcome.restarts;
    report.sum.pauses += outcome.pauses;
    report.sum.fullest = std::max(report.sum.fullest, outcome.fullest);
  }
  return report;
}

}  // namespace gdx::sim
