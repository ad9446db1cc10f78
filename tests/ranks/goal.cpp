#include "tests/ranks/goal.h"

#include <fmt/format.h>

#include <ostream>
#include <string>

namespace gdx::ranks {
namespace {

constexpr std::uint32_t kMaxCpus = 256;  // eight bits, to those who read it

// Writes one endpoint, which is a cpu, because endpoints post at once. The sender's endpoint is the tag too,
// because two ranks may have several connections.
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
      out << fmt::format("{}: calc {} cpu {}\n", calc, action.at_ns - previous_ns, endpoint);
      require_previous(calc);
    }
    const std::string label = fmt::format("{}{}_{}", sends ? 's' : 'r', endpoint, number);
    out << fmt::format("{}: {} {}b {} {} tag {} cpu {}\n", label, sends ? "send" : "recv", action.bytes,
                       sends ? "to" : "from", peer.rank, sends ? endpoint : peer.endpoint, endpoint);
    require_previous(label);
    previous_ns = action.at_ns;
  }
}

}  // namespace

Result<void> check_goal(const SimulationConfig& config) {
  if (config.pattern != Pattern::kExchange)
    return fail(Status::kInvalidArgument, "--goal: nobody waits for a stream: leave out --pattern");
  if (config.endpoints_per_rank <= kMaxCpus) return {};
  return fail(
      Status::kInvalidArgument,
      fmt::format("--goal: {} endpoints of a rank, each of which is a cpu: use at most {}, and more ranks",
                  config.endpoints_per_rank, kMaxCpus));
}

void write_goal(const SimulationConfig& config, std::span<const std::vector<Action>> actions,
                std::ostream& out) {
  out << fmt::format(
      "num_ranks {}\n// Each endpoint is a cpu. What its thread spends on a send is the calc before it: "
      "simulate with o = 0.\n",
      config.ranks);
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
