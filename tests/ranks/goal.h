// For simulators of whole clusters: what the ranks do, as a GOAL schedule.
// Source: T. Hoefler, T. Schneider, A. Lumsdaine, "LogGOPSim" (2010); the text grammar of its txt2bin.
#pragma once

#include <iosfwd>

#include "tests/ranks/simulation.h"

namespace gdx::ranks {

// The exchange of `config` as sends, receives and what each of them requires.
void write_goal(const SimulationConfig& config, std::ostream& out);

}  // namespace gdx::ranks
