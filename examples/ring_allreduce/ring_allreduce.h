// The kernel of ring_allreduce, as the host's file sees it.
#pragma once

#include <cstdint>

#include "proto/gpu/team.h"
#include "proto/status.h"

inline constexpr std::uint32_t kBlocks = 4;  // each takes a part of the floats round the ring

// Memory of the symmetric heap.
struct Ring {
  float* x;      // the sum is made in place
  float* inbox;  // parts of the left neighbour's sums, as long as x
  std::uint32_t count;
  std::uint64_t* arrived;  // by block: what the left neighbour has sent so far
  std::uint64_t* used;     // by block: what this rank has used of that, in all launches
  gdx::Status* status;     // by block
};

// Adds x of all ranks, in every rank's x. No argument changes from call to call, so a CUDA graph may repeat
// it.
[[nodiscard]] gdx::Status run_allreduce(const gdx::TeamHandle& team, const Ring& ring);
