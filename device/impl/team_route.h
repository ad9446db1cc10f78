// The way of a team call: the peer's record, the windows of its pointers, and the wait for a connection. The
// leader of a call decides, because the host may change the record meanwhile. So all threads of a scope take
// one way.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/exec/exec.h"
#include "device/impl/wait.h"
#include "proto/gpu/memory.h"
#include "proto/gpu/team.h"
#include "proto/status.h"

namespace gdx::device::impl {

// Records the first refused or failed call of the team, for the host's message. Returns its status.
GDX_DEVICE Status record_first(const TeamHandle* team, const TeamFault& call) {
  TeamFault& fault = *team->fault;
  if (exec::compare_swap(&fault.taken, 0, 1) == 0) {
    fault.rank = call.rank;
    fault.address = call.address;
    fault.bytes = call.bytes;
    fault.waited = call.waited;
    fault.status = call.status;
  }
  return call.status;
}
GDX_OUT_OF_LINE Status record_fault(const TeamHandle* team, Status status, std::uint32_t rank,
                                    const void* address, std::uint64_t bytes) {
  return record_first(team, {status, rank, reinterpret_cast<std::uint64_t>(address), bytes, 0, 0});
}

// Returns why a handle of another layout is refused. It has no record of faults that could be trusted.
GDX_DEVICE Status layout_status(std::uint32_t layout) {
  const bool other_place = layout >> 8 == team_layout(Placement::kHost) >> 8;
  return other_place ? Status::kInvalidArgument : Status::kVersionMismatch;
}

// A range of this rank, as a window and an offset in it; the peer's range has the same.
struct TeamPlace {
  std::uint32_t window;
  std::uint64_t offset;
};

GDX_DEVICE std::uint64_t offset_in(const TeamWindow& window, const void* address) {
  return reinterpret_cast<std::uint64_t>(address) - reinterpret_cast<std::uint64_t>(window.address);
}

// Returns whether the heap contains the range. Requires `bytes` <= TeamHandle::most_bytes, which is at most
// the heap's size, so the difference does not wrap.
GDX_DEVICE bool is_in_heap(const TeamHandle& team, const void* address, std::uint64_t bytes) {
  return offset_in(team.windows[0], address) <= team.windows[0].bytes - bytes;
}

// Finds the window of a range; false without one.
GDX_DEVICE bool find_place(const TeamHandle& team, const void* address, std::uint64_t bytes,
                           TeamPlace* place) {
  for (std::uint32_t i = 0; i < team.window_count; ++i) {
    const std::uint64_t offset = offset_in(team.windows[i], address);
    if (bytes <= team.windows[i].bytes && offset <= team.windows[i].bytes - bytes) {
      *place = {i, offset};
      return true;
    }
  }
  return false;
}

GDX_DEVICE RemoteMemory remote_of(const TeamPeer& peer, const TeamPlace& place) {
  const TeamPeerWindow& window = peer.windows[place.window];
  return {window.address + place.offset, 0, window.rkey, 0};
}
GDX_DEVICE std::byte* mapped_of(const TeamPeer& peer, const TeamPlace& place) {
  return peer.windows[place.window].mapped + place.offset;
}

// The first word of a record. After a way with a queue the rest of the record no longer changes.
struct WayAndKey {
  PeerWay way;
  Be32 heap_rkey;
};
GDX_DEVICE WayAndKey way_and_key_of(const TeamPeer& peer) {
  const exec::Halves word = exec::split(exec::load_acquire(reinterpret_cast<const std::uint64_t*>(&peer)));
  WayAndKey loaded{static_cast<PeerWay>(word.low), {}};
  loaded.heap_rkey.raw = word.high;
  return loaded;
}
GDX_DEVICE PeerWay way_of(const TeamPeer& peer) { return way_and_key_of(peer).way; }

GDX_DEVICE bool has_queue(PeerWay way) { return way == PeerWay::kNative || way == PeerWay::kDirect; }
GDX_DEVICE bool is_mapped(PeerWay way) { return way == PeerWay::kMapped || way == PeerWay::kDirect; }

// Returns the address by which this kernel loads and stores the memory of `rank` that `own` names here; null
// where it cannot. `rank` exists.
GDX_DEVICE const std::byte* reached_at(const TeamHandle& team, const void* own, std::uint32_t rank) {
  TeamPlace place{};
  if (!find_place(team, own, 1, &place)) return nullptr;
  if (rank == team.rank) return static_cast<const std::byte*>(own);
  const TeamPeer& peer = team.peers[rank];
  const PeerWay way = way_of(peer);
  const bool has_mapping =
      (is_mapped(way) || way == PeerWay::kProxied) && peer.windows[place.window].mapped != nullptr;
  return has_mapping ? mapped_of(peer, place) : nullptr;
}

// Outcome of a decision in one word: a way, or the status of a refusal. Statuses of failure are above 0xff,
// and so is the outcome of a proxied rank, so that other ways pay no comparison for it.
constexpr std::uint32_t outcome_of(PeerWay way) { return static_cast<std::uint32_t>(way); }
constexpr std::uint32_t outcome_of(Status status) { return static_cast<std::uint32_t>(status); }
inline constexpr std::uint32_t kByCommand = ~std::uint32_t{0};
GDX_DEVICE bool is_other(std::uint32_t outcome) { return outcome > 0xff; }

// Returns kOk while a wait on the team that began at `began_ns` may continue.
GDX_DEVICE Status may_wait_on(const TeamHandle& team, std::uint64_t began_ns) {
  if (exec::load_flag(team.abort) != 0) return Status::kAborted;
  if (exec::now_ns() - began_ns >= team.timeout_ns) return Status::kTimeout;
  exec::relax();
  return Status::kOk;
}

// Requests the connection and waits until the peer can be reached, by a queue pair if `by_queue`. A proxied
// rank is there from the start.
GDX_OUT_OF_LINE std::uint32_t await_peer(const TeamHandle* team, TeamPeer* peer, bool by_queue) {
  const std::uint64_t began_ns = exec::now_ns();
  for (;;) {
    const PeerWay way = way_of(*peer);
    if (has_queue(way) || (!by_queue && is_mapped(way))) return outcome_of(way);
    if (way == PeerWay::kGone) return outcome_of(Status::kPeerUnreachable);
    if (way == PeerWay::kProxied) return kByCommand;
    exec::publish(peer->asked, 1);
    if (const Status ended = may_wait_on(*team, began_ns); ended != Status::kOk) return outcome_of(ended);
  }
}

// Returns the way of a call to `peer`, decided by the leader.
template <Scope S>
GDX_DEVICE std::uint32_t decide_way(const TeamHandle& team, TeamPeer* peer, bool by_queue) {
  exec::gather<S>();
  std::uint32_t outcome = 0;
  if (exec::thread_rank<S>() == 0) {
    const PeerWay way = way_of(*peer);
    outcome = outcome_of(way);
    if (!exec::calls_agree<S>()) {
      const auto rank = static_cast<std::uint32_t>((peer - team.peers) % team.size);
      outcome =
          outcome_of(record_fault(team.copy, Status::kInvalidArgument, rank, nullptr, kArgumentsDiffer));
    } else if (!has_queue(way) && (by_queue || way != PeerWay::kMapped)) [[unlikely]] {
      outcome = await_peer(team.copy, peer, by_queue);
    }
  }
  return exec::broadcast<S>(outcome);
}

}  // namespace gdx::device::impl
