// Slow paths of a call: completions, credits, deadlines, late doorbells. They are out of line,
// one copy for all calls of a kernel. So a call that need not wait pays for a comparison only. They work on
// QueueState in memory, because references to a kernel's counters or parameters force those out of registers.
// For the leader of the endpoint's scope.
#pragma once

#include <cstdint>

#include "device/exec/exec.h"
#include "device/impl/credits.h"
#include "device/impl/wqe.h"
#include "proto/gpu/queue.h"
#include "proto/mlx5/cqe.h"
#include "proto/status.h"

namespace gdx::device::impl {

// Returns whether an error ends the endpoint; the others end a call.
GDX_DEVICE bool is_sticky(Status status) {
  return static_cast<std::uint32_t>(status) >= static_cast<std::uint32_t>(Status::kQueueError);
}

// Returns whether a cumulative counter has reached `goal`.
GDX_DEVICE bool reached(std::uint32_t counter, std::uint32_t goal) {
  return static_cast<std::int32_t>(counter - goal) >= 0;
}

// Returns why an endpoint whose owner word is `word` may not be opened, or kOk.
GDX_DEVICE Status refusal_of(std::uint64_t word, std::uint64_t owner_free) {
  if (word == owner_free) return Status::kOk;
  return word - owner_free < kMostOpeners ? Status::kBusy : Status::kNotConnected;
}

// Takes an exclusive endpoint, for the leader of its scope: counts this opener, and refuses unless it is the
// only one. Of openers at one time all may be refused. An atomic that returns the old value would let one
// win. But a GPU's compiler then takes all code after it for divergent, and a put costs four instructions
// more.
GDX_DEVICE Status take_endpoint(const EndpointHandle& handle) {
  const Status before = refusal_of(exec::load_counter(handle.owner), handle.owner_free);
  if (before != Status::kOk) return before;
  exec::count_in(handle.owner, 1);
  // The acquire orders what the last owner wrote back before what this one reads.
  if (exec::load_counter(handle.owner) == handle.owner_free + 1) return Status::kOk;
  exec::count_in(handle.owner, -1);
  return Status::kBusy;
}

// Gives it back. GPU scope suffices, because the next owner is on this GPU, or a later kernel's.
GDX_DEVICE void give_endpoint_back(const EndpointHandle& handle) {
  exec::fence_release<Placement::kGpu>();
  exec::count_in(handle.owner, -1);
}

// Result of reading the completion queue.
struct Progress {
  Status status;  // of the wait, or the endpoint's fault
  std::uint32_t completed;
  std::uint32_t filled;  // with the next two: counters of StagingState
  std::uint32_t ready;
  std::uint32_t returned;
};

GDX_DEVICE bool take_completion(QueueState& state) {
  const EndpointHandle& handle = state.handle;
  const mlx5::Cqe64& cqe =
      handle.completion_queue[state.cq_consumer & ((1u << handle.log_completion_queue) - 1)];
  // Reads the entry's last word: opcode and QPN, wqe_counter (big-endian), signature, op_own. The NIC writes
  // it whole and last, so one load decides.
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
  // Computes one past the completed WQE's last block, extended from 16 to 32 bits. The CQE names the first
  // block; the WQE itself holds the count, and no post overwrites it before.
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

// Counters that a kernel holds newer than its QueueState.
struct Posted {
  std::uint32_t filled;
  std::uint32_t rung;
};

// Applies `change(credits)` to the endpoint's credits of NIC memory, and returns their positions.
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

// Reads the abort word, which lies in host memory, at most every kHostPollNs. On a shared endpoint any
// waiting thread reads it for all. Of two threads that store the time, either value is valid.
GDX_DEVICE bool is_aborted(QueueState& state, std::uint64_t now_ns) {
  const std::uint64_t polled_ns = exec::load_counter(&state.abort_polled_ns);
  if (polled_ns == kAbortSeen) return true;
  if (state.handle.abort == nullptr || now_ns - polled_ns < kHostPollNs) return false;
  const bool aborted = exec::load_flag(state.handle.abort) != 0;
  exec::publish(&state.abort_polled_ns, aborted ? kAbortSeen : now_ns);
  return aborted;
}

// Returns whether the abort was observed. The host takes credits back before it aborts, so the scheduler's
// words have news then.
GDX_DEVICE bool has_seen_abort(QueueState& state) {
  return exec::load_counter(&state.abort_polled_ns) == kAbortSeen;
}

GDX_DEVICE Progress take_completions(QueueState& state, Posted posted) {
  while (take_completion(state)) {
  }
  return update_credits(state, posted.filled, [&](Credits& credits) {
    credits.on_completed(state.completed);
    if (state.fault.status == Status::kOk) {
      credits.poll(has_seen_abort(state));
    } else {
      credits.on_failed(posted.rung);
    }
  });
}

// Returns kOk while the waiting call may continue. `again`: the call has waited before, so its deadline
// stands.
GDX_DEVICE Status may_wait(QueueState& state, bool again) {
  const std::uint64_t now_ns = exec::now_ns();
  if (!again) state.deadline_ns = now_ns + state.handle.timeout_ns;
  if (is_aborted(state, now_ns)) return Status::kAborted;
  if (now_ns >= state.deadline_ns) return Status::kTimeout;
  exec::relax();
  return Status::kOk;
}

// Takes all available completions, and the scheduler's grants.
GDX_OUT_OF_LINE Progress drain(QueueState* state, Posted posted) { return take_completions(*state, posted); }

// Counts a stall, and requests as many slots as the message could use.
GDX_OUT_OF_LINE void stall(QueueState* state, std::uint32_t filled, std::uint64_t slots_wanted) {
  update_credits(*state, filled, [&](Credits& credits) { credits.stall(slots_wanted); });
}

// Step of an endpoint's credits of host memory.
enum class BounceStep : std::uint32_t { kPoll, kStall, kClose };

// Takes the step after applying completions, which the caller has drained. Needs no other copy, because these
// credits stay in memory between calls.
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
    credits.poll(has_seen_abort(state));
    if (step == BounceStep::kStall) credits.stall(slots_wanted);
  }
  state.bounce = credits.state();
}

