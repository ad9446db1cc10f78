// Standard benchmarks that measure the same operations on the same HCA: their commands, and their figures.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "host/programs/bench/plan.h"

namespace gdx::bench {

// A program beside the cases that differ from `item` in the way alone.
struct PeerRun {
  std::string program;  // ib_write_lat
  Case item;            // its way means nothing
  std::vector<std::string> options;
};

// Returns the runs that match cases of the plan, of programs that have their conditions: perftest has several
// queue pairs, lists of work requests and both directions, of bandwidth. A put with a signal is matched by
// ib_write_lat, in which the peer's processor sees the data, too.
[[nodiscard]] std::vector<PeerRun> peer_runs(const Plan& plan, const std::vector<Case>& cases);

// Returns the order of one round: numbers of cases, and above them those of `peers`. Ways that are compared,
// and the peers beside them, are neighbours and take turns at being the first.
[[nodiscard]] std::vector<std::size_t> order_of_round(const std::vector<Case>& cases,
                                                      const std::vector<PeerRun>& peers, std::uint32_t round);

// Returns whether a run measures a mean, of sends and receives: no ratio of that is formed to a median of
// puts.
[[nodiscard]] bool measures_otherwise(const PeerRun& run);

// Returns whether a text can be an address, so that it is one word to a shell.
[[nodiscard]] bool is_address(const std::string& text);

// The HCA of one end, and the entry of its GID table that gdx uses.
struct Nic {
  std::string hca;
  std::uint8_t gid_index = 0;
};

// Returns the command line of one end, for a shell, without single quotes. `host`: of the server, for a
// client; empty for the server.
[[nodiscard]] std::string peer_command(const PeerRun& run, const Nic& nic, std::uint16_t port,
                                       const std::string& host);

// Returns Debian's package of a program.
[[nodiscard]] std::string package_of(const std::string& program);

struct PeerFigures {
  std::uint64_t bytes = 0;
  std::uint64_t iterations = 0;
  double us = 0;      // of latency: the median, or the mean of programs that print no other
  double p99_us = 0;  // 0: not printed
  double p99_9_us = 0;
  double messages_per_s = 0;  // of bandwidth
};

// Reads what the client of a run printed, to the most digits that it has. nullopt: no figures.
[[nodiscard]] std::optional<PeerFigures> parse_peer(const PeerRun& run, const std::string& text);

[[nodiscard]] nlohmann::ordered_json to_json(const PeerFigures& figures);
[[nodiscard]] PeerFigures peer_figures_from_json(const nlohmann::ordered_json& json);

// Returns the row of one run, from its rounds. `where`: "the software HCA".
[[nodiscard]] nlohmann::ordered_json peer_row(const PeerRun& run, const std::vector<PeerFigures>& rounds,
                                              const std::string& where);

}  // namespace gdx::bench
