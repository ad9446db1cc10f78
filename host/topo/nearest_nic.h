// The order in which a process tries RDMA devices, by their distance from its GPU or its processors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/topo/topology.h"

namespace gdx {

// Place near which an RDMA device is wanted.
struct Place {
  std::string gpu = {};              // PCI bus id; empty: near the processors
  std::vector<int> processors = {};  // by the system's numbers, in order
};

// Returns the processors on which the calling thread may run; none where the system has more than 1024.
[[nodiscard]] std::vector<int> allowed_processors();

// An RDMA device, and the reason for its turn: "as the nearest that serves: PIX from GPU 0000:3b:00.0".
struct RankedNic {
  std::string name;
  std::string why;
};
// Returns the RDMA devices `names` by their distance from the place, the nearest first, those at an unknown
// distance last. Ranks of one place begin with different ones of several at one distance: rank `rank` with
// that at its number modulo theirs.
[[nodiscard]] std::vector<RankedNic> rank_nics(const Topology& topology, const Place& place,
                                               const std::vector<std::string>& names, std::uint32_t rank);

}  // namespace gdx
