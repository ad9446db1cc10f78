// The way from a public endpoint to its state, for the calls of device/*.h. Kernels use those calls.
#pragma once

#include "device/exec/exec.h"

namespace gdx::device::impl {

// An endpoint inherits its state, because functions that wrap a member cost a warp's put one instruction.
struct Access {
  template <typename Ep>
  GDX_DEVICE static typename Ep::Open& state_of(Ep& endpoint) {
    return endpoint;
  }
};

// Begins a call on an endpoint. Returns the endpoint's state.
template <typename Ep>
GDX_DEVICE auto& start_call(Ep& endpoint) {
  auto& open = Access::state_of(endpoint);
  open.start_call();
  return open;
}

}  // namespace gdx::device::impl
