// gdx_daemon_sim FIRST LAST [hunt]: the seeds of gdxd's world; the first that finds a problem is printed.
// With `hunt` it succeeds if and only if one does.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tests/sim/daemon/world.h"

namespace {

bool is_hunt = false;

void found(std::uint64_t seed, const std::string& problem) {
  fmt::print("seed {}: {}\nreplay: ./run sim gdxd {} {}\n", seed, problem, seed, seed);
  std::fflush(stdout);
  std::_Exit(is_hunt ? 0 : 1);
}

}  // namespace

int main(int argc, char** argv) {
  is_hunt = argc == 4 && std::string_view(argv[3]) == "hunt";
  if (argc != 3 && !is_hunt) {
    fmt::print(stderr, "gdx_daemon_sim: which seeds? use gdx_daemon_sim FIRST LAST [hunt]\n");
    return 2;
  }
  gdx::sim::DaemonOutcome sum;
  const std::uint64_t first = std::strtoull(argv[1], nullptr, 10);
  const std::uint64_t last = std::strtoull(argv[2], nullptr, 10);
  for (std::uint64_t seed = first; seed <= last; ++seed) sum.add(gdx::sim::DaemonWorld(seed, found).run());
  fmt::print(
      "seeds {}..{}: {} steps, {} checks; {} connections, {} turned away, {} deaths, {} dropped, {} kicked; "
      "{} "
      "answers, {} of them refusals, {} waits for room; {} lives of gdxd, {} calls after one: {}\n",
      first, last, sum.steps, sum.checks, sum.connections, sum.turned_away, sum.deaths, sum.dropped,
      sum.kicked, sum.answers, sum.refusals, sum.full_sockets, sum.daemons, sum.gone,
      is_hunt ? "blind to this bug" : "every promise was kept");
  return is_hunt ? 1 : 0;
}
