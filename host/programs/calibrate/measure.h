// Cost of each mode on this machine: two endpoints of this process on one HCA, and a kernel that puts from
// one to the other. On a ConnectX the message returns over the PCIe path that it left on. That delays large
// messages more than a peer elsewhere would, for all modes alike.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/calibration/calibration_file.h"
#include "host/calibration/thresholds.h"
#include "host/gpu/gpu.h"
#include "host/hca/hca.h"
#include "host/programs/calibrate/blueflame_probe.h"
#include "host/programs/calibrate/put_kernels.h"
#include "host/staging/staging_pool.h"

namespace gdx::calibration {

inline constexpr std::uint64_t kMinMaxBytes = 4096;
inline constexpr std::uint64_t kMaxMaxBytes = 1 << 30;

struct MeasureOptions {
  std::uint64_t max_bytes = 16 << 20;               // a power of two
  std::uint32_t rounds = 31;                        // 1 to kMaxCalibrationRounds
  std::optional<Placement> payload = std::nullopt;  // absent: in the memory of what runs the kernels
  // Resources of the endpoints that the table is for: the most slots that one may hold, and their size. At
  // most the pool's number; 0 for all of it.
  std::uint32_t slot_count = 0;
  std::uint32_t slot_bytes = kDefaultSlotBytes;
  std::uint32_t bounce_slot_count = 0;
  std::uint32_t bounce_slot_bytes = kDefaultBounceSlotBytes;
};

// ns of a message in each round, by TableMode; without rounds where the mode is not possible.
using ModeRounds = std::array<std::vector<double>, kTableModeNames.size()>;

struct Measurement {
  std::vector<MeasuredSize> sizes = {};
  std::vector<ModeRounds> rounds = {};  // rounds that were measured for each size
  Placement payload = Placement::kHost;
  QueueShape shape;         // shape of the endpoints that were measured
  std::string measured_on;  // "the software HCA, CPU kernels"
  // Copies that a kernel rang by BlueFlame, and those that arrived whole; 0 of 0 with plain doorbells.
  std::uint32_t copies = 0;
  std::uint32_t whole_copies = 0;
};

// Errors: kInvalidArgument naming the option.
[[nodiscard]] Result<void> check_measure_options(const MeasureOptions& options);

// "190 of 200 copies used", or "failed: timed out".
[[nodiscard]] std::string describe(const BlueFlameProbe& probe);

// Errors: kUnsupported when fewer than half of the copies arrived whole, or the probe did not end.
[[nodiscard]] Result<void> judge(const std::string& hca, const BlueFlameProbe& probe);

// Rings with copies by a kernel, on an endpoint of its own. `gpu` runs it; null on the CPU layer.
// Errors: kUnsupported without a BlueFlame register; those of making the endpoint and mapping it to the GPU.
[[nodiscard]] Result<BlueFlameProbe> probe_blueflame(const Hca& hca, const Gpu* gpu, const ProbeShape& shape);

// Returns the median and the spread of each mode's rounds, in ns. A mode without rounds was not possible.
[[nodiscard]] MeasuredSize size_of_rounds(std::uint64_t bytes, ModeRounds rounds);

// Measures the median of all rounds for every size and mode, with the spread. Each round runs every mode at
// every size, so a temporary disturbance affects all alike. `gpu` runs the kernels; null on the CPU layer.
// Leaves out push, with a warning, where the driver lets no kernel of the GPU store to the NIC's memory.
// Doorbells are plain unless $GDX_DOORBELL asks for BlueFlame. A kernel then probes it first.
// Errors: those of check_measure_options and judge; kInvalidArgument when a pool has fewer slots than
// requested, before any measurement; those of making endpoints and mapping them to the GPU; those of the
// puts, naming mode and size.
[[nodiscard]] Result<Measurement> measure_modes(const Hca& hca, const Gpu* gpu,
                                                const MeasureOptions& options);

}  // namespace gdx::calibration
