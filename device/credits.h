// The staging credits of one open endpoint. A credit is the right to fill one slot of staging memory. The
// endpoint fills the slots that it holds again and again, as their WQEs complete: no atomic, and no word of
// the scheduler's, which a GPU would read across PCIe. Slots come by its grants and go, when the endpoint
// holds more than its limit, by the queue of returns; for both it looks from time to time at what the
// scheduler says.
// All threads of the endpoint's scope hold an object, in registers, for what posting does; the leader calls
// that too, the others only what says so. Completions, grants and returns are taken out of line
// (impl/wait.h), by an object on StagingState in memory.
// Ordering: a slot is given back with a release, after the completion that freed it was acquired; a grant is
// acquired. So whoever fills the slot next does it after the NIC has read it.
// Source: papers/design.md, "Staging credits" and "Sharing the staging pool".
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
    ready_ = state.ready;
    taken_ = state.taken;
    wanted_ = state.wanted;
    limit_ = state.limit;
    stalls_ = state.stalls;
    looked_ns_ = state.looked_ns;
  }
  GDX_DEVICE StagingState state() const {
    return {filled_, returned_, ready_, taken_, wanted_, limit_, stalls_, looked_ns_};
  }
  GDX_DEVICE std::uint32_t filled() const { return filled_; }
  // Where the other object has come to.
  GDX_DEVICE void learn(std::uint32_t filled, std::uint32_t ready, std::uint32_t returned) {
    filled_ = filled;
    ready_ = ready;
    returned_ = returned;
  }

  // The kernel ends: wants nothing more, and keeps no more than the minimum and what the NIC still needs.
  // What a scheduler grants that read the want before may arrive yet: the next kernel or the queue's end
  // takes it.
  GDX_DEVICE void close() {
    const bool wants = wanted_ != taken_;
    if (wants) want(0);
    look(wants);
    give_back_above(staging_.minimum_slots);
  }

  // A credit to use.
  GDX_DEVICE bool available() const { return ready_ != filled_; }
  // All threads, after the leader has seen available(): the slot of the next credit, and that it has been
  // filled.
  GDX_DEVICE std::uint32_t next_slot() const { return at(filled_).slot; }
  GDX_DEVICE void consume() { ++filled_; }
  // The WQE `wqe_index` sends the slot that was filled last.
  GDX_DEVICE void bind(std::uint32_t wqe_index) { at(filled_ - 1).wqe_index = wqe_index; }

  // Slots that the endpoint holds, with the NIC or not.
  GDX_DEVICE std::uint32_t held() const { return ready_ - returned_; }

  // No credit is left: asks for as many more as the message could use.
  GDX_DEVICE void stall(std::uint64_t slots_wanted) {
    ++stalls_;
    want(slots_wanted < staging_.slot_count ? static_cast<std::uint32_t>(slots_wanted) : staging_.slot_count);
  }

  // All WQEs before `completed` are done with: their slots are credits again.
  GDX_DEVICE void on_completed(std::uint32_t completed) {
    while (returned_ != filled_ && static_cast<std::int32_t>(completed - 1 - at(returned_).wqe_index) >= 0) {
      const std::uint32_t slot = at(returned_++).slot;
      at(ready_++).slot = slot;
    }
  }

  // Takes what was granted, gives back what is above the limit. Asks the scheduler's words only where nothing
  // but a grant can bring a credit, where they may say something new, or `at_once`. Never once the queue has
  // failed.
  GDX_DEVICE void look(bool at_once = false) {
    if (at_once || held() == 0 || exec::now_ns() - looked_ns_ >= kHostLookNs) hear();
    give_back_above(limit_);
  }

  // The queue is in error: gives back all but what the NIC has yet to flush. It knows of the WQEs before
  // `rung`; the others it will never see. What is granted meanwhile the scheduler takes back by itself.
  GDX_DEVICE void on_failed(std::uint32_t rung) {
    while (returned_ != filled_ && static_cast<std::int32_t>(at(filled_ - 1).wqe_index - rung) >= 0)
      --filled_;
    want(0);                                       // before `failed`, which says that this is final
    exec::publish(&staging_.requests->failed, 1);  // before the minimum goes back, or it is granted again
    give_back_above(0);
  }

 private:
  GDX_DEVICE std::uint32_t mask() const { return staging_.slot_count - 1; }
  GDX_DEVICE HeldSlot& at(std::uint32_t position) const { return staging_.held[position & mask()]; }

  GDX_DEVICE void hear() {
    looked_ns_ = exec::now_ns();
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

  // Of the credits not in use; the others follow when their WQEs complete.
  GDX_DEVICE void give_back_above(std::uint32_t limit) {
    if (held() <= limit || ready_ == filled_) return;
    std::uint32_t given = taken_ - held();
    do {
      staging_.returned_slots[given++ & mask()] = at(--ready_).slot;
    } while (held() > limit && ready_ != filled_);
    exec::publish(&staging_.requests->returned, given);
  }

  const StagingHandle& staging_;
  std::uint32_t filled_ = 0;    // in all threads; the rest is the leader's
  std::uint32_t returned_ = 0;  // positions: see StagingState
  std::uint32_t ready_ = 0;
  std::uint32_t taken_ = 0;
  std::uint32_t wanted_ = 0;
  std::uint32_t limit_ = 0;
  std::uint64_t stalls_ = 0;
  std::uint64_t looked_ns_ = 0;
};

}  // namespace gdx::device
