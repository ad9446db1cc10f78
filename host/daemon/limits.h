// Limits of gdxd. A group is the processes of one user.
#pragma once

#include <cstdint>

namespace gdx::daemon {

struct GroupLimits {
  std::uint32_t max_clients = 256;
  std::uint32_t max_endpoints = 4096;
  std::uint32_t max_regions = 65536;
  std::uint64_t max_registered_bytes = std::uint64_t{64} << 30;  // queue memory included
  // Pools of staging memory on the NIC; each has its even part of that memory unless a client asks for less.
  std::uint32_t max_pools = 4;
};

struct Limits {
  std::uint32_t max_groups = 16;
  std::uint32_t pools_per_hca = 1;  // by which the NIC's memory is divided
  GroupLimits group;
};

}  // namespace gdx::daemon
