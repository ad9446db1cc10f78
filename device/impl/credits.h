// The staging credits of one open endpoint. A credit is the right to fill one slot of staging memory. The
// endpoint fills its held slots again as their WQEs complete. Filling takes no atomic and reads no word of
// the scheduler, because a GPU reads host memory across PCIe.
//
//   scheduler --grant--> credit --fill, bind--> with the NIC --completion--> credit --return--> scheduler
//
// Slots arrive by grants. Slots above the endpoint's limit leave through the queue of returns. The leader
// reads the scheduler's words every kHostPollNs, or at once when it holds no slot.
// Threads: every thread of the scope holds an object in registers. Calls marked "All threads" are for all of
// them, all others for the leader. A second object, on StagingState in memory, handles completions, grants
// and returns out of line (impl/wait.h).
// Ordering: the endpoint acquires a completion, then returns the slot with a release. A grant is acquired. So
// the slot's next owner fills it after the NIC has read it.
// Source: docs/staging.md, "Staging credits" and "Sharing the staging pool".
#pragma once

#include <cstdint>

#include "device/exec/exec.h"
#include "proto/gpu/staging.h"

namespace gdx::device::impl {

class Credits {
 public:
  // `staging` must outlive the object.
  GDX_DEVICE explicit Credits(const StagingHandle& staging) : staging_(staging) {}

  // All threads: continues from the state that the last kernel left.
  GDX_DEVICE void open(const StagingState& state) {
    filled_ = state.filled;
    returned_ = state.returned;
    ready_ = state.ready;
    taken_ = state.taken;
    wanted_ = state.wanted;
    limit_ = state.limit;
    stalls_ = state.stalls;
    polled_ns_ = state.polled_ns;
  }
  GDX_DEVICE StagingState state() const {
    return {filled_, returned_, ready_, taken_, wanted_, limit_, stalls_, polled_ns_};
  }
  GDX_DEVICE std::uint32_t filled() const { return filled_; }
  // Copies the positions that the out-of-line object has reached.
  GDX_DEVICE void set_positions(std::uint32_t filled, std::uint32_t ready, std::uint32_t returned) {
    filled_ = filled;
    ready_ = ready;
    returned_ = returned;
  }

  // Ends the kernel's use: withdraws the want, and returns credits above the minimum. Slots with the NIC stay
  // held. A grant may still arrive, because the scheduler may have read the want earlier. The next kernel or
  // the endpoint's end takes that grant.
  GDX_DEVICE void close() {
    const bool wants = wanted_ != taken_;
    if (wants) want(0);
    poll(wants);
    give_back_above(staging_.minimum_slots);
  }

  // Returns whether a credit is free to use.
  GDX_DEVICE bool available() const { return ready_ != filled_; }
  GDX_DEVICE std::uint32_t ready() const { return ready_ - filled_; }
  // Called by all threads, after the leader has seen more than `behind` credits. They return the slot of the
  // credit `behind` the next, and record that the next `count` have been filled.
  GDX_DEVICE std::uint32_t next_slot(std::uint32_t behind = 0) const { return at(filled_ + behind).slot; }
  GDX_DEVICE void consume(std::uint32_t count = 1) { filled_ += count; }
  // The WQE `wqe_index` sends the slot that was filled last.
  GDX_DEVICE void bind(std::uint32_t wqe_index) { at(filled_ - 1).wqe_index = wqe_index; }

  // Slots that the endpoint holds, those with the NIC included.
  GDX_DEVICE std::uint32_t held() const { return ready_ - returned_; }

  // Counts a stall, and requests as many slots as the message could use.
  GDX_DEVICE void stall(std::uint64_t slots_wanted) {
    ++stalls_;
    want(slots_wanted < staging_.slot_count ? static_cast<std::uint32_t>(slots_wanted) : staging_.slot_count);
  }

  // Turns the slots of all WQEs before `completed` into credits again.
  GDX_DEVICE void on_completed(std::uint32_t completed) {
    while (returned_ != filled_ && static_cast<std::int32_t>(completed - 1 - at(returned_).wqe_index) >= 0) {
      const std::uint32_t slot = at(returned_++).slot;
      at(ready_++).slot = slot;
    }
  }

  // Takes grants, then returns credits above the limit. Reads the scheduler's words only on `at_once`,
  // without a held slot, or after kHostPollNs. Must not run on a failed queue.
  GDX_DEVICE void poll(bool at_once = false) {
    if (at_once || held() == 0 || exec::now_ns() - polled_ns_ >= kHostPollNs) read_grants();
    give_back_above(limit_);
  }

  // Handles a failed queue: returns all slots but those that the NIC has yet to flush. The NIC flushes WQEs
  // before `rung`; later ones never reach it. The scheduler itself takes back later grants.
  GDX_DEVICE void on_failed(std::uint32_t rung) {
    while (returned_ != filled_ && static_cast<std::int32_t>(at(filled_ - 1).wqe_index - rung) >= 0)
      --filled_;
    // Before `failed`, which makes this want final.
    want(0);
    // Before slots return, or the scheduler grants the minimum again.
    exec::publish(&staging_.requests->failed, 1);
    give_back_above(0);
  }

 private:
  GDX_DEVICE std::uint32_t mask() const { return staging_.slot_count - 1; }
  GDX_DEVICE HeldSlot& at(std::uint32_t position) const { return staging_.held[position & mask()]; }

  GDX_DEVICE void read_grants() {
    polled_ns_ = exec::now_ns();
    const std::uint64_t grants = exec::load_acquire(staging_.grants);
    for (; taken_ != granted_of(grants); ++taken_) {
      at(ready_++).slot = exec::load_flag(&staging_.granted_slots[taken_ & mask()]);
    }
    if (static_cast<std::int32_t>(wanted_ - taken_) < 0) wanted_ = taken_;
    limit_ = limit_of(grants);
  }

  GDX_DEVICE void want(std::uint32_t slots) {
    wanted_ = taken_ + slots;
    exec::publish(&staging_.requests->wanted, wanted_);
  }

  // Returns credits that are not in use. Slots with the NIC follow when their WQEs complete.
  GDX_DEVICE void give_back_above(std::uint32_t limit) {
    if (held() <= limit || ready_ == filled_) return;
    std::uint32_t given = taken_ - held();
    do {
      staging_.returned_slots[given++ & mask()] = at(--ready_).slot;
    } while (held() > limit && ready_ != filled_);
    exec::publish(&staging_.requests->returned, given);
  }

  const StagingHandle& staging_;
  std::uint32_t filled_ = 0;    // valid in all threads; the rest in the leader only
  std::uint32_t returned_ = 0;  // positions: see StagingState
  std::uint32_t ready_ = 0;
  std::uint32_t taken_ = 0;
  std::uint32_t wanted_ = 0;
  std::uint32_t limit_ = 0;
  std::uint64_t stalls_ = 0;
  std::uint64_t polled_ns_ = 0;
};

}  // namespace gdx::device::impl
