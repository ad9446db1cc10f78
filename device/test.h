// Looks at a signal without a wait, for kernels on endpoints and on teams.
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

// Returns the local signal word. Payload that was sent before the signal that set it, or added to it, may be
// read. Never waits, as gdx_test.
GDX_DEVICE std::uint64_t gdx_signal_fetch(const std::uint64_t* signal) { return exec::load_acquire(signal); }

}  // namespace gdx

using gdx::gdx_signal_fetch;
using gdx::gdx_test;
