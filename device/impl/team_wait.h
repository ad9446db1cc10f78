// Waits of a team on one or many signals of this rank, with a probe of the awaited rank.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/impl/flush.h"
#include "device/impl/team_transfer.h"

namespace gdx::device::impl {

// Signals of this rank, each with the rank that sends it.
struct TeamSignals {
  const std::uint64_t* words;
  std::uint32_t count;
  const std::uint32_t* ranks;  // of words[i]; null: `first_rank` + i, or kAnyTeamRank
  std::uint32_t first_rank;
  Compare how;
  std::uint64_t value;

  GDX_DEVICE std::uint32_t rank_of(std::uint32_t i) const {
    if (ranks != nullptr) return ranks[i];
    return first_rank == kAnyTeamRank ? kAnyTeamRank : first_rank + i;
  }
  GDX_DEVICE std::uint64_t value_of(std::uint32_t /*i*/) const { return value; }
  GDX_DEVICE bool has(std::uint32_t i) const { return holds(words + i, how, value); }
};
// The same, each with a value of its own.
struct TeamSignalsOfValues : TeamSignals {
  const std::uint64_t* values;

  GDX_DEVICE std::uint64_t value_of(std::uint32_t i) const { return values[i]; }
  GDX_DEVICE bool has(std::uint32_t i) const { return holds(words + i, how, values[i]); }
};

// Polls one peer during a wait: finds its queue's failure. During silence it requests the connection and
// posts a probe. The period without a signal counts for all waiting threads of a queue pair.
template <Placement P>
GDX_DEVICE Status watch_peer(const TeamHandle& team, TeamPeer& peer, std::uint64_t began_ns) {
  const PeerWay way = way_of(peer);
  if (has_queue(way)) return probe_shared<P>(peer.endpoint.state, began_ns);
  if (way >= PeerWay::kGone) {
    if (way == PeerWay::kGone) return Status::kPeerUnreachable;
    return watch_by_command(team.copy, peer, began_ns);
  }
  if (exec::now_ns() - began_ns >= team.probe_after_ns) exec::publish(peer.asked, 1);
  return Status::kOk;
}

// Ends a wait with `status`, unless the signals came before the failure.
template <typename Signals, typename Enough>
GDX_DEVICE Status ended_wait(const TeamHandle& team, const Signals& signals, Enough& enough, Status status,
                             std::uint32_t index) {
  if (enough(signals)) return Status::kOk;
  const auto address = reinterpret_cast<std::uint64_t>(signals.words + index);
  const auto how = static_cast<std::uint32_t>(signals.how);
  return record_first(team.copy,
                      {status, signals.rank_of(index), address, signals.value_of(index), 0, 1 + how});
}

// Waits until `enough(signals)` of the signals hold. A failed or silent sender of a missing signal ends it.
template <Placement P, typename Signals, typename Enough>
GDX_DEVICE Status wait_for_signals(const TeamHandle& team, TeamPeer* peers, const Signals& signals,
                                   Enough enough) {
  const std::uint64_t began_ns = exec::now_ns();
  for (std::uint32_t next = 0;; next = next + 1 < signals.count ? next + 1 : 0) {
    if (enough(signals)) return Status::kOk;
    const std::uint32_t rank = signals.rank_of(next);
    if (rank < team.size && !signals.has(next)) {
      const Status status = watch_peer<P>(team, peers[rank], began_ns);
      if (status != Status::kOk) return ended_wait(team, signals, enough, status, next);
    }
    if (const Status ended = may_wait_on(team, began_ns); ended != Status::kOk)
      return ended_wait(team, signals, enough, ended, next);
  }
}

// Waits out of line for one signal, which most waits need.
template <Placement P>
GDX_OUT_OF_LINE Status wait_for_signal(const TeamHandle* team, TeamPeer* peers, TeamSignals signals) {
  return wait_for_signals<P>(*team, peers, signals, [](const TeamSignals& s) { return s.has(0); });
}
template <Placement P, typename Signals>
GDX_OUT_OF_LINE Status wait_for_all(const TeamHandle* team, TeamPeer* peers, Signals signals) {
  std::uint32_t done = 0;
  return wait_for_signals<P>(*team, peers, signals, [&](const Signals& s) {
    while (done < s.count && s.has(done)) ++done;
    return done == s.count;
  });
}
// Returns the index of the first that holds, at or after `from`, in `*index`.
template <Placement P, typename Signals>
GDX_OUT_OF_LINE Status wait_for_any(const TeamHandle* team, TeamPeer* peers, Signals signals,
                                    std::uint32_t from, std::uint32_t* index) {
  return wait_for_signals<P>(*team, peers, signals, [&](const Signals& s) {
    for (std::uint32_t k = 0; k < s.count; ++k) {
      const auto i = static_cast<std::uint32_t>((std::uint64_t{from} + k) % s.count);
      if (!s.has(i)) continue;
      *index = i;
      return true;
    }
    return false;
  });
}

// Checks words and ranks of a wait before it begins. Only a wait that names no ranks is for any, on a lane
// that exists: another has no ranks.
template <Placement P>
GDX_DEVICE Status check_wait(const TeamHandle& team, const TeamSignals& signals) {
  if (team.layout != team_layout(P)) return layout_status(team.layout);
  if (signals.count == 0)
    return record_fault(team.copy, Status::kInvalidLength, kAnyTeamRank, signals.words, 0);
  for (std::uint32_t i = 0; i < signals.count; ++i) {
    const std::uint32_t rank = signals.rank_of(i);
    const bool is_any = rank == kAnyTeamRank && signals.ranks == nullptr && team.size != 0;
    if (rank >= team.size && !is_any)
      return record_fault(team.copy, Status::kInvalidArgument, rank, signals.words + i, 8);
  }
  TeamPlace place{};
  if (const Status bad = place_word(*team.copy, signals.rank_of(0), signals.words, &place);
      bad != Status::kOk)
    return bad;
  const std::uint64_t bytes = std::uint64_t{signals.count} * sizeof *signals.words;
  return place_in_team(*team.copy, signals.rank_of(0), signals.words, bytes, &place);
}

// Waits for all of many signals, or for one of them.
template <Scope S, Placement P, typename Signals>
GDX_DEVICE Status wait_all_in_team(const TeamHandle& team, const Signals& all) {
  return scope_by_leader<S>([&] {
    if (all.count == 0 && team.layout == team_layout(P)) return Status::kOk;
    if (const Status bad = check_wait<P>(team, all); bad != Status::kOk) return bad;
    return wait_for_all<P>(team.copy, team.peers, all);
  });
}
template <Scope S, Placement P, typename Signals>
GDX_DEVICE Status wait_any_in_team(const TeamHandle& team, const Signals& any, std::uint32_t* index,
                                   std::uint32_t from) {
  std::uint32_t found = 0;
  const Status status = scope_by_leader<S>([&] {
    if (const Status bad = check_wait<P>(team, any); bad != Status::kOk) return bad;
    if (index == nullptr)
      return record_fault(team.copy, Status::kInvalidArgument, kAnyTeamRank, index, sizeof *index);
    return wait_for_any<P>(team.copy, team.peers, any, from, &found);
  });
  found = exec::broadcast<S>(found);
  if (status == Status::kOk) *index = found;
  return status;
}

// Waits for one signal, of a rank or of any.
template <Scope S, Placement P>
GDX_DEVICE Status wait_in_team(const TeamHandle& team, const TeamSignals& one) {
  return scope_by_leader<S>([&] {
    if (const Status bad = check_wait<P>(team, one); bad != Status::kOk) return bad;
    if (one.has(0)) return Status::kOk;
    return wait_for_signal<P>(team.copy, team.peers, one);
  });
}

}  // namespace gdx::device::impl
