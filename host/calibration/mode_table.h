// Mode tables of Mode::kAuto: the possible ones, and the defaults without a calibration.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "proto/doorbell_kind.h"
#include "proto/gpu/mode_table.h"
#include "proto/gpu/queue.h"
#include "proto/path_class.h"

namespace gdx {

// Resources of an endpoint beyond its queue; each one's absence makes a mode impossible.
struct ModeMeans {
  bool push = false;    // slots of the NIC's memory
  bool bounce = false;  // slots of host memory
};

// Errors: kInvalidArgument naming the impossible threshold. That one is below the threshold before it, too
// large for inline, or for a mode without its means.
[[nodiscard]] Result<void> check_mode_table(const ModeTable& table, ModeMeans means);

// For a GPU that far from the NIC, and queues there; without a path, for one of unknown distance, or a CPU.
// Source: papers/push-vs-pull/default-modes.txt, modelled: one message and its completion, by either kind of
// doorbell. tests/unit/calibration/default_modes_test.cpp holds them to the model.
[[nodiscard]] ModeTable default_mode_table(std::optional<PathClass> path, Placement queues, ModeMeans means,
                                           DoorbellKind doorbell);

// Returns the table with pull for modes without means.
[[nodiscard]] ModeTable with_pull_for_missing(const ModeTable& table, ModeMeans means);

// Returns the table as text, such as "inline up to 28 B, push up to 4 KiB, then pull".
[[nodiscard]] std::string describe(const ModeTable& table);

}  // namespace gdx
