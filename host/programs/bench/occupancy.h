// Occupancy of pools and send queues over time, sampled beside a kernel.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "host/gdx.h"

namespace gdx::bench {

inline constexpr std::size_t kMostOccupancyPoints = 128;

// Of all pools and endpoints. A kernel keeps the slots that it has written in registers; a push posts a block
// for each.
struct Occupancy {
  std::uint64_t at_ns;      // since the sampling began
  std::uint32_t slots;      // leased to endpoints by the scheduler
  std::uint32_t in_flight;  // WQEBBs posted and not yet found complete; none of kernels on a GPU
};

// Keeps the first point, and each second one after it.
void keep_every_second(std::vector<Occupancy>& points);

// Samples on a thread of its own, first every 50 us. A long run keeps every second point, and doubles the
// time.
class OccupancySampler {
 public:
  // The words of `endpoints` must be in host memory.
  OccupancySampler(std::vector<const StagingPool*> pools, std::vector<EndpointHandle> endpoints);
  ~OccupancySampler();
  OccupancySampler(const OccupancySampler&) = delete;
  OccupancySampler& operator=(const OccupancySampler&) = delete;

  // Ends the sampling. Returns 1 to kMostOccupancyPoints, in order.
  [[nodiscard]] std::vector<Occupancy> stop();

 private:
  void run();

  const std::vector<const StagingPool*> pools_;
  const std::vector<EndpointHandle> endpoints_;
  std::vector<Occupancy> points_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

}  // namespace gdx::bench
