// The staging credits of a shared endpoint. The ring of held slots and the scheduler's words are those of
// device/impl/credits.h; only the threads that change them differ. One word of 64 bits holds both positions
// that threads and polls contend for. So one compare-and-swap takes, grants or returns a credit, and a
// waiting thread holds none. A thread takes its credit before it reserves a block, so filling a slot delays
// no other thread. Blocks belong only to threads with full slots.
//
// States of a position, in HeldSlot::slot beside the number:
//
//   credit --take--> being filled --bind, after its WQE is published--> bound --completion--> credit
//                         \--abandon, where no WQE sends it--> abandoned --> credit
//
// A slot returns to the scheduler from `credit`, from a completion or from `abandoned`.
// Ownership: the thread that took a position binds or abandons it, once. The thread that set `busy` does all
// else.
// Source: docs/device.md, "Pushes on shared endpoints".
#pragma once

#include <cstdint>

#include "device/exec/exec.h"
#include "device/impl/pools.h"
#include "device/impl/shared_wait.h"
#include "proto/gpu/queue.h"
#include "proto/gpu/staging.h"
#include "proto/status.h"

namespace gdx::device::impl {

inline constexpr std::uint32_t kAbandoned = 1u << 30;
inline constexpr std::uint32_t kSlotNumber = kAbandoned - 1;

// A credit's position, or the status that denied it.
struct TakenCredit {
  Status status;
  std::uint32_t position;
};

GDX_DEVICE std::uint64_t pack_credits(std::uint32_t filled, std::uint32_t ready) {
  return exec::join(filled, ready);
}
GDX_DEVICE std::uint32_t filled_of(std::uint64_t use) { return exec::split(use).low; }
GDX_DEVICE std::uint32_t ready_of(std::uint64_t use) { return exec::split(use).high; }

// Takes a credit for a thread with `ticket`. kPending: every free credit is owed to an earlier ticket; FIFO
// order prevents starvation. Without it the first thread to poll takes every credit, as on the CPU layer.
// `left` counts departures without identity, so a thread can cancel its ticket.
GDX_DEVICE TakenCredit try_take_credit(SharedCredits& credits, std::uint32_t ticket) {
  // Read before `use`: an older value only overstates the tickets ahead, and the next try corrects it.
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

// Takes a credit behind all waiting threads, without waiting.
GDX_DEVICE TakenCredit try_take_credit(SharedCredits& credits) {
  return try_take_credit(credits, exec::load_flag(&credits.arrived));
}

// Binds a slot to the WQE that sends it, which is published.
GDX_DEVICE void bind(HeldSlot& held, std::uint32_t wqe_index) {
  held.wqe_index = wqe_index;
  exec::fence_release<Placement::kGpu>();
  exec::store_counter(&held.slot, held.slot | kBound);
}

// Abandons a slot that no WQE will send; it becomes a credit again, or returns.
GDX_DEVICE void abandon(HeldSlot& held) {
  exec::fence_release<Placement::kHost>();
  exec::store_counter(&held.slot, held.slot | kAbandoned);
}

// Returns whether the NIC has finished with a taken slot. Reports an error completion to the endpoint.
GDX_DEVICE bool is_done(QueueState& state, const HeldSlot& held) {
  const std::uint32_t tag = exec::load_counter(&held.slot);
  if ((tag & kAbandoned) != 0) return true;
  if ((tag & kBound) == 0) return false;
  const std::uint32_t index = held.wqe_index;
  // A block a lap later had room, so this one is complete. Its CQE may be overwritten, and `completed` may be
  // beyond half of its range.
  if (exec::load_counter(&state.shared.published) - index > 1u << state.handle.log_send_queue) return true;
  if (reached(exec::load_counter(&state.shared.completed), index + 1)) return true;
  switch (poll_completion(state.handle, index)) {
    case Completion::kDone: raise_completed(state.shared, index + 1); return true;
    case Completion::kError: (void)report_error(state, index); return true;
    case Completion::kNotThere: break;
  }
  return false;
}

// Publishes the credits up to `ready`. Withholds idle ones above `limit` in that same step, but leaves `kept`
// of them. So no thread can take a withheld credit. Returns the new end of the credits.
GDX_DEVICE std::uint32_t show_credits(SharedCredits& credits, const StagingState& books, std::uint32_t ready,
                                      std::uint32_t limit, std::uint32_t kept) {
  std::uint64_t use = exec::load_counter(&credits.use);
  for (;;) {
    std::uint32_t end = ready;
    while (end - filled_of(use) > kept && end - books.returned > limit) --end;
    const std::uint64_t seen = exec::compare_swap(&credits.use, use, pack_credits(filled_of(use), end));
    if (seen == use) return end;
    use = seen;
  }
}

// Requests `slots` beyond those granted; 0 withdraws the request.
GDX_DEVICE void want_credits(const StagingHandle& pool, StagingState& books, std::uint32_t slots) {
  if (books.wanted == books.taken + slots) return;
  books.wanted = books.taken + slots;
  exec::publish(&pool.requests->wanted, books.wanted);
}

// Leaves the request as it is, in polls by threads that need no credit of the endpoint.
inline constexpr std::uint32_t kSameRequest = ~std::uint32_t{0};

enum class PollResult : std::uint32_t {
  kBusy,     // another thread holds the lock
  kSomeOut,  // slots are with the NIC or with threads
  kAllBack,
};

// Reads completions, and the scheduler's words by the rule of Credits::poll(). For the thread that holds the
// lock.
GDX_DEVICE PollResult poll_credits(QueueState& state, const StagingHandle& pool, SharedCredits& credits,
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
  std::uint32_t kept = 0;
  if (exec::load_counter(&state.shared.failure) == kNoFailure) {
    // Conditions of Credits::poll(). Who needs no credit here does not hurry.
    const bool is_bare = ready == books.returned && slots_wanted != kSameRequest;
    if (is_bare || exec::now_ns() - books.polled_ns >= kHostPollNs || has_seen_abort(state)) {
      books.polled_ns = exec::now_ns();
      const std::uint64_t grants = exec::load_acquire(pool.grants);
      for (; books.taken != granted_of(grants); ++books.taken) {
        at(ready++).slot = exec::load_flag(&pool.granted_slots[books.taken & mask]);
      }
      books.limit = limit_of(grants);
    }
    if (slots_wanted != kSameRequest) want_credits(pool, books, slots_wanted);
    limit = books.limit;
    // Without a minimum all slots may be asked back. A waiting thread then uses the one it was granted, once,
    // whoever polls.
    const bool waits = exec::load_flag(&credits.arrived) != exec::load_flag(&credits.left);
    kept = waits && pool.minimum_slots == 0 && limit == 0 ? 1 : 0;
  } else {
    want_credits(pool, books, 0);  // before `failed`, which makes this final
    // before slots return, or the scheduler grants the minimum again
    exec::publish(&pool.requests->failed, 1);
  }
  while (books.returned != done) {
    const std::uint32_t slot = at(books.returned++).slot & kSlotNumber;
    if (ready - books.returned < limit) {
      at(ready++).slot = slot;
    } else {
      pool.returned_slots[given++ & mask] = slot;
    }
  }
  const std::uint32_t end = show_credits(credits, books, ready, limit, kept);
  while (ready != end) pool.returned_slots[given++ & mask] = at(--ready).slot;
  if (given != given_before) exec::publish(&pool.requests->returned, given);
  return books.returned == filled_of(exec::load_counter(&credits.use)) ? PollResult::kAllBack
                                                                       : PollResult::kSomeOut;
}

// Polls credits, unless another thread holds the lock.
template <typename Pool>
GDX_DEVICE PollResult try_poll_credits(QueueState& state, std::uint32_t slots_wanted) {
  const StagingHandle& pool = Pool::of(state.handle);
  if (pool.slot_count == 0) return PollResult::kAllBack;
  SharedCredits& credits = Pool::credits(state);
  if (exec::compare_swap(&credits.busy, 0, 1) != 0) return PollResult::kBusy;
  const PollResult seen = poll_credits(state, pool, credits, Pool::books(state), slots_wanted);
  exec::fence_release<Placement::kHost>();
  exec::store_counter(&credits.busy, 0);
  return seen;
}

// Work for others that a thread does while it waits for a credit: none, on an endpoint by itself.
struct NoHelp {
  template <typename Pool>
  GDX_DEVICE void step() {}
};

// Waits for a credit, and requests as many as the message could use. Holds only a ticket, which can be
// cancelled, so a timeout or an abort ends the call alone. Leaves the order within the loop, because a lane
// with a credit must not wait for lanes without.
template <typename Pool, typename Help>
GDX_OUT_OF_LINE TakenCredit wait_shared_credit(QueueState* state, std::uint64_t slots_wanted, Help help) {
  SharedCredits& credits = Pool::credits(*state);
  const std::uint32_t slot_count = Pool::of(state->handle).slot_count;
  const auto wanted = slots_wanted < slot_count ? static_cast<std::uint32_t>(slots_wanted) : slot_count;
  const std::uint64_t began_ns = exec::now_ns();
  exec::add(&Pool::books(*state).stalls, std::uint64_t{1});
  const std::uint32_t ticket = exec::fetch_add(&credits.arrived, 1);
  for (;;) {
    TakenCredit credit{shared_failure(*state), 0};
    if (credit.status == Status::kOk) {
      (void)try_poll_credits<Pool>(*state, wanted);
      credit = try_take_credit(credits, ticket);
      if (credit.status == Status::kPending) {
        help.template step<Pool>();
        const Status ended = may_wait_since(*state, began_ns);
        if (ended == Status::kOk) continue;
        credit.status = ended;
      }
    }
    exec::fetch_add(&credits.left, 1);
    return credit;
  }
}

// Returns all possible slots of a failed endpoint, the caller's last one included, in a call that began at
// `began_ns`. After an error of the NIC it waits for slots that the NIC must flush and threads must abandon.
// After other failures the NIC may keep its slots while the queue pair lives.
GDX_DEVICE Status give_back_since(QueueState* state, std::uint64_t began_ns) {
  for (;;) {
    const Status failed = shared_failure(*state);
    const PollResult enough = is_sticky(failed) ? PollResult::kAllBack : PollResult::kSomeOut;
    const PollResult nic = try_poll_credits<NicPool>(*state, 0);
    const PollResult host = try_poll_credits<HostPool>(*state, 0);
    if (nic >= enough && host >= enough) return failed;
    // The lock is free again soon, and an abort does not delay that.
    if (nic == PollResult::kBusy || host == PollResult::kBusy) {
      if (exec::now_ns() - began_ns >= state->handle.timeout_ns) return failed;
      exec::relax();
    } else if (may_wait_since(*state, began_ns) != Status::kOk) {
      return failed;
    }
  }
}

GDX_OUT_OF_LINE Status give_back_shared(QueueState* state) { return give_back_since(state, exec::now_ns()); }

// Waits until all blocks before `goal` are complete, in a call that began at `began_ns`, and takes their
// slots back. Requests no slots.
GDX_OUT_OF_LINE Status flush_shared(QueueState* state, std::uint32_t goal, std::uint64_t began_ns) {
  const Status status = await_completed(*state, goal, began_ns);
  if (status != Status::kOk && shared_failure(*state) != Status::kOk) return give_back_since(state, began_ns);
  (void)try_poll_credits<NicPool>(*state, 0);
  (void)try_poll_credits<HostPool>(*state, 0);
  return status;
}

}  // namespace gdx::device::impl
