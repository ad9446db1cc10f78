// The way from a public endpoint to its state, for the calls of device/*.h. Kernels use those calls.
#pragma once

#include "device/exec/exec.h"

namespace gdx::device::impl {

// Both ways cost no instruction by the count of perf/instructions.py. An exclusive endpoint inherits its
// state, because functions that wrap a member cost a warp's put one instruction. The state of a shared
// endpoint is a member, because a function that returns a base costs its push nine.
struct Access {
  // Returns the state of an Endpoint or PeerEndpoint.
  template <typename Ep>
  GDX_DEVICE static typename Ep::Open& state_of(Ep& endpoint) {
    return endpoint;
  }
  // Names the state of a SharedEndpoint: `endpoint.*Access::kState<SharedEndpoint<P>>`.
  template <typename Ep>
  static constexpr auto kState = &Ep::open_;
};

// Begins a call on an endpoint that one scope owns. Returns the endpoint's state.
template <typename Ep>
GDX_DEVICE auto& start_call(Ep& endpoint) {
  auto& open = Access::state_of(endpoint);
  open.start_call();
  return open;
}

}  // namespace gdx::device::impl
