#include "driver-shim/pcie/world/measure.h"

#include <algorithm>

namespace gdx::pcie {
namespace {

// Warming up takes some round trips, then twice as much is measured.
constexpr std::uint64_t kWarmUpMessages = 2048;
constexpr std::uint64_t kMaxWarmUpBytes = 2 << 20;
constexpr std::uint64_t kEndOverWarmUp = 3;

}  // namespace

Latency measure_latency(const WorldConfig& config, Mode mode, std::uint64_t message_bytes) {
  World world(config, mode);
  Latency latency;
  world.begin(message_bytes, config.batch, 1,
              {.delivered = [&](TimePs now, std::uint64_t) { latency.delivered_ns = to_ns(now); },
               .completed = [&](TimePs now) { latency.completed_ns = to_ns(now); }});
  while (world.step()) {
  }
  latency.counters = world.sender_counters();
  return latency;
}

Rate measure_rate(const WorldConfig& config, Mode mode, std::uint64_t message_bytes) {
  // Windows of batches have more messages in flight than the usual ones.
  const std::uint64_t longer = std::max<std::uint64_t>(config.batch * config.lanes / WorldConfig{}.lanes, 1);
  const std::uint64_t warm_bytes =
      std::min(kWarmUpMessages * message_bytes, kMaxWarmUpBytes) * (config.batch == 1 ? 1 : longer);
  const std::uint64_t end_bytes = kEndOverWarmUp * warm_bytes;
  // Never short of messages: every endpoint has its window full to the end.
  const std::uint64_t messages =
      std::uint64_t{config.lanes} * config.window * config.batch + end_bytes / message_bytes;
  std::uint64_t arrived_bytes = 0;
  std::uint64_t begin_bytes = 0;
  TimePs begin = 0;
  TimePs end = 0;
  World world(config, mode);
  world.begin(message_bytes, messages, config.lanes,
              {.delivered =
                   [&](TimePs now, std::uint64_t bytes) {
                     arrived_bytes += bytes;
                     end = now;
                     if (begin_bytes > 0 || arrived_bytes < warm_bytes) return;
                     begin = now;
                     begin_bytes = arrived_bytes;
                   },
               .completed = nullptr});
  while (arrived_bytes < end_bytes && world.step()) {
  }
  Rate rate;
  if (end <= begin) return rate;
  rate.bytes_per_s =
      static_cast<double>(arrived_bytes - begin_bytes) * kPsPerSecond / static_cast<double>(end - begin);
  rate.messages_per_s = rate.bytes_per_s / static_cast<double>(message_bytes);
  return rate;
}

}  // namespace gdx::pcie
