// Puts, gets, signals and atomics of a team, over the way that team_route.h decides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "device/impl/direct.h"
#include "device/impl/put.h"
#include "device/impl/team_command.h"
#include "device/impl/team_route.h"

namespace gdx::device::impl {

GDX_DEVICE NoSignal at_peer(const TeamPeer& /*peer*/, const NoSignal& none) { return none; }
GDX_DEVICE Signal at_peer(const TeamPeer& peer, const TeamSignal& signal) {
  return {remote_of(peer, signal.place), signal.value, signal.op};
}

// Posts one WQE, `build(queue, index)`, from the leader. `Observed` is the memory whose stores precede it.
template <Scope S, Placement P, Placement Observed = P, typename Build>
GDX_DEVICE Status post_to_peer(TeamPeer& peer, Build build) {
  return scope_by_leader<S>([&] {
    const EndpointHandle handle = peer.endpoint;  // in registers: after each fence it would be loaded again
    OpenSharedEndpoint<S, P> queue(handle, peer.queue_pair_word, peer.block_mask);
    return post_in_room<Observed>(queue, 1, Doorbell::kRing, [&](std::uint32_t index) {
      return store_wqe(queue, index, build(queue, index));
    });
  });
}

// Sends a signal. To a mapped peer the NIC's goes behind a release of system scope, so stores come before it.
template <Scope S, Placement P>
GDX_DEVICE Status signal_peer(TeamPeer& peer, TeamAtomics atomics, PeerWay way, const TeamSignal& signal) {
  const auto build = [&](auto& queue, std::uint32_t index) {
    return signal_wqe(queue, index, at_peer(peer, signal));
  };
  if (way == PeerWay::kNative) return post_to_peer<S, P>(peer, build);
  if (atomics == TeamAtomics::kNic) return post_to_peer<S, P, Placement::kHost>(peer, build);
  auto* const word = reinterpret_cast<std::uint64_t*>(mapped_of(peer, signal.place));
  if (signal.op == SignalOp::kSet) {
    set_direct<S>(word, signal.value);
  } else {
    change_direct<S>(word, nullptr,
                     [&](std::uint64_t* at) { return exec::fetch_add_in_system(at, signal.value); });
  }
  return Status::kOk;
}
template <Scope S, Placement P>
GDX_DEVICE Status signal_peer(TeamPeer& /*peer*/, TeamAtomics /*atomics*/, PeerWay /*way*/,
                              const NoSignal& /*none*/) {
  return Status::kOk;
}

// Takes back idle slots of the team's endpoints, one endpoint a step, for a thread that waits for one. The
// endpoints lease slots from one pool, and no thread may have a call on the one that keeps them.
struct TeamHelp {
  const TeamHandle* team;
  std::uint32_t next;

