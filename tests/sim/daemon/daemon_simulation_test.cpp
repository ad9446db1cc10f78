// A few seeds of gdxd's world; ./run sim gdxd FIRST LAST runs any.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "tests/sim/daemon/world.h"

namespace gdx::sim {
namespace daemon_simulation_test {

constexpr std::uint64_t kSeeds = 12;

[[noreturn]] void found(std::uint64_t seed, const std::string& problem) {
  fmt::print("seed {}: {}\nreplay: ./run sim gdxd {} {}\n", seed, problem, seed, seed);
  std::fflush(stdout);
  std::_Exit(1);  // the fibers of a world have no other end
}

// One case, because a world must find nothing that another has left.
TEST(DaemonSimulation, gdxd_owns_what_its_clients_own_and_answers_each) {
  DaemonOutcome sum;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) sum.add(DaemonWorld(seed, found).run());
  // The seeds reach what they are for.
  EXPECT_GT(sum.grants, 100u);
  EXPECT_GT(sum.refusals, 100u);
  EXPECT_GT(sum.deaths, 0u);
  EXPECT_GT(sum.full_sockets, 0u);
  EXPECT_GT(sum.dropped, 0u);
  EXPECT_GT(sum.kicked, 0u);
  EXPECT_GT(sum.gone, 0u);
  EXPECT_GT(sum.daemons, kSeeds);
}

// A seed is the whole truth about a run.
TEST(DaemonSimulation, a_seed_replays) {
  const DaemonOutcome once = DaemonWorld(3, found).run();
  const DaemonOutcome again = DaemonWorld(3, found).run();
  EXPECT_EQ(once.steps, again.steps);
  EXPECT_EQ(once.answers, again.answers);
  EXPECT_EQ(once.grants, again.grants);
}

}  // namespace daemon_simulation_test
}  // namespace gdx::sim
