// The kernel of ring_allreduce. Each block sends its share round the ring twice: parts are summed on the
// first way (reduce-scatter), and sums are handed on in the second (all-gather).
//
// Each part of inbox is written once in a round. A sum of the second way has passed all ranks, so its holder
// knows that all inboxes have been read: the next round may write them without asking.
#include "ring_allreduce.h"

#include "device/team.h"

namespace {

using gdx::Compare;
using gdx::gdx_flush;
using gdx::gdx_put_signal;
using gdx::gdx_wait;
using gdx::Mode;
using gdx::Scope;
using gdx::SignalOp;
using gdx::Status;
using gdx::TeamHandle;

struct Part {
  std::uint32_t at;
  std::uint32_t count;
};
__device__ Part part_of(Part whole, std::uint32_t index, std::uint32_t parts) {
  const auto edge = [&](std::uint32_t i) {
    return static_cast<std::uint32_t>(std::uint64_t{whole.count} * i / parts);
  };
  return {whole.at + edge(index), edge(index + 1) - edge(index)};
}

__global__ void allreduce(TeamHandle team, Ring ring) {
  const std::uint32_t size = team.size;
  const std::uint32_t right = (team.rank + 1) % size;
  const std::uint32_t left = (team.rank + size - 1) % size;
  const Part share = part_of({0, ring.count}, blockIdx.x, gridDim.x);
  std::uint64_t* const arrived = ring.arrived + blockIdx.x;
  const std::uint64_t used = ring.used[blockIdx.x];  // counts up for ever, so nothing is reset
  const std::uint32_t steps = 2 * (size - 1);
  Status status = Status::kOk;

  for (std::uint32_t step = 0; step < steps && status == Status::kOk; ++step) {
    const bool sums = step < size - 1;  // the first way
    const Part mine = part_of(share, (team.rank + 2 * size - step) % size, size);
    float* const to = (sums ? ring.inbox : ring.x) + mine.at;
    status = gdx_put_signal<Mode::kAuto, Scope::kBlock>(
        team, to, ring.x + mine.at, mine.count * sizeof(float), arrived, 1, SignalOp::kAdd, right);
    if (status == Status::kOk)
      status = gdx_wait<Scope::kBlock>(team, arrived, Compare::kGreaterEqual, used + step + 1, left);
    if (status != Status::kOk || !sums) continue;
    const Part theirs = part_of(share, (team.rank + 2 * size - step - 1) % size, size);
    for (std::uint32_t i = threadIdx.x; i < theirs.count; i += blockDim.x)
      ring.x[theirs.at + i] += ring.inbox[theirs.at + i];
  }
  if (status == Status::kOk) status = gdx_flush<Scope::kBlock>(team, right);  // x may be changed
  if (threadIdx.x == 0) ring.used[blockIdx.x] = used + steps;
  if (threadIdx.x == 0) ring.status[blockIdx.x] = status;
}

}  // namespace

Status run_allreduce(const TeamHandle& team, const Ring& ring) {
  gdx::exec::LaunchConfig config;
  config.grid = {kBlocks};
  config.block = {64};
  return gdx::exec::launch(config, allreduce, team, ring);
}
