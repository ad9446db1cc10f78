// Calls of a team on a proxied rank: commands to the host's poster, and stores of puts where the rank's
// windows are mapped. All of it is behind the branch that refuses a call, so other ways pay no instruction.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/impl/command_ring.h"
#include "device/impl/direct.h"
#include "device/impl/post.h"
#include "device/impl/team_route.h"

namespace gdx::device::impl {

// A signal behind a put, by its place in the heap or another window.
struct TeamSignal {
  static constexpr std::uint32_t kBlocks = 1;
  TeamPlace place;
  std::uint64_t value;
  SignalOp op;
};

// A command by the places that a call names, passed in registers.
struct TeamCommand {
  CommandOperation operation;
  std::uint8_t flags;
  TeamPlace remote;
  TeamPlace local;
  std::uint64_t bytes;
  std::uint64_t value;
  TeamPlace signal;
};
GDX_DEVICE void add_signal(TeamCommand& command, const TeamSignal& signal) {
  command.flags = signal.op == SignalOp::kSet ? kCommandSignalSet : kCommandSignalAdd;
  command.signal = signal.place;
  command.value = signal.value;
}
GDX_DEVICE void add_signal(TeamCommand& /*command*/, const NoSignal& /*none*/) {}

// Gives a command to the poster, from one thread. `wait`: returns once it is complete. Errors: those of
// post_command and await_command; the failure that the rank has had before.
GDX_OUT_OF_LINE Status give_command(const TeamPeer* peer, TeamCommand given, bool wait) {
  const CommandRingHandle ring = *peer->commands;
  Command command{};
  command.operation = given.operation;
  command.flags = given.flags;
  command.local_window = static_cast<std::uint8_t>(given.local.window);
  command.remote_window = static_cast<std::uint8_t>(given.remote.window);
  command.signal_window = static_cast<std::uint8_t>(given.signal.window);
  command.rank = peer->command_rank;
  command.local_offset = given.local.offset;
  command.remote_offset = given.remote.offset;
  command.signal_offset = given.signal.offset;
  command.bytes = given.bytes;
  command.value = given.value;
  const std::uint64_t done = exec::load_acquire(ring.done + command.rank);
  if (failure_of(done) != Status::kOk) return failure_of(done);
  std::uint64_t index = 0;
  const Status status = post_command(ring, command, index);
  return status == Status::kOk && wait ? await_command(ring, command, index) : status;
}

// Puts `bytes`, and signals. A put whose source may be reused at its return, `copies`, waits until the rank
// has it.
template <Scope S, typename Tail>
GDX_DEVICE Status put_by_command(const TeamPeer& peer, const TeamPlace& to, const TeamPlace& from,
                                 const std::byte* source, std::uint64_t bytes, const Tail& tail,
                                 bool copies) {
  std::byte* const mapped = peer.windows[to.window].mapped;
  if (mapped != nullptr && bytes != 0) {
    copy_direct<S>(mapped + to.offset, source, bytes);
    if (Tail::kBlocks == 0) return Status::kOk;
    bytes = 0;
  }
  return scope_by_leader<S>([&] {
    TeamCommand command{CommandOperation::kPut, 0, to, from, bytes, 0, {}};
    add_signal(command, tail);
    return give_command(&peer, command, copies && bytes != 0);
  });
}

template <Scope S, std::size_t Bytes>
GDX_DEVICE Status put_value_by_command(const TeamPeer& peer, const TeamPlace& to, const ValueBits& bits) {
  if (peer.windows[to.window].mapped != nullptr) {
    put_value_direct<S, Bytes>(mapped_of(peer, to), bits);
    return Status::kOk;
  }
  return scope_by_leader<S>([&] {
    constexpr std::size_t kWord = sizeof bits.low;
    TeamCommand command{CommandOperation::kPutValue, 0, to, {}, Bytes < kWord ? Bytes : kWord, bits.low, {}};
    if (Bytes > kWord) command.flags = kCommandMore;
    const Status status = give_command(&peer, command, false);
    if (Bytes <= kWord || status != Status::kOk) return status;
    command.flags = 0;
    command.remote.offset += kWord;
    command.value = bits.high;
    return give_command(&peer, command, false);
  });
}

template <Scope S>
GDX_DEVICE Status signal_by_command(const TeamPeer& peer, const TeamSignal& signal) {
  return put_by_command<S>(peer, {}, {}, nullptr, 0, signal, false);
}

// A command for a mapped rank, too, because loads would not see signals and atomics that its agent has yet to
// apply.
template <Scope S>
GDX_DEVICE Status get_by_command(const TeamPeer& peer, const TeamPlace& to, const TeamPlace& from,
                                 std::uint64_t bytes) {
  return scope_by_leader<S>([&] {
    return give_command(&peer, {CommandOperation::kGet, 0, from, to, bytes, 0, {}}, false);
  });
}

template <Scope S>
GDX_DEVICE Status atomic_by_command(const TeamPeer& peer, const TeamPlace& target, const TeamPlace& result,
                                    const Atomic& atomic) {
  return scope_by_leader<S>([&] {
    const bool adds = atomic.opcode == mlx5::WqeOpcode::kAtomicFetchAdd;
    const auto operation = adds ? CommandOperation::kFetchAdd : CommandOperation::kCompareSwap;
    return give_command(&peer, {operation, 0, target, result, atomic.compare, atomic.operand, {}}, false);
  });
}

// Waits until all commands to the peer are complete, in a call that began at `began_ns`.
GDX_OUT_OF_LINE Status flush_by_command(const TeamPeer& peer, std::uint64_t began_ns) {
  const CommandRingHandle ring = *peer.commands;
  return flush_commands(ring, peer.command_rank, began_ns);
}

// Looks at a rank that a wait names: finds its failure or the poster's end. During silence it asks the poster
// to find out whether the rank still answers.
GDX_OUT_OF_LINE Status watch_by_command(const TeamHandle* team, const TeamPeer& peer,
                                        std::uint64_t began_ns) {
  const CommandRingHandle& ring = *peer.commands;
  const Status failure = failure_of(exec::load_acquire(ring.done + peer.command_rank));
  if (failure != Status::kOk) return failure;
  const std::uint64_t ended = exec::load_acquire(&ring.words->ended);
  if (ended != 0) return static_cast<Status>(ended);
  if (exec::now_ns() - began_ns >= team->probe_after_ns) exec::publish(peer.asked, 1);
  return Status::kOk;
}

}  // namespace gdx::device::impl
