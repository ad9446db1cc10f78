#include "tests/ranks/measure.h"

#include <algorithm>

namespace gdx::ranks {
namespace {

constexpr std::uint32_t kMessages = 1024;
constexpr std::uint64_t kLargeBytes = 64 * 1024;
constexpr std::uint64_t kMaxLanes = 8;
constexpr std::uint64_t kMaxMessages = 256;  // of each lane
constexpr std::uint64_t kStreamBytes = 8 << 20;
constexpr std::uint64_t kRateStepNs = 5;

// One connection, whose poster costs nothing, watched closely. The queue is longer than a round trip.
SimulationConfig one_connection(const SimulationConfig& config, Pattern pattern) {
  SimulationConfig one = config;
  one.ranks = 2;
  one.endpoints_per_rank = 2;
  one.log_send_queue = 10;
  one.pattern = pattern;
  one.messages = kMessages;
  one.post_ns = 0;
  one.jitter_ns = 0;
  one.step_ns = 1;
  one.dead_rank.reset();
  return one;
}

double per_message(std::uint64_t ns) { return static_cast<double>(ns) / kMessages; }

}  // namespace

LogGp measure_loggp(const SimulationConfig& config) {
  SimulationConfig exchange = one_connection(config, Pattern::kExchange);
  SimulationConfig stream = one_connection(config, Pattern::kStream);
  exchange.message_bytes = stream.message_bytes = sizeof(std::uint64_t);
  LogGp measured;
  measured.latency_ns = per_message(Simulation(exchange).run().seen_ns);
  measured.overhead_ns = config.post_ns;
  measured.gap_ns = per_message(Simulation(stream).run().virtual_ns);
  stream.message_bytes = kLargeBytes;
  measured.gap_per_byte_ns =
      per_message(Simulation(stream).run().virtual_ns) / static_cast<double>(kLargeBytes);
  return measured;
}

Point measure_point(const SimulationConfig& config) {
  SimulationConfig once = one_connection(config, Pattern::kStream);
  once.one_way = true;
  once.messages = 1;
  Point point;
  point.delivered_ns = Simulation(once).run().delivered_ns;

  SimulationConfig many = once;
  const auto lanes = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(kStreamBytes / config.message_bytes, 1, kMaxLanes));
  many.endpoints_per_rank = 2 * lanes;
  many.messages = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(kStreamBytes / config.message_bytes / lanes, 2, kMaxMessages));
  many.step_ns = kRateStepNs;
  const Report report = Simulation(many).run();
  const auto bytes = static_cast<double>(report.messages * config.message_bytes);
  point.bytes_per_s = bytes / (static_cast<double>(report.delivered_ns) * 1e-9);
  return point;
}

}  // namespace gdx::ranks
