// Times collective calls of kernels between ranks: gdx run --ranks N -- gdx_collectives_bench OPERATION BYTES
// CALLS OPERATION: allreduce of floats, or alltoall with BYTES for each rank. Rank 0 prints "calls_per_s
// NUMBER".
#include <cstddef>
#include <cstdio>

#include "base/clock.h"
#include "device/collectives/collectives.h"
#include "host/gdx.h"
#include "perf/collective_turns.h"

namespace {

using gdx::program::or_exit;
using gdx::turns::Turn;

__global__ void make_calls(gdx::TeamHandle team, Turn turn, int calls, float* to, const float* from,
                           gdx::Status* status) {
  constexpr gdx::Scope kScope = gdx::Scope::kThread;
  *status = gdx::Status::kOk;
  for (int i = 0; i < calls && *status == gdx::Status::kOk; ++i) {
    *status = turn.all_reduce ? gdx_all_reduce<gdx::Reduce::kSum, kScope>(team, to, from, turn.count)
                              : gdx_all_to_all<kScope>(team, to, from, turn.count);
  }
}

void make(gdx::Team& team, const Turn& turn, int calls, float* to, const float* from) {
  gdx::Status status = gdx::Status::kPending;
  const gdx::Status launched =
      gdx::exec::launch({.block = {1}}, make_calls, team.handle(), turn, calls, to, from, &status);
  if (launched == gdx::Status::kOk && status == gdx::Status::kOk) return;
  std::fprintf(stderr, "gdx_collectives_bench: rank %u: %s; %s\n", team.rank(), gdx::status_name(status),
               team.describe_fault().c_str());
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  const Turn turn = gdx::turns::turn_of(argc, argv);
  gdx::TeamOptions options;
  const auto world = or_exit(gdx::WorldOptions::from_environment());
  const std::size_t floats = (turn.all_reduce ? 1 : world.size) * turn.count;
  options.heap_bytes = 2 * floats * sizeof(float) + (4 << 20);
  gdx::Team team = or_exit(gdx::Team::create(options));
  auto* const from = or_exit(team.allocate<float>(floats));
  auto* const to = or_exit(team.allocate<float>(floats));
  for (std::size_t i = 0; i < floats; ++i) from[i] = gdx::turns::value(team.rank(), i);
  make(team, turn, 1 + turn.calls / 10, to, from);
  if (!gdx::turns::is_right(turn, to, team.rank(), team.size())) {
    std::fprintf(stderr, "gdx_collectives_bench: rank %u: the result is wrong\n", team.rank());
    return 1;
  }
  or_exit(team.barrier());
  const std::uint64_t began_ns = gdx::monotonic_ns();
  make(team, turn, turn.calls, to, from);
  or_exit(team.barrier());
  if (team.rank() == 0)
    gdx::turns::print_calls_per_s(turn, static_cast<double>(gdx::monotonic_ns() - began_ns) * 1e-9);
}
