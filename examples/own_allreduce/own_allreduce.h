// The kernels of own_allreduce, as the host's file sees them.
#pragma once

#include <cstdint>

#include "proto/gpu/team.h"
#include "proto/status.h"

// Memory of the symmetric heap.
struct Sums {
  std::uint32_t count;
  float* x;
  float* own;              // sum of all ranks' x, by the kernel here
  float* library;          // the same by gdx_all_reduce
  float* inbox;            // two rounds of `count` floats of each rank
  std::uint64_t* arrived;  // by rank: rounds
  gdx::Status* status;
};

// Sums in both ways. `round` counts from 1.
[[nodiscard]] gdx::Status run_sums(const gdx::TeamHandle& team, const Sums& sums, std::uint64_t round);
