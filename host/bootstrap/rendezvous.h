// How the ranks find each other: rank 0 collects a connection of every other rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/bootstrap/connection.h"
#include "host/bootstrap/world.h"

namespace gdx::bootstrap {

// "rank 2", "ranks 1, 2 and 5", "ranks 1, 2, 3, 4 and 12 more".
[[nodiscard]] std::string rank_list(const std::vector<std::uint32_t>& ranks);

// Sends `failure` to all, as far as their sockets take it now, and closes this side.
void announce_failure(std::vector<Connection>& members, const Failure& failure);

// The error that a rank reports after rank 0 sent it `failure`.
[[nodiscard]] Error received_failure(const Failure& failure);

// Both return connections after the welcome; rank 0 gets one per rank, its own place empty, the others
// get one, to rank 0. Errors: as World::join.
[[nodiscard]] Result<std::vector<Connection>> gather_members(const WorldOptions& options,
                                                             std::uint64_t deadline_ns);
[[nodiscard]] Result<std::vector<Connection>> join_root(const WorldOptions& options,
                                                        std::uint64_t deadline_ns);

}  // namespace gdx::bootstrap