  template <typename Pool>
  GDX_DEVICE void step() {
    next = next + 1 < team->pool_peer_count ? next + 1 : 0;
    const TeamPeer& peer = team->pool_peers[next];
    const PeerWay way = way_of(peer);
    const bool had_queue = has_queue(way) || (way == PeerWay::kGone && peer.state != nullptr);
    if (had_queue) (void)try_poll_credits<Pool>(*peer.state, kSameRequest);
  }
};

// Puts by `way`, whose ranges have been checked. `bytes` may be 0.
template <Mode M, Scope S, Placement P, typename Tail>
GDX_DEVICE Status put_to_peer(const TeamHandle* team, TeamPeer& peer, PeerWay way, const TeamPlace& to,
                              const LocalMemory& from, std::uint64_t bytes, const Tail& tail) {
  if (way == PeerWay::kNative) {
    OpenSharedEndpoint<S, P> queue(peer.endpoint, peer.queue_pair_word, peer.block_mask);
    return put<M, Copy::kStores>(queue, remote_of(peer, to), from, bytes, at_peer(peer, tail),
                                 Doorbell::kRing, TeamHelp{team, team->rank});
  }
  if (bytes != 0) copy_direct<S>(mapped_of(peer, to), from.address, bytes);
  return signal_peer<S, P>(peer, team->atomics, way, tail);
}

// Ranges and rank that a call names, for code out of line.
struct TeamPut {
  std::byte* to;
  const std::byte* from;
  std::uint64_t bytes;
  std::uint32_t rank;
};

// Resolves and checks a pointer in any window. `team` is the handle's copy in memory. Returns kOk or the
// recorded refusal.
GDX_DEVICE Status place_in_team(const TeamHandle& team, std::uint32_t rank, const void* address,
                                std::uint64_t bytes, TeamPlace* place) {
  if (find_place(team, address, bytes, place)) return Status::kOk;
  return record_fault(&team, Status::kInvalidArgument, rank, address, bytes);
}

// Returns the place of a signal or another word of 8 B; refuses one that is not 8-byte aligned.
GDX_DEVICE Status place_word(const TeamHandle& team, std::uint32_t rank, const std::uint64_t* word,
                             TeamPlace* place) {
  if (reinterpret_cast<std::uint64_t>(word) % sizeof *word != 0)
    return record_fault(&team, Status::kRemoteInvalid, rank, word, sizeof *word);
  return place_in_team(team, rank, word, sizeof *word, place);
}

// A signal as the caller names it.
struct TeamWord {
  static constexpr std::uint32_t kBlocks = 1;
  std::uint64_t* word;
  std::uint64_t value;
  SignalOp op;
};
GDX_DEVICE bool is_in_heap(const TeamHandle& team, const TeamWord& signal) {
  const std::uint64_t offset = offset_in(team.windows[0], signal.word);
  return offset % sizeof(std::uint64_t) == 0 && offset <= team.windows[0].bytes - sizeof(std::uint64_t);
}
GDX_DEVICE bool is_in_heap(const TeamHandle& /*team*/, const NoSignal& /*none*/) { return true; }
template <typename Remote>
GDX_DEVICE Signal nic_tail(const TeamWord& signal, Remote remote) {
  return {remote(signal.word), signal.value, signal.op};
}
template <typename Remote>
GDX_DEVICE NoSignal nic_tail(const NoSignal& none, Remote /*remote*/) {
  return none;
}
GDX_DEVICE Status place_tail(const TeamHandle& team, std::uint32_t rank, const TeamWord& signal,
                             TeamSignal* placed) {
  placed->value = signal.value;
  placed->op = signal.op;
  return place_word(team, rank, signal.word, &placed->place);
}
GDX_DEVICE Status place_tail(const TeamHandle& /*team*/, std::uint32_t /*rank*/, const NoSignal& /*none*/,
                             NoSignal* /*placed*/) {
  return Status::kOk;
}
template <typename Tail>
using PlacedTail = std::conditional_t<Tail::kBlocks == 0, NoSignal, TeamSignal>;

// Makes every put that put_in_team does not post itself. These are all puts of a warp or a block, and those
// of a thread in any mode but pull, the default kAuto among them. A thread's pull comes here if it is refused
// or empty, lies in a window beyond the heap, or goes to a peer whose way is not kNative (yet).
template <Mode M, Scope S, Placement P, typename Tail>
GDX_OUT_OF_LINE Status put_anywhere(const TeamHandle* team, TeamPeer* peers, std::uint32_t layout,
                                    TeamPut put, Tail tail) {
  if (layout != team_layout(P)) return layout_status(layout);
  if (peers == nullptr || put.rank >= team->size)  // no records: the lane does not exist
    return record_fault(team, Status::kInvalidArgument, put.rank, put.to, put.bytes);
  if (put.bytes > (M == Mode::kInline ? kMaxInlinePutBytes : mlx5::kMaxMessageBytes))
    return record_fault(team, Status::kInvalidLength, put.rank, put.to, put.bytes);
  TeamPlace to{};
  TeamPlace from{};
  PlacedTail<Tail> placed{};
  if (put.bytes != 0) {
    if (const Status bad = place_in_team(*team, put.rank, put.to, put.bytes, &to); bad != Status::kOk)
      return bad;
    if (const Status bad = place_in_team(*team, put.rank, put.from, put.bytes, &from); bad != Status::kOk)
      return bad;
  }
  if (const Status bad = place_tail(*team, put.rank, tail, &placed); bad != Status::kOk) return bad;
  if (Tail::kBlocks == 0 && put.bytes == 0) return Status::kOk;  // needs no connection
  TeamPeer* const peer = peers + put.rank;
  const bool by_queue = Tail::kBlocks != 0 && team->atomics == TeamAtomics::kNic;
  const std::uint32_t outcome = decide_way<S>(*team, peer, by_queue);
  if (is_other(outcome)) {
    constexpr bool kCopies = M == Mode::kPush || M == Mode::kInline || M == Mode::kBounce;
    if (outcome == kByCommand)
      return put_by_command<S>(*peer, to, from, put.from, put.bytes, placed, kCopies);
    return record_fault(team, static_cast<Status>(outcome), put.rank, put.to, put.bytes);
  }
  const LocalMemory source{const_cast<std::byte*>(put.from), put.bytes, team->windows[from.window].lkey, 0};
  const Status sent =
      put_to_peer<M, S, P>(team, *peer, static_cast<PeerWay>(outcome), to, source, put.bytes, placed);
  // Records a put that found no slots, or none in time, because no connection's failure tells of that.
  constexpr bool kHasSlots = M != Mode::kPull && M != Mode::kInline;
  return kHasSlots && sent != Status::kOk ? record_fault(team, sent, put.rank, put.to, put.bytes) : sent;
}

// The endpoint of a record, loaded 16 B at a time. Without the copy in registers the compiler would load a
// field again after each fence.
struct TeamQueue {
  std::uint64_t heap_distance;
  std::uint32_t queue_pair_word;
  std::uint32_t block_mask;
  EndpointHandle handle;
};
GDX_DEVICE TeamQueue load_queue(const TeamPeer& peer) {
  const exec::Pair memory = exec::load_pair<offsetof(TeamPeer, heap_distance)>(&peer);
  const exec::Pair queue = exec::load_pair<offsetof(TeamPeer, send_queue)>(&peer);
  const exec::Pair bell = exec::load_pair<offsetof(TeamPeer, doorbell)>(&peer);
  const exec::Halves constants = exec::split(bell.second);
  TeamQueue loaded{memory.first, constants.low, constants.high, peer.endpoint};
  loaded.handle.state = reinterpret_cast<QueueState*>(memory.second);
  loaded.handle.send_queue = reinterpret_cast<mlx5::WqeBasicBlock*>(queue.first);
  loaded.handle.send_record = reinterpret_cast<Be32*>(queue.second);
  loaded.handle.doorbell = reinterpret_cast<std::uint64_t*>(bell.first);
  return loaded;
}

// Returns whether 1 <= bytes <= most_bytes. It compares halves, which takes one comparison less than 64 bits
// would.
GDX_DEVICE bool is_length(const TeamHandle& team, std::uint64_t bytes) {
  const exec::Halves halves = exec::split(bytes);
  return halves.high == 0 && halves.low - 1 < team.most_bytes;
}

// Posts a thread's pull within the heap to a native peer at once, in the caller's code. All else is the call
// of one function, so that a kernel has one copy of it.
template <Mode M, Scope S, Placement P, typename Tail>
GDX_DEVICE Status put_in_team(const TeamHandle& team, const TeamPut& put, const Tail& tail) {
  if constexpr (S == Scope::kThread && M == Mode::kPull) {
    // Joins the conditions by & of words, because each && would be a branch.
    const std::uint32_t is_usual =
        std::uint32_t{team.layout == team_layout(P)} & std::uint32_t{put.rank < team.size} &
        std::uint32_t{is_length(team, put.bytes)} & std::uint32_t{is_in_heap(team, put.to, put.bytes)} &
        std::uint32_t{is_in_heap(team, put.from, put.bytes)} & std::uint32_t{is_in_heap(team, tail)};
    const TeamPeer& peer = team.peers[put.rank];
    const WayAndKey found = is_usual != 0 ? way_and_key_of(peer) : WayAndKey{};
    if (found.way == PeerWay::kNative) [[likely]] {
      const TeamQueue record = load_queue(peer);
      OpenSharedEndpoint<S, P> queue(record.handle, record.queue_pair_word, record.block_mask);
      const auto remote = [&](const void* own) {
        return RemoteMemory{record.heap_distance + reinterpret_cast<std::uint64_t>(own), 0, found.heap_rkey,
                            0};
      };
      const LocalMemory from{const_cast<std::byte*>(put.from), put.bytes, team.windows[0].lkey, 0};
      return post_pull(queue, remote(put.to), from, static_cast<std::uint32_t>(put.bytes),
                       nic_tail(tail, remote), Doorbell::kRing);
    }
  }
  return put_anywhere<M, S, P>(team.copy, team.peers, team.layout, put, tail);
}

// Checks layout and rank, the first step of a call that begins out of line or has no ranges.
template <Placement P>
GDX_DEVICE Status check_rank(const TeamHandle& team, std::uint32_t rank) {
  if (team.layout != team_layout(P)) return layout_status(team.layout);
  return rank < team.size ? Status::kOk : record_fault(team.copy, Status::kInvalidArgument, rank, nullptr, 0);
}

// The way to a rank that check_rank has accepted, or a refusal. A proxied way has a status, too, so that
// others pay no comparison for it. Ranges are checked before, because this may wait.
struct TeamRoute {
  Status status;
  PeerWay way;
  TeamPeer* peer;
};
template <Scope S>
GDX_DEVICE TeamRoute route_to(const TeamHandle& team, std::uint32_t rank, bool by_queue) {
  TeamPeer* const peer = team.peers + rank;
  const std::uint32_t outcome = decide_way<S>(team, peer, by_queue);
  if (is_other(outcome)) {
    if (outcome == kByCommand) return {Status::kPending, PeerWay::kProxied, peer};
    return {record_fault(team.copy, static_cast<Status>(outcome), rank, nullptr, 0), PeerWay::kNone, peer};
  }
  return {Status::kOk, static_cast<PeerWay>(outcome), peer};
}

// Writes a value that travels in the WQE.
template <Scope S, Placement P, typename T>
GDX_DEVICE Status put_value_in_team(const TeamHandle& team, T* to, const T& value, std::uint32_t rank) {
  const ValueBits bits = bits_of(value);
  if (const Status bad = check_rank<P>(team, rank); bad != Status::kOk) return bad;
  TeamPlace place{};
  if (const Status bad = place_in_team(*team.copy, rank, to, sizeof(T), &place); bad != Status::kOk)
    return bad;
  const TeamRoute route = route_to<S>(team, rank, false);
  if (route.status != Status::kOk) {
    return route.way == PeerWay::kProxied ? put_value_by_command<S, sizeof(T)>(*route.peer, place, bits)
                                          : route.status;
  }
  if (route.way != PeerWay::kNative) {
    put_value_direct<S, sizeof(T)>(mapped_of(*route.peer, place), bits);
    return Status::kOk;
  }
  return post_to_peer<S, P>(*route.peer, [&](auto& queue, std::uint32_t index) {
    return value_wqe<sizeof(T)>(queue, index, remote_of(*route.peer, place), bits,
                                queue.handle().signal_fence);
  });
}

template <Scope S, Placement P>
GDX_DEVICE Status signal_in_team(const TeamHandle& team, const TeamWord& signal, std::uint32_t rank) {
  if (const Status bad = check_rank<P>(team, rank); bad != Status::kOk) return bad;
  TeamSignal placed{{}, signal.value, signal.op};
  if (const Status bad = place_word(*team.copy, rank, signal.word, &placed.place); bad != Status::kOk)
    return bad;
  const TeamRoute route = route_to<S>(team, rank, team.atomics == TeamAtomics::kNic);
  if (route.status != Status::kOk)
    return route.way == PeerWay::kProxied ? signal_by_command<S>(*route.peer, placed) : route.status;
  return signal_peer<S, P>(*route.peer, team.atomics, route.way, placed);
}

template <Scope S, Placement P>
GDX_DEVICE Status get_in_team(const TeamHandle& team, const TeamPut& get) {
  if (const Status bad = check_rank<P>(team, get.rank); bad != Status::kOk) return bad;
  if (get.bytes == 0) return Status::kOk;
  if (get.bytes > mlx5::kMaxMessageBytes)
    return record_fault(team.copy, Status::kInvalidLength, get.rank, get.from, get.bytes);
  TeamPlace to{};
  TeamPlace from{};
  if (const Status bad = place_in_team(*team.copy, get.rank, get.to, get.bytes, &to); bad != Status::kOk)
    return bad;
  if (const Status bad = place_in_team(*team.copy, get.rank, get.from, get.bytes, &from); bad != Status::kOk)
    return bad;
  const TeamRoute route = route_to<S>(team, get.rank, false);
  if (route.status != Status::kOk) {
    return route.way == PeerWay::kProxied ? get_by_command<S>(*route.peer, to, from, get.bytes)
                                          : route.status;
  }
  if (route.way != PeerWay::kNative) {
    copy_direct<S>(get.to, mapped_of(*route.peer, from), get.bytes);
    return Status::kOk;
  }
  const LocalMemory local{get.to, get.bytes, team.copy->windows[to.window].lkey, 0};
  return post_to_peer<S, P>(*route.peer, [&](auto& queue, std::uint32_t index) {
    return transfer_wqe(queue, index, mlx5::WqeOpcode::kRdmaRead, remote_of(*route.peer, from), local,
                        static_cast<std::uint32_t>(get.bytes));
  });
}

// Does what a NIC would do, on a processor.
GDX_DEVICE std::uint64_t change_by_processor(std::uint64_t* word, const Atomic& atomic) {
  if (atomic.opcode == mlx5::WqeOpcode::kAtomicFetchAdd)
    return exec::fetch_add_in_system(word, atomic.operand);
  return exec::compare_swap_in_system(word, atomic.compare, atomic.operand);
}

template <Scope S, Placement P>
GDX_DEVICE Status atomic_in_team(const TeamHandle& team, std::uint64_t* original, std::uint64_t* target,
                                 const Atomic& atomic, std::uint32_t rank) {
  const bool by_nic = team.atomics == TeamAtomics::kNic;
  if (const Status bad = check_rank<P>(team, rank); bad != Status::kOk) return bad;
  TeamPlace to{};
  TeamPlace result{};
  if (const Status bad = place_word(*team.copy, rank, target, &to); bad != Status::kOk) return bad;
  if (const Status bad = place_word(*team.copy, rank, original, &result); bad != Status::kOk) return bad;
  const TeamRoute route = route_to<S>(team, rank, by_nic);
  if (route.status != Status::kOk)
    return route.way == PeerWay::kProxied ? atomic_by_command<S>(*route.peer, to, result, atomic)
                                          : route.status;
  if (!by_nic && route.way != PeerWay::kNative) {
    change_direct<S>(reinterpret_cast<std::uint64_t*>(mapped_of(*route.peer, to)),
                     reinterpret_cast<std::byte*>(original),
                     [&](std::uint64_t* word) { return change_by_processor(word, atomic); });
    return Status::kOk;
  }
  return post_to_peer<S, P, Placement::kHost>(*route.peer, [&](auto& queue, std::uint32_t index) {
    return atomic_wqe(queue, index, atomic, remote_of(*route.peer, to), original,
                      team.copy->windows[result.window].lkey, queue.handle().signal_fence);
  });
}

// Waits until everything posted to the peer is complete, in a call that began at `began_ns`. A peer that is
// gone fails the calls that it took.
template <Placement P>
GDX_DEVICE Status flush_peer(TeamPeer& peer, std::uint64_t began_ns) {
  const PeerWay way = way_of(peer);
  if (!has_queue(way)) {
    if (way < PeerWay::kGone) return Status::kOk;
    if (way == PeerWay::kProxied) return flush_by_command(peer, began_ns);
    if (peer.state == nullptr) return Status::kOk;
  }
  const Status status = flush_shared(peer.state, exec::load_counter(&peer.state->shared.published), began_ns);
  return status == Status::kOk && way == PeerWay::kGone ? Status::kPeerUnreachable : status;
}

// Flushes ranks `begin` to `end` on all lanes of the handle. Records and returns the first failure, after all
// of them. A wait after the timeout only polls.
template <Placement P>
GDX_DEVICE Status flush_ranks(const TeamHandle& team, std::uint32_t begin, std::uint32_t end) {
  exec::fence_release<Placement::kHost>();
  const std::uint64_t began_ns = exec::now_ns();
  Status first = Status::kOk;
  for (std::uint32_t lane = 0; lane < team.lanes; ++lane) {
    for (std::uint32_t rank = begin; rank < end; ++rank) {
      const Status status = flush_peer<P>(team.peers[lane * team.size + rank], began_ns);
      if (status == Status::kOk || first != Status::kOk) continue;
      first = record_fault(team.copy, status, rank, nullptr, 0);
    }
  }
  return first;
}

}  // namespace gdx::device::impl
