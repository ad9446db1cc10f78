#include "host/programs/bench/peers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <iterator>
#include <numeric>
#include <sstream>

#include "host/programs/bench/document.h"
#include "host/programs/bench/statistics.h"

namespace gdx::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kUcx[] = "ucx_perftest";
constexpr char kLibfabric[] = "fi_pingpong";

struct Match {
  const char* program;
  const char* test;  // of programs that have several
  Operation operation;
  Measure measure;
};

constexpr Match kMatches[] = {{"ib_write_lat", "", Operation::kPutSignal, Measure::kLatency},
                              {"ib_read_lat", "", Operation::kGet, Measure::kLatency},
                              {"ib_atomic_lat", "", Operation::kFetchAdd, Measure::kLatency},
                              {"ib_write_bw", "", Operation::kPut, Measure::kBandwidth},
                              {"ib_read_bw", "", Operation::kGet, Measure::kBandwidth},
                              {"ib_atomic_bw", "", Operation::kFetchAdd, Measure::kBandwidth},
                              {kUcx, "ucp_put_lat", Operation::kPutSignal, Measure::kLatency},
                              {kUcx, "ucp_put_bw", Operation::kPut, Measure::kBandwidth},
                              {kUcx, "ucp_get", Operation::kGet, Measure::kLatency},
                              {kUcx, "ucp_get", Operation::kGet, Measure::kBandwidth},
                              {kUcx, "ucp_fadd", Operation::kFetchAdd, Measure::kLatency},
                              {kUcx, "ucp_fadd", Operation::kFetchAdd, Measure::kBandwidth},
                              {kLibfabric, "", Operation::kPutSignal, Measure::kLatency}};

constexpr double kMebibyte = 1 << 20;
constexpr std::uint64_t kBytesOfRun = 8 << 20;  // that a run moves, about
constexpr std::uint64_t kLeastIterations = 20;
constexpr std::uint64_t kMostIterations = 1000;
constexpr std::uint64_t kMostRoundTrips = 200;  // each a time slice where both ends share a core
constexpr std::uint64_t kMostLibfabricBytes = 8 << 20;
// Of the depth, which perftest lowers to its iterations, of which it takes no fewer than 5.
constexpr std::uint64_t kLeastWindows = 5;

bool is_perftest(const std::string& program) { return program.starts_with("ib_"); }

bool can_run(const Match& match, const Case& item) {
  if (match.operation != item.operation || match.measure != item.measure || shares(item)) return false;
  const bool latency = item.measure == Measure::kLatency;
  const bool plain = item.endpoints == 1 && item.batch == 1 && !item.both_ways;
  if (is_perftest(match.program)) return plain || !latency;
  return plain && (match.program != std::string(kLibfabric) || item.bytes <= kMostLibfabricBytes);
}

std::uint64_t iterations_of(const Plan& plan, const Case& item) {
  const std::uint64_t most = item.measure == Measure::kLatency ? kMostRoundTrips : kMostIterations;
  const std::uint64_t fitting = std::clamp(kBytesOfRun / item.bytes, kLeastIterations, most);
  const std::uint64_t wanted =
      std::max(plan.messages != 0 ? plan.messages : fitting, kLeastWindows * item.depth);
  return (wanted + item.batch - 1) / item.batch * item.batch;
}

// The options that a reader compares; the rest is where the ends meet.
std::vector<std::string> options_of(const Match& match, const Plan& plan, const Case& item) {
  const std::string many = fmt::format("{}", iterations_of(plan, item));
  const std::string bytes = fmt::format("{}", item.bytes);
  const bool latency = item.measure == Measure::kLatency;
  if (match.program == std::string(kLibfabric)) return {"-p", "verbs", "-e", "msg", "-I", many, "-S", bytes};
  if (match.program == std::string(kUcx))
    return {"-t", match.test, "-n", many, "-s", bytes, "-O", fmt::format("{}", latency ? 1 : item.depth)};
  std::vector<std::string> options = {"-F", "-n", many};
  const auto add = [&](const char* name, const std::string& value) {
    options.insert(options.end(), {name, value});
  };
  if (item.operation == Operation::kFetchAdd) add("-A", "FETCH_AND_ADD");
  if (item.operation != Operation::kFetchAdd) add("-s", bytes);
  if (item.operation == Operation::kPutSignal) add("-I", "0");  // the NIC reads the payload, as by pull
  if (!latency) add("-t", fmt::format("{}", item.depth));
  if (!latency && item.batch == 1) add("-Q", fmt::format("{}", item.depth));
  if (item.endpoints != 1) add("-q", fmt::format("{}", item.endpoints));
  if (item.batch != 1) add("-l", fmt::format("{}", item.batch));
  if (item.both_ways) options.emplace_back("-b");
  return options;
}

