// A thread of the host that posts for a kernel, as libraries without device code for their NIC do it: what
// gdx's own ways are measured against.
#pragma once

#include "host/programs/bench/load.h"

namespace gdx::bench {

// Posts each message of the load, by pull, once lane.proxy->asked reaches it. Flushes after `depth` messages,
// as a kernel does, and publishes how many are complete. Returns after the last, when `over` is set, or with
// an error, which the kernel reads in `failure`. Owns the endpoint meanwhile. `progress` is LaunchConfig's.
// Threads: to be called on one beside the kernel's.
Status post_for_kernel(const Lane& lane, const Load& load, int (*progress)());

}  // namespace gdx::bench
