// The host's side of hello_put, once a team is there.
#pragma once

#include <string>

#include "../example.h"
#include "hello_put.h"

namespace example {

inline std::string greeting(std::uint32_t rank) { return "hello from rank " + std::to_string(rank); }

// Puts a greeting to the right neighbour and prints that of the left one.
inline void exchange_greetings(gdx::Team& team) {
  using gdx::program::or_exit;
  auto* const inbox = or_exit(team.allocate<char>(kTextBytes));
  auto* const outbox = or_exit(team.allocate<char>(kTextBytes));
  auto* const arrived = or_exit(team.allocate<std::uint64_t>(1));
  auto* const status = or_exit(team.allocate<gdx::Status>(1));
  greeting(team.rank()).copy(outbox, kTextBytes);

  check(team, run_greet(team.handle(), inbox, outbox, arrived, status), status, 1);
  const std::uint32_t left = (team.rank() + team.size() - 1) % team.size();
  if (inbox != greeting(left)) stop("rank %u has '%.*s'", team.rank(), kTextBytes, inbox);
  std::printf("rank %u has '%s'\n", team.rank(), inbox);
}

}  // namespace example
