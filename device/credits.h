// The staging credits of one open endpoint, in registers. A credit is the right to fill one slot of staging
// memory. All threads of the endpoint's scope hold the object; the leader calls everything, the others only
// what says so.
// Source: papers/design.md, "Staging credits".
#pragma once

#include <cstdint>

#include "device/exec/exec.h"
#include "proto/gpu/staging.h"

namespace gdx::device {

class Credits {
 public:
  // `staging` must outlive it.
  GDX_DEVICE explicit Credits(const StagingHandle& staging) : staging_(staging) {}

  // All threads: goes on where the last kernel stopped.
  GDX_DEVICE void open(const StagingState& state) {
    filled_ = state.filled;
    returned_ = state.returned;
    stalls_ = state.stalls;
  }
  GDX_DEVICE StagingState state() const { return {filled_, returned_, stalls_}; }

  GDX_DEVICE bool available() const { return filled_ - returned_ < staging_.slot_count; }
  GDX_DEVICE void count_stall() { ++stalls_; }

  // All threads: the slot of the next credit, and that it has been filled.
  GDX_DEVICE std::uint32_t next_slot() const { return filled_ & (staging_.slot_count - 1); }
  GDX_DEVICE void consume() { ++filled_; }
  // The WQE `wqe_index` will send the slot that was just filled.
  GDX_DEVICE void bind(std::uint32_t slot, std::uint32_t wqe_index) { staging_.slot_owner[slot] = wqe_index; }

  // All WQEs before `completed` are: the NIC needs their slots no longer.
  GDX_DEVICE void on_completed(std::uint32_t completed) {
    while (returned_ != filled_ &&
           static_cast<std::int32_t>(completed - 1 -
                                     staging_.slot_owner[returned_ & (staging_.slot_count - 1)]) >= 0) {
      ++returned_;
    }
  }
  // In error the NIC holds nothing any more: every slot was flushed with its WQE.
  GDX_DEVICE void on_failed() { returned_ = filled_; }

 private:
  const StagingHandle& staging_;
  std::uint32_t filled_ = 0;
  std::uint32_t returned_ = 0;
  std::uint64_t stalls_ = 0;
};

}  // namespace gdx::device
