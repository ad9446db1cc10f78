// For simulators of whole clusters: what the ranks of a run did, as a GOAL schedule.
// Source: T. Hoefler, T. Schneider, A. Lumsdaine, "LogGOPSim" (2010); the text grammar of its txt2bin.
#pragma once

#include <iosfwd>
#include <span>
#include <vector>

#include "tests/ranks/simulation.h"

namespace gdx::ranks {

// Errors: kInvalidArgument where a run of `config` has no schedule: a stream, or more endpoints of a rank
// than a schedule has cpus.
[[nodiscard]] Result<void> check_goal(const SimulationConfig& config);

// `actions` of a run of `config`, which has passed check_goal and has not failed: each posted message as a
// send and each awaited one as a receive. The time that a kernel spent before a send is a calc. What an
// endpoint did next requires what it did before; endpoints of a rank are its cpus.
void write_goal(const SimulationConfig& config, std::span<const std::vector<Action>> actions,
                std::ostream& out);

}  // namespace gdx::ranks
