// Limits of gdxd. A group is the processes of one user.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gdx::daemon {

struct GroupLimits {
  std::uint32_t max_clients = 256;
  // Each endpoint is two mappings of gdxd, each region, pool and client one or two: all groups together stay
  // below the 65530 that Linux permits a process, unless told otherwise.
  std::uint32_t max_endpoints = 1024;
  std::uint32_t max_regions = 1536;
  std::uint64_t max_registered_bytes = std::uint64_t{16} << 30;  // queues and pools of host memory included
  std::uint32_t max_pools = 32;
  std::uint32_t max_nic_pools = 1;  // in the memory of each NIC, so that other groups get their parts
  std::uint32_t max_slots = 65536;  // slots of one pool
  std::uint32_t max_requests_per_s = 20'000;
};

// Connections that root, and gdxd's own user, may each have beyond the limits, so that they can look after a
// full gdxd. They cannot open an HCA.
inline constexpr std::ptrdiff_t kOperatorPlaces = 8;

struct Limits {
  std::uint32_t max_groups = 16;
  std::uint32_t max_clients = 1024;
  std::uint32_t pools_per_hca = 1;  // no pool has more than its even part of the NIC's memory
  GroupLimits group;
};

}  // namespace gdx::daemon
