// For simulators of whole clusters: what the ranks do as a GOAL schedule, and what a message costs them as
// LogGP parameters. Source: T. Hoefler, T. Schneider, A. Lumsdaine, "LogGOPSim" (2010); the text grammar of
// its txt2bin.
#pragma once

#include <cstdint>
#include <iosfwd>

#include "tests/ranks/simulation.h"

namespace gdx::ranks {

// The exchange of `config` as sends, receives and what each of them requires.
void write_goal(const SimulationConfig& config, std::ostream& out);

// Of one endpoint of an idle network, from runs of the production code.
struct LogGp {
  double latency_ns = 0;  // L: an 8 B put with its signal, from the post until the peer's kernel sees it
  std::uint64_t overhead_ns = 0;  // o: SimulationConfig::post_ns, an input
  double gap_ns = 0;              // g: between 8 B messages of one endpoint whose poster costs nothing
  double gap_per_byte_ns = 0;     // G
};

[[nodiscard]] LogGp measure_loggp(const SimulationConfig& config);

}  // namespace gdx::ranks
