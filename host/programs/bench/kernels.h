// The kernels of `gdx bench`: one source for the CPU layer and a GPU.
#pragma once

#include "host/programs/bench/load.h"

namespace gdx::bench {

// Runs one block for each of load.endpoints lanes, or one for all lanes of a collective, to its end. `lanes`
// and `outcomes` are memory that kernels reach. Errors: what launch() returns; a lane's own are in its
// outcome.
[[nodiscard]] Status run_lanes(const Lane* lanes, const Load& load, LaneOutcome* outcomes, int (*progress)());

// False on the CPU layer.
[[nodiscard]] bool kernels_run_on_gpu();

}  // namespace gdx::bench
