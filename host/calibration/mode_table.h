// Which mode Mode::kAuto takes for which size: what tables are possible, and what they are without a
// calibration.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "proto/gpu/mode_table.h"
#include "proto/gpu/queue.h"
#include "proto/path_class.h"

namespace gdx {

// What an endpoint has beyond its queue; without it a mode is impossible.
struct ModeMeans {
  bool push = false;    // slots of the NIC's memory
  bool bounce = false;  // slots of host memory
};

// Errors: kInvalidArgument naming the impossible threshold: one below that of the range before it, inline
// beyond a work request, a range in a mode without its means.
[[nodiscard]] Result<void> check_mode_table(const ModeTable& table, ModeMeans means);

// For a GPU that far from the NIC, and queues there; without a path, for one of unknown distance, or a CPU.
// Source: papers/push-vs-pull/default-modes.txt, modelled: rung by BlueFlame, one message and its completion.
// tests/unit/host/default_modes_test.cpp holds them to the model.
[[nodiscard]] ModeTable default_mode_table(std::optional<PathClass> path, Placement queues, ModeMeans means);

// The same with pull wherever the means are missing.
[[nodiscard]] ModeTable with_pull_for_missing(const ModeTable& table, ModeMeans means);

// "inline up to 28 B, push up to 4 KiB, then pull"
[[nodiscard]] std::string describe(const ModeTable& table);
// "28 B", "4 KiB", "16 MiB"; "6000 B" where it is no whole number of the larger unit.
[[nodiscard]] std::string size_text(std::uint64_t bytes);

}  // namespace gdx
