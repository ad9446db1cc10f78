// The kernel of halo_exchange: one block, whose warps talk to one neighbour each.
//
// A neighbour's edge of step s + 1 says that it has used this rank's edge of step s. With memory for even and
// odd steps that is all the flow control. It also says that the edge was sent, so none is flushed.
#include "halo_exchange.h"

#include "device/team.h"

namespace {

using gdx::Compare;
using gdx::gdx_put_signal;
using gdx::gdx_wait;
using gdx::kWarpThreads;
using gdx::Mode;
using gdx::Scope;
using gdx::SignalOp;
using gdx::Status;
using gdx::TeamHandle;

// Returns the place of cell `i` of the edge at `side`: of this tile, or `beyond` it the neighbour's.
__device__ std::uint32_t edge_cell(std::uint32_t side, std::uint32_t i, bool beyond) {
  const bool last = side % 2 != 0;
  if (side < 2) return (last ? kHeight + beyond : 1 - beyond) * kStride + i + 1;
  return (i + 1) * kStride + (last ? kWidth + beyond : 1 - beyond);
}

// Sends the edge at `side` and takes the neighbour's. Called by a warp.
__device__ Status exchange(const TeamHandle& team, const Halo& halo, std::uint32_t step, std::uint32_t side) {
  const std::uint32_t rank = halo.neighbours[side];
  const std::uint32_t length = side < 2 ? kWidth : kHeight;
  const std::uint32_t first = threadIdx.x % kWarpThreads;
  float* const cells = halo.cells + step % 2 * kCells;
  float* const sent = halo.sent + (step % 2 * kSides + side) * kWidth;
  float* const theirs = halo.received + (step % 2 * kSides + (side ^ 1)) * kWidth;
  const float* const received = halo.received + (step % 2 * kSides + side) * kWidth;

  for (std::uint32_t i = first; i < length; i += kWarpThreads) sent[i] = cells[edge_cell(side, i, false)];
  Status status = gdx_put_signal<Mode::kAuto, Scope::kWarp>(
      team, theirs, sent, length * sizeof(float), halo.arrived + (side ^ 1), step + 1, SignalOp::kSet, rank);
  if (status == Status::kOk)
    status = gdx_wait<Scope::kWarp>(team, halo.arrived + side, Compare::kGreaterEqual, step + 1, rank);
  if (status != Status::kOk) return status;
  for (std::uint32_t i = first; i < length; i += kWarpThreads) cells[edge_cell(side, i, true)] = received[i];
  return status;
}

__global__ void all_steps(TeamHandle team, Halo halo, std::uint32_t steps) {
  const std::uint32_t side = threadIdx.x / kWarpThreads;
  for (std::uint32_t step = 0; step < steps; ++step) {
    if (halo.neighbours[side] != kNobody) {
      const Status status = exchange(team, halo, step, side);
      if (threadIdx.x % kWarpThreads == 0) halo.status[side] = status;
    }
    __syncthreads();
    for (std::uint32_t s = 0; s < kSides; ++s)
      if (halo.status[s] != Status::kOk) return;
    const float* const now = halo.cells + step % 2 * kCells;
    float* const next = halo.cells + (step + 1) % 2 * kCells;
    for (std::uint32_t i = threadIdx.x; i < kWidth * kHeight; i += blockDim.x) {
      const std::uint32_t at = (i / kWidth + 1) * kStride + i % kWidth + 1;
      next[at] = next_value(now, at, kStride);
    }
    __syncthreads();
  }
}

}  // namespace

Status run_steps(const TeamHandle& team, const Halo& halo, std::uint32_t steps) {
  gdx::exec::LaunchConfig config;
  config.block = {kSides * kWarpThreads};
  return gdx::exec::launch(config, all_steps, team, halo, steps);
}
