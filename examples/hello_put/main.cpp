// Each rank puts a greeting to its right neighbour: gdx run --ranks 3 -- hello_put
#include <string>

#include "../example.h"
#include "hello_put.h"

using gdx::program::or_exit;

namespace {

std::string greeting(std::uint32_t rank) { return "hello from rank " + std::to_string(rank); }

}  // namespace

int main() {
  gdx::Team team = or_exit(gdx::Team::create());
  auto* const inbox = or_exit(team.allocate<char>(kTextBytes));
  auto* const outbox = or_exit(team.allocate<char>(kTextBytes));
  auto* const arrived = or_exit(team.allocate<std::uint64_t>(1));
  auto* const status = or_exit(team.allocate<gdx::Status>(1));
  greeting(team.rank()).copy(outbox, kTextBytes);

  example::check(team, run_greet(team.handle(), inbox, outbox, arrived, status), status, 1);
  const std::uint32_t left = (team.rank() + team.size() - 1) % team.size();
  if (inbox != greeting(left)) example::stop("rank %u has '%.*s'", team.rank(), kTextBytes, inbox);
  std::printf("rank %u has '%s'\n", team.rank(), inbox);
}
