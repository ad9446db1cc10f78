// An all-reduce of one's own beside the library's. Each rank puts its floats to all, and adds what comes. A
// rank is at most one round ahead of another, because it needs that one's floats. So two inboxes do.
#include "own_allreduce.h"

#include "device/collectives/collectives.h"

namespace {

using gdx::Compare;
using gdx::Mode;
using gdx::Reduce;
using gdx::Scope;
using gdx::SignalOp;
using gdx::Status;
using gdx::TeamHandle;

__device__ Status own_all_reduce(const TeamHandle& team, const Sums& s, std::uint64_t round) {
  float* const inbox = s.inbox + round % 2 * team.size * s.count;
  Status status = Status::kOk;
  for (std::uint32_t k = 0; k < team.size && status == Status::kOk; ++k)
    status = gdx_put_signal<Mode::kAuto, Scope::kBlock>(team, inbox + team.rank * s.count, s.x,
                                                        s.count * sizeof(float), s.arrived + team.rank, round,
                                                        SignalOp::kSet, (team.rank + k) % team.size);
  for (std::uint32_t rank = 0; rank < team.size && status == Status::kOk; ++rank) {
    status = gdx_wait<Scope::kBlock>(team, s.arrived + rank, Compare::kGreaterEqual, round, rank);
    for (std::uint32_t i = threadIdx.x; i < s.count; i += blockDim.x)
      s.own[i] = (rank == 0 ? 0 : s.own[i]) + inbox[rank * s.count + i];
  }
  return status == Status::kOk ? gdx_quiet<Scope::kBlock>(team) : status;  // x may be changed
}

__global__ void sum(TeamHandle team, Sums s, std::uint64_t round) {
  Status status = own_all_reduce(team, s, round);
  if (status == Status::kOk)
    status = gdx_all_reduce<Reduce::kSum, Scope::kBlock>(team, s.library, s.x, s.count);
  if (threadIdx.x == 0) *s.status = status;
}

}  // namespace

Status run_sums(const TeamHandle& team, const Sums& sums, std::uint64_t round) {
  gdx::exec::LaunchConfig config;
  config.block = {64};
  return gdx::exec::launch(config, sum, team, sums, round);
}
