#include "tests/ranks/goal.h"

#include <fmt/format.h>

#include <ostream>

namespace gdx::ranks {
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

}  // namespace gdx::ranks