// All numbers of a line, up to the first word that is none.
std::vector<double> numbers_of(const std::string& line) {
  std::istringstream row(line);
  std::vector<double> values;
  values.reserve(9);
  for (double value = 0; row >> value;) values.push_back(value);
  return values;
}

// Of a rate printed to one message a second and a bandwidth printed to 0.01 MiB/s, that which has more
// digits.
double messages_per_s(double rate, double mebibytes, std::uint64_t bytes) {
  return rate >= 100 * mebibytes ? rate : mebibytes * kMebibyte / static_cast<double>(bytes);
}

// The row of figures below perftest's line of column names.
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
    const std::vector<double> values = numbers_of(line);
    if (values.size() < (latency ? 9u : 5u)) return std::nullopt;
    PeerFigures figures{.bytes = static_cast<std::uint64_t>(values[0]),
                        .iterations = static_cast<std::uint64_t>(values[1])};
    if (latency) {
      figures.us = values[4];
      figures.p99_us = values[7];
      figures.p99_9_us = values[8];
    } else {
      figures.messages_per_s = messages_per_s(values[4] * 1e6, values[3], figures.bytes);
    }
    return figures;
  }
  return std::nullopt;
}

// The last line with -f: iterations; latency in us, of a percentile, average, overall; MiB/s and messages/s,
// average and overall each.
std::optional<PeerFigures> parse_ucx(const Case& item, const std::string& text) {
  std::istringstream lines(text);
  std::vector<double> last;
  for (std::string line; std::getline(lines, line);) {
    std::vector<double> values = numbers_of(line);
    if (values.size() == 8) last = std::move(values);
  }
  if (last.empty()) return std::nullopt;
  return PeerFigures{.bytes = item.bytes,
                     .iterations = static_cast<std::uint64_t>(last[0]),
                     .us = last[1],
                     .messages_per_s = messages_per_s(last[7], last[5], item.bytes)};
}

// Of a count in units of a thousand, a million and so on: "1k".
std::uint64_t count_of(const std::string& word) {
  std::istringstream text(word);
  std::uint64_t count = 0;
  char unit = ' ';
  text >> count >> unit;
  return count * (unit == 'k' ? 1'000 : unit == 'm' ? 1'000'000 : 1);
}

// Columns of fi_pingpong: bytes, #sent, #ack, total, time, MB/sec, usec/xfer, Mxfers/sec. All but the last
// three may end in a unit: "64 1k =1k 125k 0.07s 1.81 35.29 0.03".
std::optional<PeerFigures> parse_libfabric(const Case& item, const std::string& text) {
  std::istringstream lines(text);
  bool below = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("bytes")) {
      below = true;
      continue;
    }
    if (!below) continue;
    std::istringstream row(line);
    const std::vector<std::string> words{std::istream_iterator<std::string>(row), {}};
    if (words.size() != 8) return std::nullopt;
    const std::vector<double> us = numbers_of(words[6]);
    if (us.empty()) return std::nullopt;
    return PeerFigures{.bytes = item.bytes, .iterations = count_of(words[1]), .us = us[0]};
  }
  return std::nullopt;
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

// The median of the rounds' quantiles; null where a round has too few messages for one, or none is printed.
Json quantile_json(const std::vector<PeerFigures>& rounds, double q, double PeerFigures::*figure) {
  const auto lacks = [&](const PeerFigures& one) {
    return one.*figure == 0 || !has_quantile(one.iterations, q);
  };
  if (std::ranges::any_of(rounds, lacks)) return nullptr;
  return rounded(median_interval(values_of(rounds, figure)).estimate);
}

}  // namespace

std::vector<PeerRun> peer_runs(const Plan& plan, const std::vector<Case>& cases) {
  std::vector<PeerRun> runs;
  if (!plan.peers) return runs;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const bool first = i == 0 || !same_but_way(cases[i], cases[i - 1]);
    // No scope is a CPU's: one run stands beside all of them, in turns with the first.
    if (!first || cases[i].scope != cases[0].scope) continue;
    for (const Match& match : kMatches) {
      if (can_run(match, cases[i]))
        runs.push_back({match.program, cases[i], options_of(match, plan, cases[i])});
    }
  }
  return runs;
}

