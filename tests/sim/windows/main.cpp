// FIRST LAST [hunt]: the seeds of the windows' world, on the windows that are linked with it.
#include <functional>

#include "tests/sim/windows/world.h"

int main(int argc, char** argv) {
  using namespace gdx::sim;
  const auto world_of = [](const std::string&) {
    return std::function([](std::uint64_t seed) { return WindowWorld(seed).run(); });
  };
  return run_seed_program(argc, argv, "FIRST LAST", world_of, [](const WindowOutcome& sum) {
    return fmt::format("{} packets, {} lost, {} waits, {} deaths, {} restarts, {} pauses", sum.packets,
                       sum.lost, sum.waits, sum.deaths, sum.restarts, sum.pauses);
  });
}
