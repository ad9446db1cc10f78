// A look at a signal without a wait, for kernels on endpoints and on teams.
#pragma once

#include <cstdint>

#include "device/impl/wait.h"
#include "device/options.h"

namespace gdx {

// Returns whether the local signal word compares true. After true, payload sent before that signal may be
// read. Never waits, so the caller bounds a loop around it; gdx_wait is bounded.
GDX_DEVICE bool gdx_test(const std::uint64_t* signal, Compare how, std::uint64_t value) {
  if (device::impl::holds(signal, how, value)) return true;
  exec::yield();
  return false;
}

}  // namespace gdx

using gdx::gdx_test;
