// gdx_connector_sim FIRST LAST [RANKS] [hunt]: the seeds of the connectors' world. With RANKS every seed has
// that many.
#include <cstdlib>
#include <functional>

#include "tests/sim/connector/world.h"

int main(int argc, char** argv) {
  using namespace gdx::sim;
  const auto world_of = [](const std::string& choice) {
    const auto ranks = static_cast<std::uint32_t>(std::strtoul(choice.c_str(), nullptr, 10));
    return std::function([ranks](std::uint64_t seed) { return ConnectorWorld(seed, ranks).run(); });
  };
  return run_seed_program(
      argc, argv, "gdx_connector_sim FIRST LAST [RANKS]", world_of, [](const ConnectorOutcome& sum) {
        return fmt::format(
            "{} pairs and lanes used, {} by both; {} ends ready, {} gone; {} letters, {} "
            "dials, {} breaks, {} deaths, {} busy, {} refusals, longest {:.3f} s",
            sum.used, sum.crossed, sum.ready, sum.gone, sum.letters, sum.dials, sum.breaks, sum.deaths,
            sum.busy, sum.refusals, static_cast<double>(sum.longest_ns) / 1e9);
      });
}
