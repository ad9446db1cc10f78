// Chooses the place of each rank, its GPU and its NIC, on a machine with hardware.
#pragma once

#include <sched.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/topo/topology.h"

namespace gdx {

// Returns the variables that give rank `rank` of `ranks` a GPU and the NIC nearest to it: "NAME=VALUE". Ranks
// take the GPUs that run CUDA in the order of their bus ids, and again from the first. Ranks that share a NIC
// share its staging memory ($GDX_PROCESSES_PER_HCA). A variable that is set keeps its value.
// $CUDA_VISIBLE_DEVICES leaves NICs to the user as well.
[[nodiscard]] std::vector<std::string> place_of_rank(const Topology& topology, std::uint32_t rank,
                                                     std::uint32_t ranks);

// Returns rank `rank`'s equal share of the processors `all`: some that follow one another by their numbers.
// Errors: kInvalidArgument with fewer processors than ranks.
[[nodiscard]] Result<cpu_set_t> share_of_processors(const cpu_set_t& all, std::uint32_t rank,
                                                    std::uint32_t ranks);

}  // namespace gdx
