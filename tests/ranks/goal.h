// For simulators of whole clusters: what the ranks of a run did, as a GOAL schedule.
// Source: T. Hoefler, T. Schneider, A. Lumsdaine, "LogGOPSim" (2010); the text grammar of its txt2bin.
#pragma once

#include <iosfwd>
#include <span>
#include <vector>

#include "tests/ranks/simulation.h"

namespace gdx::ranks {

// `actions` of a run of `config`, an exchange that has not failed: each message that was posted as a send,
// each that was waited for as a receive, and the time that a kernel spent before a send as a calc. What an
// endpoint did next requires what it did before.
void write_goal(const SimulationConfig& config, std::span<const std::vector<Action>> actions,
                std::ostream& out);

}  // namespace gdx::ranks
