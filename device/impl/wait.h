// Everything that a call does which cannot go on at once: completions, credits, deadlines, late doorbells.
// Out of line, one copy for all calls of a kernel, so that a call which need not wait pays for a comparison
// only. Works on QueueState in memory: passing a kernel's own counters or parameters by reference would
// force them out of registers everywhere. In the leader of the endpoint's scope.
#pragma once

#include <cstdint>

#include "device/credits.h"
#include "device/exec/exec.h"
#include "device/impl/wqe.h"
#include "proto/gpu/queue.h"
#include "proto/mlx5/cqe.h"
#include "proto/status.h"

namespace gdx::device::impl {

// Errors that end an endpoint; the others end a call.
GDX_DEVICE bool is_sticky(Status status) {
  return static_cast<std::uint32_t>(status) >= static_cast<std::uint32_t>(Status::kQueueError);
}

// Has a cumulative counter come to `goal`?
GDX_DEVICE bool reached(std::uint32_t counter, std::uint32_t goal) {
  return static_cast<std::int32_t>(counter - goal) >= 0;
}

// What a look at the completion queue came to.
struct Progress {
  Status status;  // of the wait, or the endpoint's fault
  std::uint32_t completed;
  std::uint32_t filled;  // and the other counters of StagingState
  std::uint32_t ready;
  std::uint32_t returned;
};

GDX_DEVICE bool take_completion(QueueState& state) {
  const EndpointHandle& handle = state.handle;
  const mlx5::Cqe64& cqe =
      handle.completion_queue[state.cq_consumer & ((1u << handle.log_completion_queue) - 1)];
  // Opcode and QPN, wqe_counter (big-endian), signature and op_own are the last word, which the NIC
  // writes whole and last: one load decides everything.
  const std::uint64_t tail = exec::load_acquire(reinterpret_cast<const std::uint64_t*>(&cqe) + 7);
  const std::uint32_t op_own = static_cast<std::uint32_t>(tail >> 56);
  const std::uint32_t opcode = op_own >> mlx5::kCqeOpcodeShift;
  const std::uint32_t pass = state.cq_consumer >> handle.log_completion_queue & 1;
  if ((op_own & mlx5::kCqeOwnerMask) != pass ||
      opcode == static_cast<std::uint32_t>(mlx5::CqeOpcode::kInvalid)) {
    return false;
  }
  ++state.cq_consumer;
  const std::uint16_t counter = byte_swap(static_cast<std::uint16_t>(tail >> 32));
  // One past the completed WQE's last block, extended from 16 to 32 bits. The CQE names the first; how many
  // follow, the WQE itself says, which nobody overwrites before.
  const std::byte* const wqe = handle.send_queue[counter & ((1u << handle.log_send_queue) - 1)].bytes;
  const std::uint32_t qpn_ds = byte_swap(reinterpret_cast<const mlx5::ControlSegment*>(wqe)->qpn_ds.raw);
  const auto end = static_cast<std::uint16_t>(counter + blocks_of(qpn_ds & mlx5::kSegmentCountMask));
  state.completed += static_cast<std::uint16_t>(end - state.completed);
  if (opcode == static_cast<std::uint32_t>(mlx5::CqeOpcode::kRequesterError)) {
    if (state.fault.status != Status::kOk) return true;  // the first error is the cause, the rest is flushing
    const auto& error = reinterpret_cast<const mlx5::ErrorCqe&>(cqe);
    state.fault = {mlx5::status_of(static_cast<mlx5::Syndrome>(error.syndrome)), error.syndrome,
                   error.vendor_error_syndrome, counter};
  }
  return true;
}

// What a kernel knows better than its QueueState.
struct Posted {
  std::uint32_t filled;
  std::uint32_t rung;
};

// The endpoint's credits of the NIC's memory, as `change(credits)` leaves them.
template <typename Change>
GDX_DEVICE Progress update_credits(QueueState& state, std::uint32_t filled, Change change) {
  if (state.handle.staging.slot_count == 0) return {state.fault.status, state.completed, filled, 0, 0};
  Credits credits(state.handle.staging);
  state.staging.filled = filled;
  credits.open(state.staging);
  change(credits);
  state.staging = credits.state();
  return {state.fault.status, state.completed, state.staging.filled, state.staging.ready,
          state.staging.returned};
}

// Looks at the abort word, which lies in host memory, when it is time to. On a shared endpoint whoever waits
// looks for all: of two who store the time the one or the other counts.
GDX_DEVICE bool is_aborted(QueueState& state, std::uint64_t now_ns) {
  const std::uint64_t looked_ns = exec::load_counter(&state.abort_looked_ns);
  if (looked_ns == kAbortSeen) return true;
  if (state.handle.abort == nullptr || now_ns - looked_ns < kHostLookNs) return false;
  const bool aborted = exec::load_flag(state.handle.abort) != 0;
  exec::publish(&state.abort_looked_ns, aborted ? kAbortSeen : now_ns);
  return aborted;
}

// The host takes the credits back before it aborts: then there is news, however lately it was asked.
GDX_DEVICE bool has_seen_abort(QueueState& state) {
  return exec::load_counter(&state.abort_looked_ns) == kAbortSeen;
}

GDX_DEVICE Progress take_completions(QueueState& state, Posted posted) {
  while (take_completion(state)) {
  }
  return update_credits(state, posted.filled, [&](Credits& credits) {
    credits.on_completed(state.completed);
    if (state.fault.status == Status::kOk) {
      credits.look(has_seen_abort(state));
    } else {
      credits.on_failed(posted.rung);
    }
  });
}

// kOk while the call that waits may go on. `again`: it has waited before, so its deadline stands.
GDX_DEVICE Status may_wait(QueueState& state, bool again) {
  const std::uint64_t now_ns = exec::now_ns();
  if (!again) state.deadline_ns = now_ns + state.handle.timeout_ns;
  if (is_aborted(state, now_ns)) return Status::kAborted;
  if (now_ns >= state.deadline_ns) return Status::kTimeout;
  exec::relax();
  return Status::kOk;
}

// Takes every completion that is there, and what the scheduler has to say.
GDX_OUT_OF_LINE Progress drain(QueueState* state, Posted posted) { return take_completions(*state, posted); }

// No credit is left: asks for as many as the message could use.
GDX_OUT_OF_LINE void stall(QueueState* state, std::uint32_t filled, std::uint64_t slots_wanted) {
  update_credits(*state, filled, [&](Credits& credits) { credits.stall(slots_wanted); });
}

// What an endpoint does about its credits of host memory.
enum class BounceStep : std::uint32_t { kLook, kStall, kClose };

// Takes the step, after what completions and the scheduler have brought; completions were taken before. These
// credits are in memory between two calls, so nothing else needs to know of them.
GDX_DEVICE void change_bounce(QueueState& state, BounceStep step, std::uint32_t rung,
                              std::uint64_t slots_wanted) {
  Credits credits(state.handle.bounce);
  credits.open(state.bounce);
  credits.on_completed(state.completed);
  if (state.fault.status != Status::kOk) {
    credits.on_failed(rung);
  } else if (step == BounceStep::kClose) {
    credits.close();
  } else {
    credits.look(has_seen_abort(state));
    if (step == BounceStep::kStall) credits.stall(slots_wanted);
  }
  state.bounce = credits.state();
}

GDX_OUT_OF_LINE void update_bounce(QueueState* state, BounceStep step, std::uint32_t rung,
                                   std::uint64_t slots_wanted) {
  change_bounce(*state, step, rung, slots_wanted);
}

// The kernel ends, and keeps what it must of its credits of host memory. On a failed queue it waits for the
// NIC to flush the rest, which nobody would give back later.
GDX_OUT_OF_LINE void close_bounce(QueueState* state) {
  for (bool again = false;; again = true) {
    while (take_completion(*state)) {
    }
    change_bounce(*state, BounceStep::kClose, state->rung, 0);
    const bool all_back = state->bounce.returned == state->bounce.filled;
    if (state->fault.status == Status::kOk || all_back) return;
    if (may_wait(*state, again) != Status::kOk) return;
  }
}

// The same of the NIC's memory.
GDX_OUT_OF_LINE Progress close_credits(QueueState* state, Posted posted) {
  Progress progress = take_completions(*state, posted);
  bool again = false;
  while (progress.status != Status::kOk && progress.returned != progress.filled) {
    if (may_wait(*state, again) != Status::kOk) return progress;
    again = true;
    progress = take_completions(*state, {progress.filled, posted.rung});
  }
  if (progress.status != Status::kOk) return progress;
  return update_credits(*state, progress.filled, [](Credits& credits) { credits.close(); });
}

GDX_OUT_OF_LINE Status wait_a_turn(QueueState* state, bool again) { return may_wait(*state, again); }

// Waits until `completed` has come to `goal`. The call's deadline is set afterwards, even if there was
// nothing to wait for: the caller need not learn which, and its next wait comes with `again`.
GDX_OUT_OF_LINE Progress wait_completed(QueueState* state, Posted posted, std::uint32_t goal, bool again) {
  for (;; again = true) {
    Progress progress = take_completions(*state, posted);
    if (progress.status != Status::kOk || reached(progress.completed, goal)) {
      if (!again) state->deadline_ns = exec::now_ns() + state->handle.timeout_ns;
      return progress;
    }
    progress.status = may_wait(*state, again);
    if (progress.status != Status::kOk) return progress;
  }
}

// Rings for WQEs whose doorbell was deferred: the NIC is to take all before `producer`. The `copies` newest,
// of one block each, go to a BlueFlame register one by one, read back from the ring, for they are too many to
// be kept in registers. Returns where the next doorbell goes, in bytes from the first.
GDX_OUT_OF_LINE std::uint32_t ring_deferred(QueueState* state, std::uint32_t half_bytes,
                                            std::uint32_t producer, std::uint32_t last_wqe,
                                            std::uint32_t copies) {
  const EndpointHandle& handle = state->handle;
  const std::uint32_t mask = (1u << handle.log_send_queue) - 1;
  const auto doorbell = [&] { return handle.doorbell + half_bytes / sizeof(std::uint64_t); };
  // Host scope: what the deferred WQEs send may lie anywhere.
  exec::store_release<Placement::kHost>(handle.send_record, record_value(producer));
  exec::fence_release<Placement::kHost>();
  if (copies == 0) {
    // The doorbell's value is the first 8 B of the newest WQE, as libmlx5 writes it.
    const std::byte* const wqe = handle.send_queue[last_wqe & mask].bytes;
    exec::store_doorbell(doorbell(), *reinterpret_cast<const std::uint64_t*>(wqe));
    return half_bytes ^ handle.blueflame_half_bytes;
  }
  for (std::uint32_t index = producer - copies; index != producer; ++index) {
    exec::store_blueflame(doorbell(), load_wqe(handle.send_queue[index & mask].bytes).at);
    half_bytes ^= handle.blueflame_half_bytes;
  }
  return half_bytes;
}

}  // namespace gdx::device::impl