GDX_OUT_OF_LINE void update_bounce(QueueState* state, BounceStep step, std::uint32_t rung,
                                   std::uint64_t slots_wanted) {
  change_bounce(*state, step, rung, slots_wanted);
}

// Ends the kernel's use of host memory: returns credits above the minimum. On a failed queue it waits for the
// NIC to flush the rest, because no later call would return them.
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

// Ends the kernel's use of NIC memory. On a failed queue it waits for the NIC to flush the rest.
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

// Waits until `completed` reaches `goal`. Sets the call's deadline even without a wait, because the caller's
// next wait comes with `again`.
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

// Returns whether endpoints of S store copies of WQEs in one store each. A thread has no stage for that, and
// a GPU without TMA no such store.
template <Scope S>
GDX_DEVICE constexpr bool stores_copies() {
  return S != Scope::kThread && exec::BulkStores::by_tma();
}

// Rings for WQEs whose doorbell was deferred, up to `producer`. The `copies` newest, of one block each, go to
// a BlueFlame register one by one. They are read back from the ring, because they are too many for registers.
// Returns the offset of the next doorbell in bytes.
template <Scope S>
GDX_OUT_OF_LINE std::uint32_t ring_deferred(QueueState* state, std::uint32_t half_bytes,
                                            std::uint32_t producer, std::uint32_t last_wqe,
                                            std::uint32_t copies) {
  const EndpointHandle& handle = state->handle;
  const std::uint32_t mask = (1u << handle.log_send_queue) - 1;
  const auto doorbell = [&] { return handle.doorbell + half_bytes / sizeof(std::uint64_t); };
  // Uses host scope, because the payload of deferred WQEs may lie anywhere.
  exec::store_release<Placement::kHost>(handle.send_record, record_value(producer));
  exec::fence_release<Placement::kHost>();
  if (copies == 0) {
    // The doorbell's value is the first 8 B of the newest WQE, as libmlx5 writes it.
    const std::byte* const wqe = handle.send_queue[last_wqe & mask].bytes;
    exec::store_doorbell(doorbell(), *reinterpret_cast<const std::uint64_t*>(wqe));
    return half_bytes ^ handle.blueflame_half_bytes;
  }
  if constexpr (stores_copies<S>()) {
    for (std::uint32_t index = producer - copies; index != producer; ++index) {
      exec::store_blueflame<S>(doorbell(), load_wqe(handle.send_queue[index & mask].bytes).at);
      half_bytes ^= handle.blueflame_half_bytes;
    }
  }
  return half_bytes;
}

}  // namespace gdx::device::impl
