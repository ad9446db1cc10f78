// The kernels that `gdx calibrate` times, and the probe of BlueFlame.
#pragma once

#include <cstdint>

#include "host/calibration/table_mode.h"
#include "proto/gpu/memory.h"
#include "proto/gpu/queue.h"
#include "proto/status.h"

namespace gdx::calibration {

struct PutTimes {
  Status status;
  std::uint64_t total_ns;  // of all messages, each from the call until the peer's NIC has acknowledged it
};

// A warp puts `messages` of `bytes` by `mode`, each flushed before the next. `times` is memory that the
// kernel can write. Errors: what launch() returns; the kernel's own is times->status.
[[nodiscard]] Status time_puts(TableMode mode, const EndpointHandle& endpoint, const RemoteMemory& to,
                               const LocalMemory& from, std::uint64_t bytes, std::uint32_t messages,
                               PutTimes* times, int (*progress)());

struct BlueFlameProbe {
  Status status;
  std::uint32_t copies;  // rung by BlueFlame, by the stores of all kernels
  std::uint32_t used;    // of those, which the NIC executed instead of the ring's WQE
};
inline constexpr std::uint32_t kProbeBlocks = 256;  // of the probe's send queue

// Counts copies that arrive whole. One thread rings with NOPs that ask for a completion in their copies only.
// `endpoint` has BlueFlame and kProbeBlocks blocks, is in use for nothing else, and is of no use afterwards.
// Errors: what launch() returns; the kernel's own is probe->status, which is kTimeout without a completion of
// the last NOP and kQueueError for a completion with an error.
[[nodiscard]] Status probe_blueflame(const EndpointHandle& endpoint, BlueFlameProbe* probe,
                                     int (*progress)());

// False on the CPU layer.
[[nodiscard]] bool kernels_run_on_gpu();

}  // namespace gdx::calibration
