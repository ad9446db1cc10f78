// Tail of a put: the signal, or none, that its last WQE precedes under one doorbell.
#pragma once

#include <cstdint>

#include "device/options.h"
#include "proto/gpu/memory.h"

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

}  // namespace gdx::device::impl
