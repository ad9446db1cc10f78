// The kernels that `gdx calibrate` times.
#pragma once

#include <cstdint>

#include "host/calibration/table_mode.h"
#include "proto/gpu/memory.h"
#include "proto/gpu/queue.h"
#include "proto/status.h"

namespace gdx::calibration {

struct PutTimes {
  Status status;
  // Sum over all messages, each from the call until the peer's NIC has acknowledged it.
  std::uint64_t total_ns;
};

// A warp puts `messages` of `bytes` by `mode`, each flushed before the next. `times` is memory that the
// kernel can write. Errors: what launch() returns; the kernel's own is times->status.
[[nodiscard]] Status time_puts(TableMode mode, const EndpointHandle& endpoint, const RemoteMemory& to,
                               const LocalMemory& from, std::uint64_t bytes, std::uint32_t messages,
                               PutTimes* times, int (*progress)());

// False on the CPU layer.
[[nodiscard]] bool kernels_run_on_gpu();

}  // namespace gdx::calibration
