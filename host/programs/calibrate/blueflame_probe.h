// The probe of BlueFlame: a kernel rings with NOPs, and counts the copies that an HCA took for whole.
#pragma once

#include <cstdint>

#include "proto/gpu/queue.h"
#include "proto/status.h"

namespace gdx::calibration {

// Kinds of stores by which a copy of a WQE is written to the register.
enum class CopyStore : std::uint32_t {
  kWhole,   // one of 64 B by TMA, as endpoints of warps and blocks ring
  kThread,  // four of 16 B, by one thread
  kLanes,   // one instruction of a warp, 16 B by each of four lanes
};

struct ProbeShape {
  CopyStore store = CopyStore::kWhole;
  std::uint32_t burst = 1;  // copies in a row, and then a pause
};

// A way to ring that the probe tries. The first of kProbeWays is how endpoints' kernels ring.
struct ProbeWay {
  const char* name;
  ProbeShape shape;
};
inline constexpr ProbeWay kProbeWays[] = {
    {"one store (TMA)", {CopyStore::kWhole, 1}},
    {"bursts of 8", {CopyStore::kWhole, 8}},
    {"4 x 16 B of a thread", {CopyStore::kThread, 1}},
    {"16 B of each of 4 lanes", {CopyStore::kLanes, 1}},
};

struct BlueFlameProbe {
  Status status;
  std::uint32_t copies;  // that would show if the NIC executed them
  std::uint32_t used;    // copies of those that the NIC executed instead of the ring's WQE
};
inline constexpr std::uint32_t kProbeBlocks = 256;  // blocks of the probe's send queue

// Counts copies that arrive whole: NOPs whose copies alone request a completion. Later NOPs request it in the
// ring too. Each of these must complete before the next, because a copy is also a doorbell. `endpoint` has
// BlueFlame and kProbeBlocks blocks. It serves nothing else, and is of no use afterwards.
// Errors: those of launch(). The kernel's own is probe->status:
//   kUnsupported   the kernel has no such store
//   kTimeout       a copy did not ring
//   kQueueError    a completion has an error, or is of a WQE that is not there yet
[[nodiscard]] Status launch_probe(const EndpointHandle& endpoint, const ProbeShape& shape,
                                  BlueFlameProbe* probe, int (*progress)());

}  // namespace gdx::calibration
