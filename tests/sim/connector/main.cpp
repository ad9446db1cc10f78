// gdx_connector_sim FIRST LAST [RANKS]: the seeds of the connectors' world; the first that finds a problem is
// printed. With RANKS every seed has that many.
#include <fmt/format.h>

#include <cstdlib>

#include "tests/sim/connector/seeds.h"

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    fmt::print(stderr, "gdx_connector_sim: which seeds? use gdx_connector_sim FIRST LAST [RANKS]\n");
    return 2;
  }
  const auto number = [&](int i) { return std::strtoull(argv[i], nullptr, 10); };
  const auto report = gdx::sim::run_connector_seeds(number(1), number(2),
                                                    argc == 4 ? static_cast<std::uint32_t>(number(3)) : 0);
  const gdx::sim::ConnectorOutcome& sum = report.sum;
  fmt::print(
      "up to seed {}: {} pairs and lanes used, {} by both; {} ends ready, {} gone; {} letters, {} dials, "
      "{} breaks, {} deaths, {} busy, {} refusals, longest {:.3f} s: {}\n",
      report.seed, sum.used, sum.crossed, sum.ready, sum.gone, sum.letters, sum.dials, sum.breaks, sum.deaths,
      sum.busy, sum.refusals, static_cast<double>(sum.longest_ns) / 1e9,
      sum.problem.empty() ? "every promise was kept" : sum.problem);
  return sum.problem.empty() ? 0 : 1;
}
