// The same as gdx_collectives_bench by MPI: mpirun -n N gdx_mpi_collectives OPERATION BYTES CALLS
#include <mpi.h>

#include <cstddef>
#include <cstdio>
#include <vector>

#include "perf/collective_turns.h"

namespace {

using gdx::turns::Turn;

void make(const Turn& turn, int calls, std::vector<float>& to, const std::vector<float>& from) {
  const auto count = static_cast<int>(turn.count);
  for (int i = 0; i < calls; ++i) {
    if (turn.all_reduce) {
      MPI_Allreduce(from.data(), to.data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    } else {
      MPI_Alltoall(from.data(), count, MPI_FLOAT, to.data(), count, MPI_FLOAT, MPI_COMM_WORLD);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Turn turn = gdx::turns::turn_of(argc, argv);
  MPI_Init(&argc, &argv);
  int rank = 0;
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  std::vector<float> from((turn.all_reduce ? 1 : static_cast<std::size_t>(ranks)) * turn.count);
  std::vector<float> to(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = gdx::turns::value(static_cast<unsigned>(rank), i);
  make(turn, 1 + turn.calls / 10, to, from);
  if (!gdx::turns::is_right(turn, to.data(), static_cast<unsigned>(rank), static_cast<unsigned>(ranks))) {
    std::fprintf(stderr, "gdx_mpi_collectives: rank %d: the result is wrong\n", rank);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  const double began = MPI_Wtime();
  make(turn, turn.calls, to, from);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) gdx::turns::print_calls_per_s(turn, MPI_Wtime() - began);
  MPI_Finalize();
}
