// Connection of the ranks: rank 0 collects a connection of every other rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "base/result.h"
#include "host/bootstrap/connection.h"
#include "host/bootstrap/reception.h"
#include "host/bootstrap/world.h"

namespace gdx::bootstrap {

// "rank 2", "ranks 1, 2 and 5", "ranks 1, 2, 3, 4 and 12 more".
[[nodiscard]] std::string rank_list(const std::vector<std::uint32_t>& ranks);

// Sends `failure` to all, as far as their sockets take it now, and closes this side.
void announce_failure(std::vector<Connection>& members, const Failure& failure);

// Answers a rank that came when its place had been taken.
void refuse_latecomer(Reception::Arrival& latecomer, const std::string& reason);

// The error that a rank reports after rank 0 sent it `failure`.
[[nodiscard]] Error received_failure(const Failure& failure);

struct Gathered {
  std::vector<Connection> members;  // by rank, rank 0's own place empty
  Reception reception;              // for ranks whose places others have taken
};

// Welcomes all members that are connected. Errors: kTimeout, kPeerGone, naming the rank.
[[nodiscard]] Result<void> welcome(std::vector<Connection>& members, std::uint64_t deadline_ns);

// Connects from `place` to rank `to` at options.root, and tries again where the handshake is cut off. Errors:
// those of connect_to and Connection::dial; kTimeout, kPeerGone.
[[nodiscard]] Result<Connection> open_root(const WorldOptions& options, const ChannelPlace& place,
                                           std::uint32_t to, std::uint64_t deadline_ns);

// Both return connections after the welcome; the others get one, to rank 0. Errors: as World::join.
[[nodiscard]] Result<Gathered> gather_members(const WorldOptions& options, Descriptor listener,
                                              std::uint64_t deadline_ns);
[[nodiscard]] Result<std::vector<Connection>> join_root(const WorldOptions& options,
                                                        std::uint64_t deadline_ns);

}  // namespace gdx::bootstrap
