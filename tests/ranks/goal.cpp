#include "tests/ranks/goal.h"

#include <fmt/format.h>

#include <ostream>
#include <string>

namespace gdx::ranks {
namespace {

// Of one endpoint. The sender's endpoint is the tag: two ranks may have several connections.
void write_endpoint(std::uint32_t endpoint, Simulation::Peer peer, std::span<const Action> actions,
                    std::ostream& out) {
  std::string previous;
  std::uint64_t previous_ns = 0;
  const auto require_previous = [&](const std::string& label) {
    if (!previous.empty()) out << fmt::format("{} requires {}\n", label, previous);
    previous = label;
  };
  std::uint32_t number = 0;
  for (const Action& action : actions) {
    const bool sends = action.kind == Action::Kind::kSend;
    if (sends) {
      ++number;
      const std::string calc = fmt::format("c{}_{}", endpoint, number);
      out << fmt::format("{}: calc {}\n", calc, action.at_ns - previous_ns);
      require_previous(calc);
    }
    const std::string label = fmt::format("{}{}_{}", sends ? 's' : 'r', endpoint, number);
    out << fmt::format("{}: {} {}b {} {} tag {}\n", label, sends ? "send" : "recv", action.bytes,
                       sends ? "to" : "from", peer.rank, sends ? endpoint : peer.endpoint);
    require_previous(label);
    previous_ns = action.at_ns;
  }
}

}  // namespace

void write_goal(const SimulationConfig& config, std::span<const std::vector<Action>> actions,
                std::ostream& out) {
  out << fmt::format("num_ranks {}\n", config.ranks);
  for (std::uint32_t rank = 0; rank < config.ranks; ++rank) {
    out << fmt::format("\nrank {} {{\n", rank);
    for (std::uint32_t endpoint = 0; endpoint < config.endpoints_per_rank; ++endpoint) {
      const std::uint32_t index = rank * config.endpoints_per_rank + endpoint;
      write_endpoint(endpoint, Simulation::peer_of(config, index), actions[index], out);
    }
    out << "}\n";
  }
}

}  // namespace gdx::ranks
