// Limits of gdxd. A group is the processes of one user.
#pragma once

#include <cstdint>

namespace gdx::daemon {

struct GroupLimits {
  std::uint32_t max_clients = 256;
  // Each endpoint is two mappings of gdxd, each region one, and Linux permits a process 65530.
  std::uint32_t max_endpoints = 1024;
  std::uint32_t max_regions = 2048;
  std::uint64_t max_registered_bytes = std::uint64_t{16} << 30;  // queues and pools of host memory included
  std::uint32_t max_pools = 4;
  std::uint32_t max_slots = 65536;  // of a pool
};

struct Limits {
  std::uint32_t max_groups = 16;
  std::uint32_t max_clients = 1024;
  std::uint32_t pools_per_hca = 1;  // no pool has more than its even part of the NIC's memory
  GroupLimits group;
};

}  // namespace gdx::daemon
