// What a call on a shared endpoint does when it cannot go on at once. Out of line, as impl/wait.h and for the
// same reason. Any number of threads may be here at the same time.
//
// Every WQE of a shared endpoint is one block and reports its completion, so the completion of block k is CQE
// k: a waiter looks at the one entry it needs, and nobody owns the completion queue. The entry cannot be
// overwritten unseen: block k + size is posted only by a thread that has seen k complete, and has said so in
// `completed` first. Nor can it be mistaken for that of two laps ago, whose owner bit is the same, as long as
// k is less than a lap ahead of `completed`: then k - size is known to be complete.
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

// In HeldSlot::slot: the WQE `wqe_index`, which sends the slot, is published.
inline constexpr std::uint32_t kBound = 1u << 31;

// Beyond any room, and not so far that cumulative counters would wrap.
inline constexpr std::uint32_t kOutOfReach = 1u << 30;

// The endpoint's failure, or kOk. Every call that meets a failure shuts the door again, since every
// reservation made in vain has moved it.
GDX_DEVICE Status shared_failure(QueueState& state) {
  const std::uint32_t failure = exec::load_counter(&state.shared.failure);
  if (failure == kNoFailure) return Status::kOk;
  while (exec::load_counter(&state.shared.failure) != kFailed) exec::relax();  // two stores away
  exec::store_counter(&state.shared.reserved, exec::load_counter(&state.shared.completed) + kOutOfReach);
  return state.fault.status;
}

// Ends the endpoint with the first failure that any thread reports, and returns that one.
GDX_DEVICE Status fail_shared(QueueState& state, const EndpointFault& fault) {
  if (exec::compare_swap(&state.shared.failure, kNoFailure, kFailing) == kNoFailure) {
    state.fault = fault;
    exec::fence_release<Placement::kHost>();
    exec::store_counter(&state.shared.failure, kFailed);
  }
  return shared_failure(state);
}

enum class Completion { kNotThere, kDone, kError };

GDX_DEVICE Completion look_at(const EndpointHandle& handle, std::uint32_t index) {
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

// Somebody's WQE failed, at or before `index`: the first one is the cause, the others are flushing. kOk when
// none is found: the queue has moved on since, look again.
GDX_DEVICE Status report_error(QueueState& state, std::uint32_t index) {
  const EndpointHandle& handle = state.handle;
  std::uint32_t first = exec::load_counter(&state.shared.completed);
  while (!reached(first, index) && look_at(handle, first) != Completion::kError) ++first;
  if (look_at(handle, first) != Completion::kError) return Status::kOk;
  const auto& error = reinterpret_cast<const mlx5::ErrorCqe&>(
      handle.completion_queue[first & ((1u << handle.log_completion_queue) - 1)]);
  return fail_shared(state, {mlx5::status_of(static_cast<mlx5::Syndrome>(error.syndrome)), error.syndrome,
                             error.vendor_error_syndrome, error.wqe_counter});
}

// Raises `completed` to `goal`, unless somebody has been faster.
GDX_DEVICE void raise_completed(SharedState& shared, std::uint32_t goal) {
  std::uint32_t known = exec::load_counter(&shared.completed);
  while (!reached(known, goal)) {
    const std::uint32_t seen = exec::compare_swap(&shared.completed, known, goal);
    if (seen == known) return;
    known = seen;
  }
}

// kOk while a wait that began at `began_ns` may go on.
GDX_DEVICE Status may_wait_since(QueueState& state, std::uint64_t began_ns) {
  const std::uint64_t now_ns = exec::now_ns();
  if (is_aborted(state, now_ns)) return Status::kAborted;
  if (now_ns - began_ns >= state.handle.timeout_ns) return Status::kTimeout;
  exec::relax();
  return Status::kOk;
}

// Waits until all blocks before `goal` are complete; it may be several laps away.
GDX_DEVICE Status await_completed(QueueState& state, std::uint32_t goal) {
  const std::uint64_t began_ns = exec::now_ns();
  for (;;) {
    if (const Status failed = shared_failure(state); failed != Status::kOk) return failed;
    const std::uint32_t known = exec::load_counter(&state.shared.completed);
    if (reached(known, goal)) return Status::kOk;
    const std::uint32_t lap = known + (1u << state.handle.log_send_queue);
    const std::uint32_t next = reached(lap, goal) ? goal : lap;
    switch (look_at(state.handle, next - 1)) {
      case Completion::kDone: raise_completed(state.shared, next); continue;
      case Completion::kError:
        if (const Status failed = report_error(state, next - 1); failed != Status::kOk) return failed;
        break;
      case Completion::kNotThere: break;
    }
    if (const Status ended = may_wait_since(state, began_ns); ended != Status::kOk) return ended;
  }
}

// The same for who has reserved already. A reservation cannot be given back, everybody behind it waits for
// its turn: to give up is to end the endpoint.
GDX_OUT_OF_LINE Status wait_shared_room(QueueState* state, std::uint32_t goal) {
  const Status status = await_completed(*state, goal);
  if (status == Status::kOk || is_sticky(status)) return status;
  return fail_shared(*state, {status, 0, 0, 0});
}

// The last steps of a post, by the thread whose turn it is: record, then turn and doorbell.
// The first fence puts payload and WQEs before the record, this thread's and those of all whose turns were
// before: it must stand behind the load that acquired the turn, since a release covers only what is before
// its fence. The second keeps records in the order of turns, which the NIC reads as a counter, and puts the
// record before the doorbell. The doorbell need not be within the turn: the NIC goes by the record, and
// each doorbell follows a record that covers its own blocks. `held` is the slot that block `first` sends, or
// null; `Observed` is where the NIC looks, payload included.
template <Placement Observed>
GDX_DEVICE void publish_in_turn(const EndpointHandle& handle, QueueState& state, std::uint32_t first,
                                std::uint32_t end, std::uint64_t doorbell_value, HeldSlot* held) {
  if (held != nullptr) held->wqe_index = first;
  exec::fence_release<Observed>();
  exec::store_record(handle.send_record, record_value(end));
  exec::fence_release<Observed>();
  if (held != nullptr) exec::store_counter(&held->slot, held->slot | kBound);
  exec::store_counter(&state.shared.published, end);
  exec::store_doorbell(handle.doorbell, doorbell_value);
}

// Publishes within the loop: a lane that has its turn must not wait, behind it, for lanes that wait for
// theirs.
template <Placement Observed>
GDX_OUT_OF_LINE Status publish_late(QueueState* state, std::uint32_t first, std::uint32_t end,
                                    std::uint64_t doorbell_value, HeldSlot* held) {
  const std::uint64_t began_ns = exec::now_ns();
  for (;;) {
    if (exec::load_counter(&state->shared.published) == first) {
      publish_in_turn<Observed>(state->handle, *state, first, end, doorbell_value, held);
      return Status::kOk;
    }
    if (const Status failed = shared_failure(*state); failed != Status::kOk) return failed;
    if (const Status ended = may_wait_since(*state, began_ns); ended != Status::kOk) {
      return fail_shared(*state, {ended, 0, 0, 0});
    }
  }
}

}  // namespace gdx::device::impl
