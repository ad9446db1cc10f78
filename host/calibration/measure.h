// What each mode costs here: two endpoints of this process on one HCA, and a kernel that puts from one to the
// other. On a ConnectX the message thus comes back over the PCIe path it went out on, which holds large
// messages up more than a peer elsewhere would; the modes share that.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/calibration/thresholds.h"
#include "host/hca/hca.h"

namespace gdx::calibration {

inline constexpr std::uint64_t kMinMaxBytes = 4096;
inline constexpr std::uint64_t kMaxMaxBytes = 1 << 30;
inline constexpr std::uint32_t kMaxRounds = 1000;

struct MeasureOptions {
  std::uint64_t max_bytes = 16 << 20;  // a power of two
  std::uint32_t rounds = 5;
};

struct Measurement {
  std::vector<MeasuredSize> sizes;
  std::string measured_on;  // "the software HCA, CPU kernels"
};

// Errors: kInvalidArgument naming the option.
[[nodiscard]] Result<void> check_measure_options(const MeasureOptions& options);

// The median of all rounds for every size and mode. In each round every mode has its turn at every size, so
// what disturbs this machine for a while disturbs all alike. Errors: as check_measure_options; what making
// endpoints comes to; what the puts come to, naming mode and size.
[[nodiscard]] Result<Measurement> measure_modes(const Hca& hca, const MeasureOptions& options);

}  // namespace gdx::calibration
