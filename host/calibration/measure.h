// What each mode costs here: two endpoints of this process on one HCA, and a kernel that puts from one to the
// other. On a ConnectX the message thus comes back over the PCIe path it went out on, which holds large
// messages up more than a peer elsewhere would; the modes share that.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/calibration/calibration_file.h"
#include "host/calibration/thresholds.h"
#include "host/gpu/gpu.h"
#include "host/hca/hca.h"
#include "host/staging/staging_pool.h"

namespace gdx::calibration {

inline constexpr std::uint64_t kMinMaxBytes = 4096;
inline constexpr std::uint64_t kMaxMaxBytes = 1 << 30;

struct MeasureOptions {
  std::uint64_t max_bytes = 16 << 20;               // a power of two
  std::uint32_t rounds = 5;                         // 1 to kMaxCalibrationRounds
  std::optional<Placement> payload = std::nullopt;  // absent: in the memory of what runs the kernels
  // As of an endpoint that this is for: what it may hold at most, no more than the pool has and 0 for all of
  // it, and of how much.
  std::uint32_t slot_count = 0;
  std::uint32_t slot_bytes = kDefaultSlotBytes;
  std::uint32_t bounce_slot_count = 0;
  std::uint32_t bounce_slot_bytes = kDefaultBounceSlotBytes;
};

struct Measurement {
  std::vector<MeasuredSize> sizes;
  Placement payload = Placement::kHost;
  QueueShape shape;         // what was measured with
  std::string measured_on;  // "the software HCA, CPU kernels"
};

// Errors: kInvalidArgument naming the option.
[[nodiscard]] Result<void> check_measure_options(const MeasureOptions& options);

// The median of all rounds for every size and mode, with the spread. In each round every mode has its turn at
// every size, so what disturbs this machine for a while disturbs all alike. `gpu` is the one that runs the
// kernels, null on the CPU layer.
// Errors: as check_measure_options; kInvalidArgument when a pool has fewer slots than wanted, before anything
// is measured; what making endpoints and showing them to the GPU comes to; what the puts come to, naming mode
// and size.
[[nodiscard]] Result<Measurement> measure_modes(const Hca& hca, const Gpu* gpu,
                                                const MeasureOptions& options);

}  // namespace gdx::calibration
