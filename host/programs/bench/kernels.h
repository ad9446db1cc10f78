// The kernels of `gdx bench`: one source for the CPU layer and a GPU.
#pragma once

#include <cstdint>
#include <ctime>

#include "host/programs/bench/load.h"

namespace gdx::bench {

// Processor time of all threads of this process.
inline std::uint64_t process_cpu_ns() {
  timespec ts{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
  return static_cast<std::uint64_t>(ts.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(ts.tv_nsec);
}

// Runs one block for each of load.posters lanes, or one for a collective, to its end. `lanes` and `outcomes`
// are memory that kernels reach. Errors: what launch() returns; a lane's own are in its outcome.
[[nodiscard]] Status run_lanes(const Lane* lanes, const Load& load, LaneOutcome* outcomes, int (*progress)());

// False on the CPU layer.
[[nodiscard]] bool kernels_run_on_gpu();

}  // namespace gdx::bench
