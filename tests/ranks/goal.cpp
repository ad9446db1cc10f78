#include "tests/ranks/goal.h"

#include <fmt/format.h>

#include <ostream>

namespace gdx::ranks {
namespace {

constexpr std::uint32_t kMessages = 1024;
constexpr std::uint64_t kLargeBytes = 64 * 1024;

// One connection, whose poster costs nothing, watched closely. The queue is longer than a round trip.
Report run_one(const SimulationConfig& config, Pattern pattern, std::uint64_t message_bytes) {
  SimulationConfig one = config;
  one.ranks = 2;
  one.endpoints_per_rank = 2;
  one.log_send_queue = 10;
  one.pattern = pattern;
  one.message_bytes = message_bytes;
  one.messages = kMessages;
  one.post_ns = 0;
  one.step_ns = 1;
  one.dead_rank.reset();
  return Simulation(one).run();
}

double per_message(std::uint64_t ns) { return static_cast<double>(ns) / kMessages; }

}  // namespace

void write_goal(const SimulationConfig& config, std::ostream& out) {
  out << fmt::format("num_ranks {}\n", config.ranks);
  for (std::uint32_t rank = 0; rank < config.ranks; ++rank) {
    out << fmt::format("\nrank {} {{\n", rank);
    for (std::uint32_t e = 0; e < config.endpoints_per_rank; ++e) {
      const Simulation::Peer peer = Simulation::peer_of(config, rank * config.endpoints_per_rank + e);
      for (std::uint32_t m = 1; m <= config.messages; ++m) {
        // The sender's endpoint is the tag: two ranks may have several connections.
        out << fmt::format("s{0}_{1}: send {2}b to {3} tag {0}\nr{0}_{1}: recv {2}b from {3} tag {4}\n", e, m,
                           config.message_bytes, peer.rank, peer.endpoint);
        if (m > 1) out << fmt::format("s{0}_{1} requires r{0}_{2}\n", e, m, m - 1);
      }
    }
    out << "}\n";
  }
}

LogGp measure_loggp(const SimulationConfig& config) {
  LogGp measured;
  measured.latency_ns = per_message(run_one(config, Pattern::kExchange, sizeof(std::uint64_t)).seen_ns);
  measured.overhead_ns = config.post_ns;
  measured.gap_ns = per_message(run_one(config, Pattern::kStream, sizeof(std::uint64_t)).virtual_ns);
  measured.gap_per_byte_ns = per_message(run_one(config, Pattern::kStream, kLargeBytes).virtual_ns) /
                             static_cast<double>(kLargeBytes);
  return measured;
}

}  // namespace gdx::ranks
