// Figures of one connection of an idle network, from runs of the production code in virtual time.
#pragma once

#include <cstdint>

#include "tests/ranks/simulation.h"

namespace gdx::ranks {

// Source of the model: A. Alexandrov et al., "LogGP" (1995).
struct LogGp {
  double latency_ns = 0;  // L: an 8 B put with its signal, from the post until the peer's kernel sees it
  // o: the poster's thread, an input: a put's fences by mode and queues, and SimulationConfig::post_ns
  std::uint64_t overhead_ns = 0;
  double gap_ns = 0;           // g: between 8 B messages of one endpoint whose poster costs nothing
  double gap_per_byte_ns = 0;  // G: of 64 KiB, with the fences that one endpoint alone spends meanwhile
};

// Each as a difference of two runs, so that what happens once does not count. Errors of both:
// kInvalidArgument when such a simulation is impossible, and the first failure of an endpoint.
[[nodiscard]] Result<LogGp> measure_loggp(const SimulationConfig& config);

// A put of config.message_bytes by config.mode across config.bus, which must be there. Errors: as
// measure_loggp. In ns, from the call to the last byte in the peer's GPU memory.
[[nodiscard]] Result<std::uint64_t> measure_delivery(const SimulationConfig& config);

struct Rate {
  double bytes_per_s = 0;
  std::uint32_t lanes = 0;  // endpoints that put one message behind the other
};
[[nodiscard]] Result<Rate> measure_rate(const SimulationConfig& config);

}  // namespace gdx::ranks
