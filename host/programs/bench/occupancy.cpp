#include "host/programs/bench/occupancy.h"

#include <chrono>
#include <utility>

#include "base/clock.h"
#include "proto/byte_order.h"

namespace gdx::bench {
namespace {

constexpr std::uint64_t kFirstIntervalNs = 50'000;

// Modulo 2^16, as the doorbell record counts.
std::uint32_t blocks_in_flight(const EndpointHandle& endpoint) {
  const auto load = [](auto& word) { return std::atomic_ref(word).load(std::memory_order_acquire); };
  const std::uint32_t completed = load(endpoint.state->completed);
  return static_cast<std::uint16_t>(byte_swap(load(endpoint.send_record->raw)) - completed);
}

Occupancy sample(const std::vector<const StagingPool*>& pools, const std::vector<EndpointHandle>& endpoints,
                 std::uint64_t at_ns) {
  Occupancy point{at_ns, 0, 0};
  for (const StagingPool* const pool : pools) point.slots += pool->leased_slots();
  for (const EndpointHandle& endpoint : endpoints) point.in_flight += blocks_in_flight(endpoint);
  return point;
}

}  // namespace

void keep_every_second(std::vector<Occupancy>& points) {
  for (std::size_t i = 0; 2 * i < points.size(); ++i) points[i] = points[2 * i];
  points.resize((points.size() + 1) / 2);
}

OccupancySampler::OccupancySampler(std::vector<const StagingPool*> pools,
                                   std::vector<EndpointHandle> endpoints)
    : pools_(std::move(pools)), endpoints_(std::move(endpoints)), thread_([this] { run(); }) {}

OccupancySampler::~OccupancySampler() {
  over_.store(true);
  if (thread_.joinable()) thread_.join();
}

std::vector<Occupancy> OccupancySampler::stop() {
  over_.store(true);
  thread_.join();
  return std::exchange(points_, {});
}

void OccupancySampler::run() {
  const std::uint64_t begun_ns = monotonic_ns();
  std::uint64_t interval_ns = kFirstIntervalNs;
  do {
    points_.push_back(sample(pools_, endpoints_, monotonic_ns() - begun_ns));
    if (points_.size() == kMostOccupancyPoints) {
      keep_every_second(points_);
      interval_ns *= 2;
    }
    std::this_thread::sleep_for(std::chrono::nanoseconds(interval_ns));
  } while (!over_.load());
}

}  // namespace gdx::bench
