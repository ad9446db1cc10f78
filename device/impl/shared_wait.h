// Slow paths of calls on a shared endpoint: room, turns, completions, failure. Out of line, because a call
// that need not wait then pays for a comparison only. Any number of threads may run them. One function is of
// the fast path: publish_in_turn rings for a post whose turn has come, and publish_late rings by it, too.
//
// Every WQE of a shared endpoint is one block and reports its completion. So block k completes by CQE k, a
// waiter reads only that entry, and no thread owns the completion queue.
// Overwriting: a thread posts block k + size only after it found k complete and raised `completed`. So no
// entry is lost.
// Owner bit: the entry of two laps ago has the bit of this lap. It cannot be mistaken while k is less than a
// lap ahead of `completed`, because k - size is then complete.
#pragma once

#include <cstdint>

#include "device/exec/exec.h"
#include "device/impl/wait.h"
#include "proto/gpu/queue.h"
#include "proto/mlx5/cqe.h"
#include "proto/status.h"

namespace gdx::device::impl {

inline constexpr std::uint32_t kNoFailure = 0;
inline constexpr std::uint32_t kFailing = 1;
inline constexpr std::uint32_t kFailed = 2;

// Flag in HeldSlot::slot: the WQE `wqe_index`, which sends the slot, is published.
inline constexpr std::uint32_t kBound = 1u << 31;

// Distance beyond any room, small enough that cumulative counters do not wrap.
inline constexpr std::uint32_t kOutOfReach = 1u << 30;

// Returns the endpoint's failure, or kOk. On a failure it moves `reserved` out of reach again, because every
// vain reservation has moved it.
GDX_DEVICE Status shared_failure(QueueState& state) {
  const std::uint32_t failure = exec::load_counter(&state.shared.failure);
  if (failure == kNoFailure) return Status::kOk;
  while (exec::load_counter(&state.shared.failure) != kFailed) exec::relax();  // two stores away
  exec::store_counter(&state.shared.reserved, exec::load_counter(&state.shared.completed) + kOutOfReach);
  return state.fault.status;
}

// Ends the endpoint with the first failure that any thread reports, and returns that failure.
GDX_DEVICE Status fail_shared(QueueState& state, const EndpointFault& fault) {
  if (exec::compare_swap(&state.shared.failure, kNoFailure, kFailing) == kNoFailure) {
    state.fault = fault;
    exec::fence_release<Placement::kHost>();
    exec::store_counter(&state.shared.failure, kFailed);
  }
  return shared_failure(state);
}

enum class Completion { kNotThere, kDone, kError };

GDX_DEVICE Completion poll_completion(const EndpointHandle& handle, std::uint32_t index) {
  const mlx5::Cqe64& cqe = handle.completion_queue[index & ((1u << handle.log_completion_queue) - 1)];
  const std::uint64_t tail = exec::load_acquire(reinterpret_cast<const std::uint64_t*>(&cqe) + 7);
  const std::uint32_t op_own = static_cast<std::uint32_t>(tail >> 56);
  const std::uint32_t opcode = op_own >> mlx5::kCqeOpcodeShift;
  const std::uint32_t pass = index >> handle.log_completion_queue & 1;
  if ((op_own & mlx5::kCqeOwnerMask) != pass) return Completion::kNotThere;
  if (opcode == static_cast<std::uint32_t>(mlx5::CqeOpcode::kInvalid)) return Completion::kNotThere;
  const bool error = opcode == static_cast<std::uint32_t>(mlx5::CqeOpcode::kRequesterError);
  return error ? Completion::kError : Completion::kDone;
}

// Reports the first error CQE at or before `index`, which is the cause; later ones are flushes. kOk: found no
// error, because the queue has advanced. The caller polls again.
GDX_DEVICE Status report_error(QueueState& state, std::uint32_t index) {
  const EndpointHandle& handle = state.handle;
  std::uint32_t first = exec::load_counter(&state.shared.completed);
  while (!reached(first, index) && poll_completion(handle, first) != Completion::kError) ++first;
  if (poll_completion(handle, first) != Completion::kError) return Status::kOk;
  const auto& error = reinterpret_cast<const mlx5::ErrorCqe&>(
      handle.completion_queue[first & ((1u << handle.log_completion_queue) - 1)]);
  return fail_shared(state, {mlx5::status_of(static_cast<mlx5::Syndrome>(error.syndrome)), error.syndrome,
                             error.vendor_error_syndrome, error.wqe_counter});
}

// Raises `completed` to `goal`, unless another thread has raised it further.
GDX_DEVICE void raise_completed(SharedState& shared, std::uint32_t goal) {
  std::uint32_t known = exec::load_counter(&shared.completed);
  while (!reached(known, goal)) {
    const std::uint32_t seen = exec::compare_swap(&shared.completed, known, goal);
    if (seen == known) return;
    known = seen;
  }
}

// Returns kOk while a wait that began at `began_ns` may continue.
GDX_DEVICE Status may_wait_since(QueueState& state, std::uint64_t began_ns) {
  const std::uint64_t now_ns = exec::now_ns();
  if (is_aborted(state, now_ns)) return Status::kAborted;
  if (now_ns - began_ns >= state.handle.timeout_ns) return Status::kTimeout;
  exec::relax();
  return Status::kOk;
}

// Waits until all blocks before `goal` are complete, in a call that began at `began_ns`. `goal` may be
// several laps ahead.
GDX_DEVICE Status await_completed(QueueState& state, std::uint32_t goal, std::uint64_t began_ns) {
  for (;;) {
    if (const Status failed = shared_failure(state); failed != Status::kOk) return failed;
    const std::uint32_t known = exec::load_counter(&state.shared.completed);
    if (reached(known, goal)) return Status::kOk;
    const std::uint32_t lap = known + (1u << state.handle.log_send_queue);
    const std::uint32_t next = reached(lap, goal) ? goal : lap;
    switch (poll_completion(state.handle, next - 1)) {
      case Completion::kDone: raise_completed(state.shared, next); continue;
      case Completion::kError:
        if (const Status failed = report_error(state, next - 1); failed != Status::kOk) return failed;
        break;
      case Completion::kNotThere: break;
    }
    if (const Status ended = may_wait_since(state, began_ns); ended != Status::kOk) return ended;
  }
}

// Waits for the room of a reservation. A timeout or abort ends the endpoint, because a reservation cannot be
// given back. Later ones wait for its turn.
GDX_OUT_OF_LINE Status wait_shared_room(QueueState* state, std::uint32_t goal) {
  const Status status = await_completed(*state, goal, exec::now_ns());
  if (status == Status::kOk || is_sticky(status)) return status;
  return fail_shared(*state, {status, 0, 0, 0});
}

// Publishes in turn: record, doorbell, then the turn. `Observed` is the memory that the NIC reads, payload
// included.
// Fence 1 orders payload and WQEs before the record. They are those of this and all earlier turns, and of
// threads whose marks were acquired. The fence stands after the load that acquired the turn, because a
// release covers only operations before its fence.
// Fence 2 keeps records in the order of turns, because the NIC reads them as a counter. It also orders the
// record before the doorbell.
// Fence 3 orders the doorbell before the next thread's, because its index must not decrease: a NIC may use
// it. GPU scope suffices: the next thread is on this GPU and stores to this address.
template <Placement Observed>
GDX_DEVICE void publish_in_turn(const EndpointHandle& handle, QueueState& state, std::uint32_t end,
                                std::uint64_t doorbell_value) {
  exec::fence_release<Observed>();
  exec::store_record(handle.send_record, record_value(end));
  exec::fence_release<Observed>();
  exec::store_doorbell(handle.doorbell, doorbell_value);
  exec::fence_release<Placement::kGpu>();
  exec::store_counter(&state.shared.published, end);
}

// For the thread with the turn: takes over the posts behind its own, [first, end), as far as they are marked.
// Returns the new end. It loads several marks at once, on the guess that these posts are as long as its own.
//
// A thread that meets the endpoint's failure takes its post back unless it is claimed. So `claimed` is stored
// before a compare-and-swap on `failure`. Either that finds the failure and the claim is given up, or who
// reports the failure acquires the claim.
GDX_DEVICE std::uint32_t claim_marked(SharedState& shared, std::uint32_t first, std::uint32_t end) {
  constexpr std::uint32_t kAtOnce = 8;
  static_assert(kAtOnce * kWarpThreads <= kMarkedBlocks, "an entry would be read as two marks");
  const std::uint32_t blocks = end - first;
  std::uint32_t stop = end;
  const auto mark_at = [&](std::uint32_t index) { return &shared.marks[index % kMarkedBlocks]; };
  const auto take = [&](std::uint32_t mark) {
    exec::store_counter(mark_at(stop), 0);
    stop += mark;
  };
  for (;;) {
    std::uint32_t marks[kAtOnce];
    for (std::uint32_t k = 0; k < kAtOnce; ++k)
      marks[k] = exec::load_before_fence(mark_at(stop + k * blocks));
    std::uint32_t alike = 0;
    for (std::uint32_t k = 0; k < kAtOnce; ++k) alike += alike == k && marks[k] == blocks ? 1 : 0;
    for (std::uint32_t k = 0; k < alike; ++k) take(blocks);
    if (alike == kAtOnce) continue;
    const std::uint32_t other = exec::load_before_fence(mark_at(stop));
    if (other == 0) break;
    take(other);
  }
  if (stop == end) return end;
  exec::fence_acquire();
  exec::store_counter(&shared.claimed, stop);
  if (exec::compare_swap(&shared.failure, kNoFailure, kNoFailure) == kNoFailure) return stop;
  exec::store_counter(&shared.claimed, end);
  return end;
}

// Returns whether a thread with the turn publishes the post that ends at `end`. `claimed` may be old.
GDX_DEVICE bool is_claimed(const SharedState& shared, std::uint32_t end) {
  return exec::load_counter(&shared.claimed) - end < 2 * kMarkedBlocks;
}

// Publishes a post that has to wait for its turn, or has others behind it. Marks it meanwhile, so that the
// thread with the turn publishes it too. That thread clears the mark before it stores `published`. So an
// entry is free once `published` is less than a lap behind. Publishes within the loop, because a lane with
// its turn must not wait for lanes without.
template <Placement Observed>
GDX_OUT_OF_LINE Status publish_late(QueueState* state, std::uint32_t first, std::uint32_t end,
                                    std::uint64_t doorbell_value) {
  constexpr std::uint32_t kTries = 16;  // between two looks at clock and abort word
  SharedState& shared = state->shared;
  const EndpointHandle& handle = state->handle;
  std::uint32_t* const mark = &shared.marks[first % kMarkedBlocks];
  const std::uint64_t began_ns = exec::now_ns();
  bool marked = false;
  for (std::uint32_t tries = 1;; ++tries) {
    const std::uint32_t published = exec::load_counter(&shared.published);
    if (published == first) {
      if (marked) exec::store_counter(mark, 0);
      const std::uint32_t stop = claim_marked(shared, first, end);
      if (stop != end) {
        doorbell_value = impl::doorbell_value(
            control_segment(mlx5::WqeOpcode::kRdmaWrite, stop - 1, queue_pair_word(handle.qpn), 3, 0));
      }
      publish_in_turn<Observed>(handle, *state, stop, doorbell_value);
      return Status::kOk;
    }
    if (marked && reached(published, end)) return Status::kOk;
    if (!marked && first - published < kMarkedBlocks) {
      exec::fence_release<Observed>();
      exec::store_counter(mark, end - first);
      marked = true;
    }
    if (tries % kTries != 0) {
      exec::relax();
      continue;
    }
    Status ended = shared_failure(*state);
    if (ended == Status::kOk) {
      ended = may_wait_since(*state, began_ns);
      if (ended != Status::kOk) ended = fail_shared(*state, {ended, 0, 0, 0});
    }
    if (ended == Status::kOk) continue;
    if (!marked) return ended;
    // Loads `claimed` first: a claim that it does not show was given up, or is published by the second load.
    const bool claimed = is_claimed(shared, end);
    if (reached(exec::load_counter(&shared.published), end)) return Status::kOk;
    // Ends the wait for a claim of 2^32 blocks before, which looks like one of this post.
    if (!claimed || exec::now_ns() - began_ns > 2 * handle.timeout_ns) return ended;
  }
}

}  // namespace gdx::device::impl
