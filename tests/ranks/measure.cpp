#include "tests/ranks/measure.h"

#include <fmt/format.h>

#include <algorithm>

namespace gdx::ranks {
namespace {

constexpr std::uint32_t kMessages = 128;
constexpr std::uint64_t kLargeBytes = 64 * 1024;
constexpr std::uint64_t kMaxLanes = 8;
constexpr std::uint64_t kMaxMessages = 64;  // of each lane
constexpr std::uint64_t kStreamBytes = 2 << 20;
constexpr std::uint64_t kRateStepNs = 5;

// One connection, whose poster does nothing but put, watched closely. The queue is longer than a round trip.
SimulationConfig one_connection(const SimulationConfig& config, Pattern pattern) {
  SimulationConfig one = config;
  one.ranks = 2;
  one.endpoints_per_rank = 2;
  one.log_send_queue = 10;
  one.pattern = pattern;
  one.one_way = pattern == Pattern::kStream;
  one.messages = kMessages;
  one.post_ns = 0;
  one.jitter_ns = 0;
  one.step_ns = 1;
  one.dead_rank.reset();
  return one;
}

Result<Report> run(const SimulationConfig& config) {
  GDX_TRY(Simulation::check(config));
  const Report report = Simulation(config).run();
  if (report.first_failure == Status::kOk && report.wrong_words == 0) return report;
  return fail(
      report.first_failure == Status::kOk ? Status::kSystem : report.first_failure,
      fmt::format("{} of {} endpoints failed ({}): choose a latency below the ACK timeout of 1 ms, or more "
                  "buffer and slots",
                  report.failed_endpoints, report.endpoints, status_name(report.first_failure)));
}

// Returns the time of each message in the second half of twice as many messages.
Result<double> ns_per_message(SimulationConfig config, std::uint64_t Report::*time) {
  const Result<Report> once = run(config);
  config.messages *= 2;
  const Result<Report> twice = run(config);
  if (!once) return tl::unexpected(once.error());
  if (!twice) return tl::unexpected(twice.error());
  return static_cast<double>(*twice.*time - *once.*time) / (config.messages / 2);
}

}  // namespace

Result<LogGp> measure_loggp(const SimulationConfig& config) {
  SimulationConfig exchange = one_connection(config, Pattern::kExchange);
  SimulationConfig stream = one_connection(config, Pattern::kStream);
  exchange.message_bytes = stream.message_bytes = sizeof(std::uint64_t);
  exchange.ordering = stream.ordering = {0, 0};
  const Result<double> latency_ns = ns_per_message(exchange, &Report::seen_ns);
  const Result<double> gap_ns = ns_per_message(stream, &Report::virtual_ns);
  stream.message_bytes = kLargeBytes;
  stream.ordering = config.ordering;
  const Result<double> large_ns = ns_per_message(stream, &Report::virtual_ns);
  for (const Result<double>* part : {&latency_ns, &gap_ns, &large_ns}) {
    if (!*part) return tl::unexpected(part->error());
  }
  return LogGp{.latency_ns = *latency_ns,
               .overhead_ns = order_ns(config) + config.post_ns,
               .gap_ns = *gap_ns,
               .gap_per_byte_ns = *large_ns / static_cast<double>(kLargeBytes)};
}

Result<std::uint64_t> measure_delivery(const SimulationConfig& config) {
  SimulationConfig once = one_connection(config, Pattern::kStream);
  once.messages = 1;
  const Report report = GDX_TRY(run(once));
  return report.delivered_ns;
}

Result<Rate> measure_rate(const SimulationConfig& config) {
  Rate rate;
  rate.lanes = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(kStreamBytes / config.message_bytes, 1, kMaxLanes));
  SimulationConfig many = one_connection(config, Pattern::kStream);
  many.endpoints_per_rank = 2 * rate.lanes;
  many.messages = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(kStreamBytes / config.message_bytes / rate.lanes, 2, kMaxMessages));
  many.step_ns = kRateStepNs;
  const double ns = GDX_TRY(ns_per_message(many, &Report::delivered_ns));
  rate.bytes_per_s = static_cast<double>(rate.lanes * config.message_bytes) / (ns * 1e-9);
  return rate;
}

}  // namespace gdx::ranks
