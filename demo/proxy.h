// A thread of the host that posts for a kernel, as libraries without device code for their NIC do it: what
// gdx's own ways are measured against.
#pragma once

#include "demo/pingpong.h"

namespace gdx::demo {

// Posts put+signal of each message of `shape` when exchange.proxy->asked has come to it, waits until it is
// complete and says so in `sent`; returns after the last, when `over` is set, or with what went wrong, which
// the kernel finds in `failure`. Owns the endpoint meanwhile: the kernel must not open it. `progress` as
// LaunchConfig has it. Threads: to be called on one beside the kernel's.
Status post_for_kernel(const Exchange& exchange, const Case& shape, int (*progress)());

}  // namespace gdx::demo
