// Standard benchmarks that measure the same operations on the same HCA: their commands, and their figures.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "host/bench/plan.h"

namespace gdx::bench {

// One run of a peer: the program with its options, for both ends.
struct PeerRun {
  std::string program;  // ib_write_lat
  Operation operation = Operation::kPut;
  Measure measure = Measure::kLatency;
  std::uint64_t bytes = 0;
  std::vector<std::string> options;
};

// Returns the runs of perftest's programs that match the plan's tests and sizes. A put with a signal is
// matched by ib_write_lat, in which the peer's processor sees the data, too.
[[nodiscard]] std::vector<PeerRun> peer_runs(const Plan& plan);

struct PeerFigures {
  std::uint64_t bytes = 0;
  double us = 0;  // of latency: t_typical
  double p99_us = 0;
  double p99_9_us = 0;
  double messages_per_s = 0;  // of bandwidth
};

// Reads the row of figures below perftest's line of column names. nullopt: there is none.
[[nodiscard]] std::optional<PeerFigures> parse_perftest(const std::string& text);

// Adds the rounds of one run to `peers` of the document, as one row. `where`: "the software HCA".
void add_peer(nlohmann::ordered_json& document, const PeerRun& run, const std::vector<PeerFigures>& rounds,
              const std::string& where);

}  // namespace gdx::bench
