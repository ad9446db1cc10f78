// Each rank puts a greeting to its right neighbour: gdx run --ranks 3 -- hello_put [ROUNDS]
#include "hello_put.h"

#include <string>

#include "../example.h"

using example::or_exit;

namespace {

std::string greeting(std::uint32_t rank, std::uint32_t round) {
  return "round " + std::to_string(round) + ": hello from rank " + std::to_string(rank);
}

}  // namespace

int main(int argc, char** argv) {
  const std::uint32_t rounds = example::number(argc, argv, 1, 3);
  gdx::Team team = or_exit(gdx::Team::create({.gpu = gpu_of_kernels()}));
  auto* const inbox = or_exit(team.allocate<char>(kTextBytes));
  auto* const outbox = or_exit(team.allocate<char>(kTextBytes));
  auto* const arrived = or_exit(team.allocate<std::uint64_t>(1));
  auto* const status = or_exit(team.allocate<gdx::Status>(1));
  const std::uint32_t left = (team.rank() + team.size() - 1) % team.size();

  for (std::uint32_t round = 1; round <= rounds; ++round) {
    greeting(team.rank(), round).copy(outbox, kTextBytes);
    const gdx::Status launched = run_greet(team.handle(), inbox, outbox, arrived, round, status);
    example::check(team, launched, status, 1);
    if (std::string(inbox) != greeting(left, round))
      example::stop("rank %u has '%.*s' in round %u", team.rank(), kTextBytes, inbox, round);
    or_exit(team.barrier());  // all have read their inboxes, so the next round may overwrite them
  }
  std::printf("rank %u has '%s'\n", team.rank(), inbox);
}
