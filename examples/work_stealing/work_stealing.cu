// The kernel of work_stealing. Each warp takes tasks of its own rank one by one, then half of what others
// have.
#include "work_stealing.h"

#include "device/team.h"

namespace {

using gdx::gdx_compare_swap;
using gdx::gdx_fetch_add;
using gdx::gdx_flush;
using gdx::gdx_get;
using gdx::gdx_put_signal;
using gdx::gdx_quiet;
using gdx::gdx_signal;
using gdx::kWarpThreads;
using gdx::Mode;
using gdx::Scope;
using gdx::SignalOp;
using gdx::Status;
using gdx::TeamHandle;

struct Worker {
  const TeamHandle& team;
  const Work& work;

  // Does one task of `owner`: gets its numbers, puts the results, and counts it there.
  __device__ Status do_task(std::uint32_t owner, std::uint64_t task) const {
    std::uint64_t* const numbers = work.scratch + blockIdx.x * kNumbers;
    Status status =
        gdx_get<Scope::kWarp>(team, numbers, work.tasks + task * kNumbers, kNumbers * sizeof *numbers, owner);
    if (status == Status::kOk) status = gdx_flush<Scope::kWarp>(team, owner);
    if (status != Status::kOk) return status;
    for (std::uint32_t i = threadIdx.x; i < kNumbers; i += kWarpThreads) numbers[i] = solve(numbers[i]);
    status = gdx_put_signal<Mode::kAuto, Scope::kWarp>(team, work.results + task * kNumbers, numbers,
                                                       kNumbers * sizeof *numbers, work.done + task, 1,
                                                       SignalOp::kAdd, owner);
    if (status == Status::kOk) status = gdx_signal<Scope::kWarp>(team, work.total, 1, SignalOp::kAdd, 0);
    if (status == Status::kOk) status = gdx_flush<Scope::kWarp>(team, owner);  // `numbers` may be changed
    return status;
  }

  // Takes one task by an atomic that cannot fail. Beyond the end it does no harm.
  __device__ Status do_own() const {
    const std::uint32_t me = team.rank;
    for (;;) {
      Status status = gdx_fetch_add<Scope::kWarp>(team, work.was + blockIdx.x, work.next, 1, me);
      if (status == Status::kOk) status = gdx_flush<Scope::kWarp>(team, me);  // the old value is here
      const std::uint64_t task = work.was[blockIdx.x];
      if (status != Status::kOk || task >= tasks_of(me)) return status;
      if (status = do_task(me, task); status != Status::kOk) return status;
    }
  }

  // Takes half of the tasks at a time. The first try guesses that none is taken, and learns the truth.
  __device__ Status steal_from(std::uint32_t victim) const {
    const std::uint64_t end = tasks_of(victim);
    Status status = Status::kOk;
    for (std::uint64_t seen = 0; seen < end && status == Status::kOk;) {
      const std::uint64_t half = (end - seen + 1) / 2;
      status =
          gdx_compare_swap<Scope::kWarp>(team, work.was + blockIdx.x, work.next, seen, seen + half, victim);
      if (status == Status::kOk) status = gdx_flush<Scope::kWarp>(team, victim);
      const std::uint64_t was = work.was[blockIdx.x];
      for (std::uint64_t i = 0; was == seen && i < half && status == Status::kOk; ++i)
        status = do_task(victim, seen + i);
      seen = was == seen ? seen + half : was;
    }
    return status;
  }
};

// Nobody adds tasks, so a queue that was empty once stays so.
__global__ void work_all(TeamHandle team, Work work) {
  const Worker worker{team, work};
  Status status = worker.do_own();
  for (std::uint32_t i = 1; i < team.size && status == Status::kOk; ++i)
    status = worker.steal_from((team.rank + i) % team.size);
  if (status == Status::kOk) status = gdx_quiet<Scope::kWarp>(team);  // all counts are at their ranks
  if (threadIdx.x == 0) work.status[blockIdx.x] = status;
}

}  // namespace

Status run_workers(const TeamHandle& team, const Work& work) {
  gdx::exec::LaunchConfig config;
  config.grid = {kWorkers};
  config.block = {kWarpThreads};
  return gdx::exec::launch(config, work_all, team, work);
}
