// The kernel of ring_allreduce, as the host's file sees it.
#pragma once

#include <cstdint>
#include <optional>

#include "proto/gpu/team.h"
#include "proto/status.h"

inline constexpr std::uint32_t kBlocks = 4;  // each takes a part of the floats round the ring

// Memory of the symmetric heap.
struct Ring {
  float* x;      // the sum is made in place
  float* inbox;  // parts of the left neighbour's sums, as long as x
  std::uint32_t count;
  std::uint64_t* arrived;  // by block: what the left neighbour has sent so far
  gdx::Status* status;     // by block
};

// For TeamOptions: the GPU if nvcc compiled the kernels, none on the CPU layer.
[[nodiscard]] std::optional<int> gpu_of_kernels();

// Adds x of all ranks, in every rank's x. `round` counts the calls from 0.
[[nodiscard]] gdx::Status run_allreduce(const gdx::TeamHandle& team, const Ring& ring, std::uint64_t round);