std::vector<std::size_t> order_of_round(const std::vector<Case>& cases, const std::vector<PeerRun>& peers,
                                        std::uint32_t round) {
  std::vector<std::size_t> order;
  order.reserve(cases.size() + peers.size());
  for (std::size_t begin = 0; begin < cases.size();) {
    std::vector<std::size_t> group;
    group.reserve(cases.size() + peers.size());
    for (std::size_t i = begin; i < cases.size() && same_but_way(cases[i], cases[begin]); ++i)
      group.push_back(i);
    begin += group.size();
    for (std::size_t i = 0; i < peers.size(); ++i) {
      if (same_but_way(peers[i].item, cases[begin - 1])) group.push_back(cases.size() + i);
    }
    for (std::size_t i = 0; i < group.size(); ++i) order.push_back(group[(i + round) % group.size()]);
  }
  return order;
}

bool is_address(const std::string& text) {
  const auto fits = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == ':' || c == '%' || c == '-';
  };
  return !text.empty() && text.front() != '-' && std::ranges::all_of(text, fits);
}

std::string peer_command(const PeerRun& run, const Nic& nic, std::uint16_t port, const std::string& host) {
  const std::string options = fmt::format("{}", fmt::join(run.options, " "));
  if (run.program == kUcx) {
    // One that was built with MPI takes itself for one of its processes.
    const char* const alone = "$(ucx_perftest -h | grep -q -- \"-P <0|1>\" && echo -P 0)";
    const std::string on = fmt::format("env UCX_NET_DEVICES={}:1 UCX_IB_GID_INDEX={} UCX_TLS=rc {} {} -p {}",
                                       nic.hca, nic.gid_index, kUcx, alone, port);
    return host.empty() ? on : fmt::format("{} {} {} -f", on, host, options);
  }
  if (run.program == kLibfabric)
    return fmt::format("{} -d {} {} -{} {} {}", kLibfabric, nic.hca, options, host.empty() ? 'B' : 'P', port,
                       host);
  return fmt::format("{} -d {} -x {} -p {} {} {}", run.program, nic.hca, nic.gid_index, port, options, host);
}

bool measures_otherwise(const PeerRun& run) { return run.program == kLibfabric; }

std::string package_of(const std::string& program) {
  if (program == kUcx) return "ucx-utils";
  return program == kLibfabric ? "libfabric-bin" : "perftest";
}

std::optional<PeerFigures> parse_peer(const PeerRun& run, const std::string& text) {
  if (run.program == kUcx) return parse_ucx(run.item, text);
  if (run.program == kLibfabric) return parse_libfabric(run.item, text);
  return parse_perftest(text);
}

Json to_json(const PeerFigures& figures) {
  return {{"bytes", figures.bytes},
          {"iterations", figures.iterations},
          {"us", figures.us},
          {"p99_us", figures.p99_us},
          {"p99_9_us", figures.p99_9_us},
          {"messages_per_s", figures.messages_per_s}};
}

PeerFigures peer_figures_from_json(const Json& json) {
  return {.bytes = json.at("bytes").get<std::uint64_t>(),
          .iterations = json.at("iterations").get<std::uint64_t>(),
          .us = json.at("us").get<double>(),
          .p99_us = json.at("p99_us").get<double>(),
          .p99_9_us = json.at("p99_9_us").get<double>(),
          .messages_per_s = json.at("messages_per_s").get<double>()};
}

Json peer_row(const PeerRun& run, const std::vector<PeerFigures>& rounds, const std::string& where) {
  const bool latency = run.item.measure == Measure::kLatency;
  Json row = to_json(run.item);
  row["mode"] = run.program;
  row["poster"] = "CPU";
  row["scope"] = nullptr;
  row["series"] =
      fmt::format("measured on {}, by a CPU: {} {}", where, run.program, fmt::join(run.options, " "));
  row["rounds"] = rounds.size();
  row["messages"] =
      std::accumulate(rounds.begin(), rounds.end(), std::uint64_t{0},
                      [](std::uint64_t sum, const PeerFigures& one) { return sum + one.iterations; });
  row["latency_of"] = nullptr;
  row["latency_us"] = nullptr;
  row["messages_per_s"] = nullptr;
  row["gigabytes_per_s"] = nullptr;
  row["ratio_to_pull"] = nullptr;
  if (latency) {
    row["latency_of"] = latency_of(run.item.operation) + (measures_otherwise(run) ? ", mean, send/recv" : "");
    row["latency_us"] = interval_json(values_of(rounds, &PeerFigures::us));
    row["latency_us"]["p99"] = quantile_json(rounds, 0.99, &PeerFigures::p99_us);
    row["latency_us"]["p99_9"] = quantile_json(rounds, 0.999, &PeerFigures::p99_9_us);
  } else {
    std::vector<double> rates = values_of(rounds, &PeerFigures::messages_per_s);
    row["messages_per_s"] = interval_json(rates);
    for (double& rate : rates) rate *= static_cast<double>(run.item.bytes) / 1e9;
    row["gigabytes_per_s"] = interval_json(rates);
  }
  return row;
}

}  // namespace gdx::bench
