#include "host/bench/peers.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "host/bench/document.h"
#include "host/bench/statistics.h"

namespace gdx::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Match {
  const char* program;
  Operation operation;
  Measure measure;
};

constexpr Match kMatches[] = {{"ib_write_lat", Operation::kPutSignal, Measure::kLatency},
                              {"ib_read_lat", Operation::kGet, Measure::kLatency},
                              {"ib_atomic_lat", Operation::kFetchAdd, Measure::kLatency},
                              {"ib_write_bw", Operation::kPut, Measure::kBandwidth},
                              {"ib_read_bw", Operation::kGet, Measure::kBandwidth},
                              {"ib_atomic_bw", Operation::kFetchAdd, Measure::kBandwidth}};

constexpr std::uint64_t kBytesOfRun = 8 << 20;  // that a run moves, about
constexpr std::uint64_t kLeastIterations = 20;
constexpr std::uint64_t kMostIterations = 1000;
constexpr std::uint64_t kMostRoundTrips = 200;  // each a time slice where both ends share a core

PeerRun run_of(const Plan& plan, const Match& match, std::uint64_t bytes) {
  const std::uint64_t most = match.measure == Measure::kLatency ? kMostRoundTrips : kMostIterations;
  const std::uint64_t many = std::clamp(kBytesOfRun / bytes, kLeastIterations, most);
  PeerRun run{match.program, match.operation, match.measure, bytes, {"-F", "-n"}};
  run.options.push_back(
      fmt::format("{}", plan.messages != 0 ? std::max<std::uint64_t>(plan.messages, 5) : many));
  if (match.operation == Operation::kFetchAdd) {
    run.options.insert(run.options.end(), {"-A", "FETCH_AND_ADD"});
  } else {
    run.options.insert(run.options.end(), {"-s", fmt::format("{}", bytes)});
  }
  if (match.measure == Measure::kBandwidth)
    run.options.insert(run.options.end(), {"-t", fmt::format("{}", plan.depths.front())});
  return run;
}

Json interval_json(const std::vector<double>& values) {
  const Interval interval = median_interval(values);
  return {{"median", rounded(interval.estimate)},
          {"low", rounded(interval.low)},
          {"high", rounded(interval.high)},
          {"level", rounded(interval.level)}};
}

template <typename Figure>
std::vector<double> values_of(const std::vector<PeerFigures>& rounds, Figure figure) {
  std::vector<double> values(rounds.size());
  std::ranges::transform(rounds, values.begin(), figure);
  return values;
}

}  // namespace

std::vector<PeerRun> peer_runs(const Plan& plan) {
  std::vector<PeerRun> runs;
  for (const Match& match : kMatches) {
    const std::string test = fmt::format("{}_{}", name(match.operation), name(match.measure));
    if (std::ranges::count(plan.tests, test) == 0) continue;
    if (match.operation == Operation::kFetchAdd) {
      runs.push_back(run_of(plan, match, sizeof(std::uint64_t)));
      continue;
    }
    for (const std::uint64_t bytes : plan.sizes_bytes) runs.push_back(run_of(plan, match, bytes));
  }
  return runs;
}

std::optional<PeerFigures> parse_perftest(const std::string& text) {
  std::istringstream lines(text);
  bool latency = false;
  bool below = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(" #bytes")) {
      latency = line.find("t_typical[usec]") != std::string::npos;
      below = true;
      continue;
    }
    if (!below) continue;
    std::istringstream row(line);
    std::vector<double> values;
    values.reserve(9);
    for (double value = 0; row >> value;) values.push_back(value);
    if (values.size() < (latency ? 9u : 5u)) return std::nullopt;
    PeerFigures figures{.bytes = static_cast<std::uint64_t>(values[0])};
    if (latency) {
      figures.us = values[4];
      figures.p99_us = values[7];
      figures.p99_9_us = values[8];
    } else {
      figures.messages_per_s = values[4] * 1e6;
    }
    return figures;
  }
  return std::nullopt;
}

void add_peer(Json& document, const PeerRun& run, const std::vector<PeerFigures>& rounds,
              const std::string& where) {
  if (rounds.empty()) return;
  const bool latency = run.measure == Measure::kLatency;
  Json row = {{"series", fmt::format("measured on {}, by a CPU: {} {}", where, run.program,
                                     fmt::join(run.options, " "))},
              {"operation", name(run.operation)},
              {"measure", name(run.measure)},
              {"mode", run.program},
              {"bytes", run.bytes},
              {"rounds", rounds.size()},
              {"latency_us", nullptr},
              {"messages_per_s", nullptr},
              {"gigabytes_per_s", nullptr}};
  if (latency) {
    row["latency_us"] = interval_json(values_of(rounds, &PeerFigures::us));
    row["latency_us"]["p99"] = rounded(median_interval(values_of(rounds, &PeerFigures::p99_us)).estimate);
    row["latency_us"]["p99_9"] = rounded(median_interval(values_of(rounds, &PeerFigures::p99_9_us)).estimate);
  } else {
    std::vector<double> rates = values_of(rounds, &PeerFigures::messages_per_s);
    row["messages_per_s"] = interval_json(rates);
    for (double& rate : rates) rate *= static_cast<double>(run.bytes) / 1e9;
    row["gigabytes_per_s"] = interval_json(rates);
  }
  document["peers"].push_back(std::move(row));
}

}  // namespace gdx::bench
