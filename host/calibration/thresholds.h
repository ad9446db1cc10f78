// From measured times to a mode table, and why it is this one.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/calibration/table_mode.h"
#include "proto/gpu/mode_table.h"

namespace gdx {

struct Spread {
  double least_ns = 0;
  double most_ns = 0;
};

struct MeasuredSize {
  std::uint64_t bytes = 0;
  std::array<std::optional<double>, 4> ns = {};  // time of one message, by TableMode; absent: not possible
  std::array<Spread, 4> spread = {};             // spread of all rounds, where they were counted
};

// Returns the mode by which the table sends `bytes`.
[[nodiscard]] TableMode mode_of(const ModeTable& table, std::uint64_t bytes);

// The table whose choices cost least over all sizes: the sum of log(time of the chosen / time of the best).
// One noisy figure therefore moves a threshold by its own size and no further. Each threshold is a measured
// size, or none where the range reaches the largest. Of equal tables, the one that pulls most. `sizes` rises.
// Errors: kInvalidArgument where a size has no figure or none that a table could choose.
[[nodiscard]] Result<ModeTable> best_table(std::span<const MeasuredSize> sizes);

// A line for each range that is not empty, by its middle size:
// "pull from 256 KiB: at 2 MiB 2.1 GB/s (2.0 to 2.2), push 0.7 (0.6 to 0.7); measured on ...". Below 4 KiB in
// us; in brackets the least and the most of all rounds, where they were counted.
[[nodiscard]] std::vector<std::string> explain(const ModeTable& table, std::span<const MeasuredSize> sizes,
                                               const std::string& measured_on);

}  // namespace gdx
