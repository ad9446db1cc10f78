// The kernel's side of a ring of commands: reserve under credits, store, publish, and wait within a bound.
// For one thread, the leader of a call. Any threads may use one ring at a time. Inline, so that commands and
// handles stay in registers; callers are out of line.
#pragma once

#include <cstdint>

#include "device/exec/exec.h"
#include "proto/gpu/command_ring.h"
#include "proto/status.h"

namespace gdx::device::impl {

// Bounds a wait on a ring's words, and tells its end from the poster's part in it. `began_ns` 0: it has not
// begun.
struct CommandWait {
  std::uint64_t began_ns;
  std::uint64_t consumed_at_begin;
  bool looked;
};
GDX_DEVICE void begin_wait(const CommandRingHandle& ring, CommandWait& wait) {
  if (wait.looked) return;
  if (wait.began_ns == 0) wait.began_ns = exec::now_ns();
  wait.consumed_at_begin = exec::load_acquire(&ring.words->consumed);
  wait.looked = true;
}

// Command that a call waits for or with.
struct CommandCall {
  std::uint32_t packed;  // packed_call()
  std::uint32_t rank;
};

// Notes the first failure on the ring, for the host's message, and returns its status.
GDX_DEVICE Status fail_command(const CommandRingHandle& ring, Status status, CommandCause cause,
                               CommandCall call, std::uint64_t index) {
  CommandFault& fault = ring.state->fault;
  if (exec::compare_swap(&fault.call, 0u, call.packed) == 0) {
    fault.cause = cause;
    fault.rank = call.rank;
    fault.index = index;
    exec::publish(&fault.status, static_cast<std::uint32_t>(status));
  }
  return status;
}

// Returns kOk while a wait for command `index` may continue.
GDX_DEVICE Status may_wait_for_command(const CommandRingHandle& ring, const CommandWait& wait,
                                       CommandCall call, std::uint64_t index, CommandCause silent) {
  const std::uint64_t ended = exec::load_acquire(&ring.words->ended);
  if (ended != 0)
    return fail_command(ring, static_cast<Status>(ended), CommandCause::kPosterEnded, call, index);
  if (ring.abort != nullptr && exec::load_flag(ring.abort) != 0)
    return fail_command(ring, Status::kAborted, CommandCause::kAborted, call, index);
  if (exec::now_ns() - wait.began_ns >= ring.timeout_ns) {
    const std::uint64_t consumed = exec::load_acquire(&ring.words->consumed);
    const bool stands = consumed == wait.consumed_at_begin && consumed <= index;
    return fail_command(ring, Status::kTimeout, stands ? CommandCause::kPosterSilent : silent, call, index);
  }
  exec::relax();
  return Status::kOk;
}

// Hands out the slot of command `index`. A call that gets none within the bound leaves the ring as it was,
// because credits are compared before the reservation.
GDX_DEVICE Status reserve_command(const CommandRingHandle& ring, CommandCall call, std::uint64_t began_ns,
                                  std::uint64_t& index) {
  const std::uint64_t entries = std::uint64_t{1} << ring.log_entries;
  CommandWait wait{began_ns, 0, false};
  for (;;) {
    const std::uint64_t known = exec::load_counter(&ring.state->consumed);
    const std::uint64_t at = exec::load_counter(&ring.state->reserved);
    if (at - known < entries) {
      if (exec::compare_swap(&ring.state->reserved, at, at + 1) != at) continue;
      index = at;
      return Status::kOk;
    }
    const std::uint64_t consumed = exec::load_acquire(&ring.words->consumed);
    if (consumed != known) {
      exec::compare_swap(&ring.state->consumed, known, consumed);
      continue;
    }
    begin_wait(ring, wait);
    const Status status = may_wait_for_command(ring, wait, call, at, CommandCause::kFull);
    if (status != Status::kOk) return status;
  }
}

GDX_DEVICE exec::Segment segment_of(std::uint64_t first, std::uint64_t second) {
  const exec::Halves low = exec::split(first);
  const exec::Halves high = exec::split(second);
  return {{low.low, low.high, high.low, high.high}};
}

// Stores `command` into its slot, in pieces of 16 B, the sequence last. Ordering: the poster sees the command
// after all that this thread stored or acquired before, payload included.
GDX_DEVICE void publish_command(const CommandRingHandle& ring, const Command& command, std::uint64_t index) {
  std::byte* const slot =
      reinterpret_cast<std::byte*>(ring.commands + (index & ((std::uint64_t{1} << ring.log_entries) - 1)));
  const std::uint64_t head = std::uint64_t{command.rank} << 32 | std::uint64_t{command.remote_window} << 24 |
                             std::uint64_t{command.local_window} << 16 | std::uint64_t{command.flags} << 8 |
                             static_cast<std::uint64_t>(command.operation);
  exec::store_segment<0>(slot, segment_of(head, command.local_offset));
  exec::store_segment<16>(slot, segment_of(command.remote_offset, command.bytes));
  exec::store_segment<32>(slot, segment_of(command.value, command.signal_offset));
  exec::store_word(slot + 48, command.signal_window);
  exec::publish(&reinterpret_cast<Command*>(slot)->sequence, index + 1);
}

// Gives `command` to the poster, and its index in the ring to `index`. `began_ns`: from which the bound
// counts; 0: from its first wait. Errors: kVersionMismatch, kInvalidArgument for a rank that the ring does
// not have; kUnsupported for a call that GDX_EMULATION=refuse forbids; kTimeout without room; kAborted; the
// status with which the poster ended. A rank's failure is told by await_command. After an error nothing was
// posted.
GDX_DEVICE Status post_command(const CommandRingHandle& ring, const Command& command, std::uint64_t& index,
                               std::uint64_t began_ns = 0) {
  index = 0;
  if (ring.layout_version != kCommandLayoutVersion) return Status::kVersionMismatch;
  const CommandCall call{packed_call(command), command.rank};
  if (command.rank >= ring.ranks)
    return fail_command(ring, Status::kInvalidArgument, CommandCause::kRefused, call, 0);
  if ((refused_bits(command.operation, command.flags) & ring.refused) != 0)
    return fail_command(ring, Status::kUnsupported, CommandCause::kRefused, call, 0);
  const Status status = reserve_command(ring, call, began_ns, index);
  if (status == Status::kOk) publish_command(ring, command, index);
  return status;
}

// Waits until `command` at `index`, and all before it to its rank, are complete. Errors: the rank's failure;
// kTimeout, kAborted, the poster's end.
GDX_DEVICE Status await_command(const CommandRingHandle& ring, const Command& command, std::uint64_t index,
                                std::uint64_t began_ns = 0) {
  const std::uint32_t rank = command.rank;
  const CommandCall call{packed_call(command), rank};
  CommandWait wait{began_ns, 0, false};
  for (;;) {
    const std::uint64_t word = exec::load_acquire(ring.done + rank);
    if (failure_of(word) != Status::kOk)
      return fail_command(ring, failure_of(word), CommandCause::kPeerFailed, call, index);
    if (done_of(word) > index) return Status::kOk;
    begin_wait(ring, wait);
    const Status status = may_wait_for_command(ring, wait, call, index, CommandCause::kPeerSilent);
    if (status != Status::kOk) return status;
  }
}

// Waits until all commands of this ring to `rank` are complete: sources are reusable, results have landed,
// and the rank has all puts and signals. Errors: those of post_command and await_command.
GDX_DEVICE Status flush_commands(const CommandRingHandle& ring, std::uint32_t rank,
                                 std::uint64_t began_ns = 0) {
  Command command{};
  command.operation = CommandOperation::kFlush;
  command.rank = rank;
  std::uint64_t index = 0;
  const Status status = post_command(ring, command, index, began_ns);
  return status == Status::kOk ? await_command(ring, command, index, began_ns) : status;
}

}  // namespace gdx::device::impl
