// The staging credits of a shared endpoint. The ring of held slots and the words to the scheduler are those
// of device/credits.h; what differs is who moves them. One word of 64 bits has both positions that threads
// and looks contend for, so a credit is taken, granted or given back by one compare-and-swap, and whoever
// waits for one holds nothing. A thread has its credit before it reserves a block: it fills the slot at its
// own pace, in nobody's way, and blocks are held only by threads whose slots are full.
//
// A position's life, in HeldSlot::slot beside the number:
//   credit --take--> being filled --bind, in the turn that publishes its WQE--> with the NIC
//   --acknowledged--> credit
//                              \--abandon, where no WQE came of it-----------> credit
// Back to the scheduler it goes from `credit`, or from the last step straight away. Each position is bound or
// abandoned once, by the thread that took it; the rest is for whoever looks, one at a time.
// Source: papers/design.md, "Shared endpoints".
#pragma once

#include <cstdint>

#include "device/exec/exec.h"
#include "device/impl/shared_wait.h"
#include "proto/gpu/queue.h"
#include "proto/gpu/staging.h"
#include "proto/status.h"

namespace gdx::device::impl {

inline constexpr std::uint32_t kAbandoned = 1u << 30;
inline constexpr std::uint32_t kSlotNumber = kAbandoned - 1;

// The memory a shared endpoint stages in: the NIC's, or the host's.
struct SharedNicPool {
  GDX_DEVICE static const StagingHandle& of(const EndpointHandle& handle) { return handle.staging; }
  GDX_DEVICE static SharedCredits& credits(QueueState& state) { return state.shared.staging; }
  GDX_DEVICE static StagingState& books(QueueState& state) { return state.staging; }
};
struct SharedHostPool {
  GDX_DEVICE static const StagingHandle& of(const EndpointHandle& handle) { return handle.bounce; }
  GDX_DEVICE static SharedCredits& credits(QueueState& state) { return state.shared.bounce; }
  GDX_DEVICE static StagingState& books(QueueState& state) { return state.bounce; }
};

// A credit, or why there is none.
struct TakenCredit {
  Status status;
  std::uint32_t position;
};

GDX_DEVICE std::uint64_t pack_credits(std::uint32_t filled, std::uint32_t ready) {
  return exec::join(filled, ready);
}
GDX_DEVICE std::uint32_t filled_of(std::uint64_t use) { return exec::split(use).low; }
GDX_DEVICE std::uint32_t ready_of(std::uint64_t use) { return exec::split(use).high; }

// kPending: there is none but for those who began to wait before `ticket`. Without that order whoever comes
// back first takes every credit, as the first of a worker's threads does on the CPU layer. Counting those who
// left, and not looking at who they were, lets a ticket be given up.
GDX_DEVICE TakenCredit try_take_credit(SharedCredits& credits, std::uint32_t ticket) {
  // Before `use`: with an older value too many seem to be ahead, and the next look corrects it.
  const auto ahead = static_cast<std::int32_t>(ticket - exec::load_flag(&credits.left));
  const std::uint32_t others = ahead > 0 ? static_cast<std::uint32_t>(ahead) : 0;
  std::uint64_t use = exec::load_counter(&credits.use);
  while (ready_of(use) - filled_of(use) > others) {
    const std::uint64_t taken = pack_credits(filled_of(use) + 1, ready_of(use));
    const std::uint64_t seen = exec::compare_swap(&credits.use, use, taken);
    if (seen == use) return {Status::kOk, filled_of(use)};
    use = seen;
  }
  return {Status::kPending, 0};
}

// The same behind all who wait, without waiting.
GDX_DEVICE TakenCredit try_take_credit(SharedCredits& credits) {
  return try_take_credit(credits, exec::load_flag(&credits.arrived));
}

// No WQE will send the slot: it is a credit again, or goes back.
GDX_DEVICE void abandon(HeldSlot& held) {
  exec::fence_release<Placement::kHost>();
  exec::store_counter(&held.slot, held.slot | kAbandoned);
}

// Is the NIC done with a slot that was taken? An error completion says so too.
GDX_DEVICE bool is_done(QueueState& state, const HeldSlot& held) {
  const std::uint32_t tag = exec::load_counter(&held.slot);
  if ((tag & kAbandoned) != 0) return true;
  if ((tag & kBound) == 0) return false;
  const std::uint32_t index = held.wqe_index;
  if (reached(exec::load_counter(&state.shared.completed), index + 1)) return true;
  switch (look_at(state.handle, index)) {
    case Completion::kDone: raise_completed(state.shared, index + 1); return true;
    case Completion::kError: (void)report_error(state, index); return true;
    case Completion::kNotThere: break;
  }
  return false;
}

// Idle credits above `limit` are taken back, in the one step that shows the others to the threads: no thread
// can have one of them. Returns where the credits end now.
GDX_DEVICE std::uint32_t show_credits(SharedCredits& credits, const StagingState& books, std::uint32_t ready,
                                      std::uint32_t limit) {
  std::uint64_t use = exec::load_counter(&credits.use);
  for (;;) {
    std::uint32_t end = ready;
    while (end != filled_of(use) && end - books.returned > limit) --end;
    const std::uint64_t seen = exec::compare_swap(&credits.use, use, pack_credits(filled_of(use), end));
    if (seen == use) return end;
    use = seen;
  }
}

// Asks for `slots` more than were granted; 0 takes the wish back.
GDX_DEVICE void want_credits(const StagingHandle& pool, StagingState& books, std::uint32_t slots) {
  if (books.wanted == books.taken + slots) return;
  books.wanted = books.taken + slots;
  exec::publish(&pool.requests->wanted, books.wanted);
}

enum class Look : std::uint32_t {
  kBusy,     // somebody else is at it
  kSomeOut,  // slots are with the NIC or with threads
  kAllBack,
};

// One look at completions, and at the scheduler's words where they may say something new, by whoever has the
// lock.
GDX_DEVICE Look look_at_credits(QueueState& state, const StagingHandle& pool, SharedCredits& credits,
                                StagingState& books, std::uint32_t slots_wanted) {
  const std::uint32_t mask = pool.slot_count - 1;
  const auto at = [&](std::uint32_t position) -> HeldSlot& { return pool.held[position & mask]; };
  const std::uint64_t use = exec::load_counter(&credits.use);
  std::uint32_t done = books.returned;
  while (done != filled_of(use) && is_done(state, at(done))) ++done;

  std::uint32_t ready = ready_of(use);
  const std::uint32_t given_before = books.taken - (ready - books.returned);
  std::uint32_t given = given_before;
  std::uint32_t limit = 0;
  if (exec::load_counter(&state.shared.failure) == kNoFailure) {
    // As Credits::look().
    if (ready == books.returned || exec::now_ns() - books.looked_ns >= kHostLookNs || has_seen_abort(state)) {
      books.looked_ns = exec::now_ns();
      const std::uint64_t grants = exec::load_acquire(pool.grants);
      for (; books.taken != granted_of(grants); ++books.taken) {
        at(ready++).slot = exec::load_flag(&pool.granted_slots[books.taken & mask]);
      }
      books.limit = limit_of(grants);
    }
    want_credits(pool, books, slots_wanted);
    limit = books.limit;
  } else {
    want_credits(pool, books, 0);              // before `failed`, which says that this is final
    exec::publish(&pool.requests->failed, 1);  // before the minimum goes back, or it is granted again
  }
  while (books.returned != done) {
    const std::uint32_t slot = at(books.returned++).slot & kSlotNumber;
    if (ready - books.returned < limit) {
      at(ready++).slot = slot;
    } else {
      pool.returned_slots[given++ & mask] = slot;
    }
  }
  const std::uint32_t end = show_credits(credits, books, ready, limit);
  while (ready != end) pool.returned_slots[given++ & mask] = at(--ready).slot;
  if (given != given_before) exec::publish(&pool.requests->returned, given);
  return books.returned == filled_of(exec::load_counter(&credits.use)) ? Look::kAllBack : Look::kSomeOut;
}

// The same, for whoever comes first.
template <typename Pool>
GDX_DEVICE Look look_if_free(QueueState& state, std::uint32_t slots_wanted) {
  const StagingHandle& pool = Pool::of(state.handle);
  if (pool.slot_count == 0) return Look::kAllBack;
  SharedCredits& credits = Pool::credits(state);
  if (exec::compare_swap(&credits.busy, 0, 1) != 0) return Look::kBusy;
  const Look seen = look_at_credits(state, pool, credits, Pool::books(state), slots_wanted);
  exec::fence_release<Placement::kHost>();
  exec::store_counter(&credits.busy, 0);
  return seen;
}

// Waits for a credit, and asks for as many as the message could use. Holds nothing meanwhile but a ticket,
// which can be given up, so that a timeout or an abort ends the call only. Leaves the order within the loop:
// a lane that has its credit must not wait, behind it, for lanes that wait for theirs.
template <typename Pool>
GDX_OUT_OF_LINE TakenCredit wait_shared_credit(QueueState* state, std::uint64_t slots_wanted) {
  SharedCredits& credits = Pool::credits(*state);
  const std::uint32_t slot_count = Pool::of(state->handle).slot_count;
  const auto wanted = slots_wanted < slot_count ? static_cast<std::uint32_t>(slots_wanted) : slot_count;
  const std::uint64_t began_ns = exec::now_ns();
  const std::uint32_t ticket = exec::fetch_add(&credits.arrived, 1);
  for (;;) {
    TakenCredit credit{shared_failure(*state), 0};
    if (credit.status == Status::kOk) {
      (void)look_if_free<Pool>(*state, wanted);
      credit = try_take_credit(credits, ticket);
      if (credit.status == Status::kPending) {
        const Status ended = may_wait_since(*state, began_ns);
        if (ended == Status::kOk) continue;
        credit.status = ended;
      }
    }
    exec::fetch_add(&credits.left, 1);
    return credit;
  }
}

// The endpoint has failed: gives back what there is, the caller's last slot included. After an error of the
// NIC's it waits for the slots that the NIC has yet to flush and other threads have yet to abandon; otherwise
// the NIC may keep its slots for as long as the queue pair lives.
GDX_OUT_OF_LINE Status give_back_shared(QueueState* state) {
  const std::uint64_t began_ns = exec::now_ns();
  for (;;) {
    const Status failed = shared_failure(*state);
    const Look enough = is_sticky(failed) ? Look::kAllBack : Look::kSomeOut;
    const Look nic = look_if_free<SharedNicPool>(*state, 0);
    const Look host = look_if_free<SharedHostPool>(*state, 0);
    if (nic >= enough && host >= enough) return failed;
    if (nic == Look::kBusy || host == Look::kBusy) {  // soon done, and no abort makes it longer
      if (exec::now_ns() - began_ns >= state->handle.timeout_ns) return failed;
      exec::relax();
    } else if (may_wait_since(*state, began_ns) != Status::kOk) {
      return failed;
    }
  }
}

// Waits until all blocks before `goal` are complete, and takes their slots back. Whoever flushes wants
// nothing more.
GDX_OUT_OF_LINE Status flush_shared(QueueState* state, std::uint32_t goal) {
  const Status status = await_completed(*state, goal);
  if (status != Status::kOk && shared_failure(*state) != Status::kOk) return give_back_shared(state);
  (void)look_if_free<SharedNicPool>(*state, 0);
  (void)look_if_free<SharedHostPool>(*state, 0);
  return status;
}

}  // namespace gdx::device::impl
