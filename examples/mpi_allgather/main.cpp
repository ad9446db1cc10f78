// hello_put in a program that uses MPI itself. Ranks meet by its MPI_Allgather, and gdx touches no launcher:
// mpirun -n 3 gdx run -- mpi_allgather
#include <mpi.h>

#include "../hello_put/greetings.h"

namespace {

using gdx::program::or_exit;

bool allgather(const void* mine, void* all, std::size_t bytes) {
  const int count = static_cast<int>(bytes);
  return MPI_Allgather(mine, count, MPI_BYTE, all, count, MPI_BYTE, MPI_COMM_WORLD) == MPI_SUCCESS;
}

void greet_by_mpi() {
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  gdx::TeamOptions options;
  options.world = or_exit(gdx::WorldOptions::by_allgather(static_cast<std::uint32_t>(rank),
                                                          static_cast<std::uint32_t>(size), allgather));
  gdx::Team team = or_exit(gdx::Team::create(options));
  example::exchange_greetings(team);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  greet_by_mpi();
  MPI_Finalize();
}
