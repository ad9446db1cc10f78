// A thread of the host that posts for a kernel, as libraries without device code for their NIC do it: what
// gdx's own ways are measured against.
#pragma once

#include "demo/pingpong.h"

namespace gdx::demo {

// Posts put+signal of each message of `shape` once exchange.proxy->asked reaches it. Waits until it is
// complete and stores that in `sent`. Returns after the last, when `over` is set, or with an error, which the
// kernel reads in `failure`. Owns the endpoint meanwhile, so the kernel must not open it. `progress` is
// LaunchConfig's. Threads: to be called on one beside the kernel's.
Status post_for_kernel(const Exchange& exchange, const Case& shape, int (*progress)());

}  // namespace gdx::demo
