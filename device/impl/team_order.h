// Order across lanes, and completion of single operations of a team.
#pragma once

#include <cstdint>

#include "device/impl/team_transfer.h"
#include "device/options.h"

namespace gdx::device::impl {

// Waits until all that any thread posted to `rank` before is complete, on all lanes but the handle's own.
template <Placement P>
GDX_DEVICE Status flush_other_lanes(const TeamHandle& team, std::uint32_t rank) {
  exec::fence_release<Placement::kHost>();
  const std::uint64_t began_ns = exec::now_ns();
  for (std::uint32_t lane = 0; lane < team.copy->lanes; ++lane) {
    TeamPeer& peer = team.copy->peers[lane * team.copy->size + rank];
    if (&peer == team.peers + rank) continue;
    const Status status = flush_peer<P>(peer, began_ns);
    if (status != Status::kOk) return record_fault(team.copy, status, rank, nullptr, 0);
  }
  return Status::kOk;
}

template <Scope S, Placement P>
GDX_DEVICE Status signal_after_all_in_team(const TeamHandle& team, const TeamWord& signal,
                                           std::uint32_t rank) {
  if (const Status bad = check_rank<P>(team, rank); bad != Status::kOk) return bad;
  const Status flushed = scope_by_leader<S>([&] { return flush_other_lanes<P>(team, rank); });
  return flushed == Status::kOk ? signal_in_team<S, P>(team, signal, rank) : flushed;
}

// Returns a mark that covers the caller's posts, because a post is published when its call returns.
GDX_DEVICE TeamMark mark_of(const TeamPeer& peer, std::uint32_t rank) {
  const PeerWay way = way_of(peer);
  if (has_queue(way)) return {peer.state, exec::load_counter(&peer.state->shared.published), rank, 0};
  const bool unposted = way == PeerWay::kNone || is_mapped(way);
  return {nullptr, 0, rank, unposted ? 0u : 1u};
}

template <Scope S>
GDX_DEVICE Status mark_in_scope(const TeamPeer& peer, std::uint32_t rank, TeamMark* mark) {
  TeamMark made{};
  const Status agreed = scope_by_leader<S>([&] {
    made = mark_of(peer, rank);
    return Status::kOk;
  });
  if (agreed != Status::kOk) return agreed;
  const std::uint32_t whole = exec::broadcast<S>(made.whole);
  const std::uint32_t posted = exec::broadcast<S>(made.state != nullptr ? 1u : 0u);
  *mark = {posted != 0 ? peer.state : nullptr, exec::broadcast<S>(made.position), rank, whole};
  return Status::kOk;
}

template <Placement P>
GDX_DEVICE Status flush_mark(const TeamHandle& team, const TeamMark& mark) {
  exec::fence_release<Placement::kHost>();
  const std::uint64_t began_ns = exec::now_ns();
  Status status = Status::kOk;
  if (mark.whole != 0) status = flush_peer<P>(team.peers[mark.rank], began_ns);
  if (mark.state != nullptr) status = flush_shared(mark.state, mark.position, began_ns);
  return status == Status::kOk ? status : record_fault(team.copy, status, mark.rank, nullptr, 0);
}

}  // namespace gdx::device::impl
