// Signals: the tail of a put, which its last WQE precedes under one doorbell, and the words that waits read.
// How a scope agrees on a Status.
#pragma once

#include <cstdint>

#include "device/exec/exec.h"
#include "device/options.h"
#include "proto/gpu/memory.h"
#include "proto/status.h"

namespace gdx::device::impl {

struct NoSignal {
  static constexpr std::uint32_t kBlocks = 0;
};

struct Signal {
  static constexpr std::uint32_t kBlocks = 1;
  RemoteMemory word;
  std::uint64_t value;
  SignalOp op;
};

// Returns the leader's status in every thread of the scope.
template <Scope S>
GDX_DEVICE Status agreed(Status status) {
  return static_cast<Status>(exec::broadcast<S>(static_cast<std::uint32_t>(status)));
}

// Returns whether the local signal word compares true. The acquire orders payload sent before that signal.
GDX_DEVICE bool holds(const std::uint64_t* signal, Compare how, std::uint64_t value) {
  const std::uint64_t word = exec::load_acquire(signal);
  switch (how) {
    case Compare::kEqual: return word == value;
    case Compare::kNotEqual: return word != value;
    case Compare::kGreaterEqual: return word >= value;
    case Compare::kGreater: return word > value;
    case Compare::kLessEqual: return word <= value;
    case Compare::kLess: return word < value;
  }
  return false;
}

}  // namespace gdx::device::impl
