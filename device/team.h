// The device API on a team. Memory is named by an own pointer into the symmetric heap or another window of
// the team. A peer is named by its rank.
//
//   gdx_put_signal(team, x + mine, x + mine, bytes, arrived, 1, SignalOp::kAdd, rank)    at rank's x + mine
//   gdx_wait(team, arrived, Compare::kGreaterEqual, 1, rank)                         this rank's arrived
//
// Rules for every call:
//  - Template arguments are a Mode, a Scope and a Placement, in this order, where a call has them.
//  - The Placement equals the team's `endpoint.placement`, kHost by default. A team compares exactly: every
//    call of the other placement is kInvalidArgument. (On an endpoint kHost serves queues in either memory.)
//  - Scope S: kThread calls for itself; of a warp or block all threads call together, with equal arguments,
//    and get the same Status. Any number of scopes may call at a time.
//  - kOk means posted to a NIC, or stored for a mapped peer. Sources of pulls may be reused after gdx_flush.
//  - A pointer outside the team's windows, a rank that does not exist, or a signal that is not 8-byte aligned
//    is refused by the call: kInvalidArgument, kRemoteInvalid. Nothing is sent, and the team goes on. The
//    host's Team::describe_fault() names the first.
//  - Lengths are in bytes, as on endpoints, 1 GiB at most. 0 changes nothing, and a signal with it is sent.
//  - A signal word lies outside what its put writes: a peer that waits would take payload for the signal.
//  - A call to a rank without a connection asks for one, and waits for it within the team's timeout. That
//    wait may end in kTimeout, kAborted or kPeerUnreachable. Once the connection is there, its failures are
//    those of a SharedEndpoint.
//  - "Errors: the rules'" means the statuses above.
//
// Ordering towards one rank, on one lane:
//
//   gdx_put(A); gdx_signal(s)     a peer that reads s also reads A, by whichever way either goes
//   gdx_put(A); gdx_put(B)        in any order; so do values
//   gdx_signal(s); gdx_put(A)     in any order
//
// Signals and atomics come after all earlier puts and values of the caller, and of threads whose return it
// observed. All atomics and signals of a word take one way (TeamHandle::atomics), for local and remote ranks
// alike. A kernel changes words of the team by these calls only, its own words too. A word that is added to
// is set by gdx_signal with kSet, because gdx_put_value is no atomic. Source: docs/teams.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "device/impl/noted_call.h"
#include "device/impl/team_order.h"
#include "device/impl/team_wait.h"
#include "device/options.h"
#include "device/test.h"

namespace gdx {

// Copies `bytes` of `from` to the place of `to` at `rank`.
// Errors: the rules'; kInvalidLength for more than 1 GiB, or inline for more than kMaxInlinePutBytes;
// kUnsupported for push or bounce on a team without such memory.
template <Mode M = Mode::kAuto, Scope S = Scope::kThread, Placement P = Placement::kHost>
GDX_DEVICE Status gdx_put(const TeamHandle& team, void* to, const void* from, std::size_t bytes,
                          std::uint32_t rank) {
  device::impl::note_call<S>("gdx_put", to, from, bytes, rank);
  return device::impl::put_in_team<M, S, P>(
      team, {static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes, rank},
      device::impl::NoSignal{});
}

// Makes gdx_put, then gdx_signal, under one doorbell where the NIC takes both. Errors: those of both calls.
template <Mode M = Mode::kAuto, Scope S = Scope::kThread, Placement P = Placement::kHost>
GDX_DEVICE Status gdx_put_signal(const TeamHandle& team, void* to, const void* from, std::size_t bytes,
                                 std::uint64_t* signal, std::uint64_t value, SignalOp op,
                                 std::uint32_t rank) {
  device::impl::note_call<S>("gdx_put_signal", to, from, bytes, signal, value, op, rank);
  return device::impl::put_in_team<M, S, P>(
      team, {static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes, rank},
      device::impl::TeamWord{signal, value, op});
}

// Writes one value of 1, 2, 4, 8 or 16 B, which needs no source in memory. Errors: the rules'.
template <Scope S = Scope::kThread, Placement P = Placement::kHost, typename T>
GDX_DEVICE Status gdx_put_value(const TeamHandle& team, T* to, std::remove_cv_t<T> value,
                                std::uint32_t rank) {
  device::impl::note_call<S>("gdx_put_value", to, value, rank);
  return device::impl::put_value_in_team<S, P>(team, to, value, rank);
}

// Names what to write for a pointer without a type. Errors: none, since it does not compile.
template <Scope S = Scope::kThread, Placement P = Placement::kHost, typename T, typename Value,
          std::enable_if_t<std::is_void_v<T>, int> = 0>
GDX_DEVICE Status gdx_put_value(const TeamHandle&, T*, Value, std::uint32_t) {
  static_assert(
      !std::is_void_v<T>,
      "the pointer's type is the value's: gdx_put_value(team, static_cast<std::uint64_t*>(to), ...)");
  return Status::kInvalidArgument;
}

// Sets the 8-byte aligned signal word at `rank`, or adds to it. Errors: the rules'.
template <Scope S = Scope::kThread, Placement P = Placement::kHost>
GDX_DEVICE Status gdx_signal(const TeamHandle& team, std::uint64_t* signal, std::uint64_t value, SignalOp op,
                             std::uint32_t rank) {
  device::impl::note_call<S>("gdx_signal", signal, value, op, rank);
  return device::impl::signal_in_team<S, P>(team, device::impl::TeamWord{signal, value, op}, rank);
}

// Makes gdx_signal, seen only after all that this thread, and threads whose return it observed, had put to
// `rank` before on any lane of the team, not the handle's alone. On a team of one lane it is gdx_signal.
// Elsewhere it waits until the other lanes' operations to `rank` are complete. Errors: those of gdx_flush and
// gdx_signal.
template <Scope S = Scope::kThread, Placement P = Placement::kHost>
GDX_DEVICE Status gdx_signal_after_all(const TeamHandle& team, std::uint64_t* signal, std::uint64_t value,
                                       SignalOp op, std::uint32_t rank) {
  device::impl::note_call<S>("gdx_signal_after_all", signal, value, op, rank);
  return device::impl::signal_after_all_in_team<S, P>(team, device::impl::TeamWord{signal, value, op}, rank);
}

// Copies `bytes` from the place of `from` at `rank` to `to`, complete after gdx_flush. Errors: the
// rules'; kInvalidLength for more than 1 GiB.
template <Scope S = Scope::kThread, Placement P = Placement::kHost>
GDX_DEVICE Status gdx_get(const TeamHandle& team, void* to, const void* from, std::size_t bytes,
                          std::uint32_t rank) {
  device::impl::note_call<S>("gdx_get", to, from, bytes, rank);
  return device::impl::get_in_team<S, P>(
      team, {static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes, rank});
}

// Atomically adds to the word at `rank`. Its old value is in `*original` after gdx_flush: 8 B of this rank's
// part of the heap, or of another window. Errors: the rules'.
template <Scope S = Scope::kThread, Placement P = Placement::kHost>
GDX_DEVICE Status gdx_fetch_add(const TeamHandle& team, std::uint64_t* original, std::uint64_t* target,
                                std::uint64_t add, std::uint32_t rank) {
  device::impl::note_call<S>("gdx_fetch_add", original, target, add, rank);
  return device::impl::atomic_in_team<S, P>(team, original, target,
                                            {mlx5::WqeOpcode::kAtomicFetchAdd, add, 0}, rank);
}

// Atomically replaces the word at `rank` by `swap` if it equals `compare`. Its old value is in `*original`
// after gdx_flush either way. Errors: the rules'.
template <Scope S = Scope::kThread, Placement P = Placement::kHost>
GDX_DEVICE Status gdx_compare_swap(const TeamHandle& team, std::uint64_t* original, std::uint64_t* target,
                                   std::uint64_t compare, std::uint64_t swap, std::uint32_t rank) {
  device::impl::note_call<S>("gdx_compare_swap", original, target, compare, swap, rank);
  return device::impl::atomic_in_team<S, P>(team, original, target,
                                            {mlx5::WqeOpcode::kAtomicCompareSwap, swap, compare}, rank);
}

// Waits until all that any thread posted to `rank` before is complete, on all lanes of the handle.
// Sources are then reusable, and results have landed. Errors: kInvalidArgument for no such rank; the first
// failure of a connection; kTimeout and kAborted, which leave the team intact.
template <Scope S = Scope::kThread, Placement P = Placement::kHost>
GDX_DEVICE Status gdx_flush(const TeamHandle& team, std::uint32_t rank) {
  device::impl::note_call<S>("gdx_flush", rank);
  if (team.layout != team_layout(P)) return device::impl::layout_status(team.layout);
  return device::impl::scope_by_leader<S>([&] {
    if (rank >= team.size)
      return device::impl::record_fault(team.copy, Status::kInvalidArgument, rank, nullptr, 0);
    return device::impl::flush_ranks<P>(team, rank, rank + 1);
  });
}

// Marks the caller's operations to `rank` so far, on the handle's lane, for gdx_flush(team, mark) by any
// thread. Every thread of the scope gets the mark. Errors: kInvalidArgument for no such rank.
template <Scope S = Scope::kThread, Placement P = Placement::kHost>
GDX_DEVICE Status gdx_mark(const TeamHandle& team, TeamMark* mark, std::uint32_t rank) {
  device::impl::note_call<S>("gdx_mark", rank);
  if (const Status bad = device::impl::check_rank<P>(team, rank); bad != Status::kOk) return bad;
  return device::impl::mark_in_scope<S>(team.peers[rank], rank, mark);
}

// Waits until the marked operations are complete, whatever any thread has posted behind them. It waits for
// what others had posted there before the mark, because a queue completes in its order. Errors: those of
// gdx_flush.
template <Scope S = Scope::kThread, Placement P = Placement::kHost>
GDX_DEVICE Status gdx_flush(const TeamHandle& team, const TeamMark& mark) {
  device::impl::note_call<S>("gdx_flush", mark.state, mark.position, mark.rank);
  if (const Status bad = device::impl::check_rank<P>(team, mark.rank); bad != Status::kOk) return bad;
  return device::impl::scope_by_leader<S>([&] { return device::impl::flush_mark<P>(team, mark); });
}

// Makes gdx_flush to every rank, within one timeout. Errors: the first failure, after all of them.
template <Scope S = Scope::kThread, Placement P = Placement::kHost>
GDX_DEVICE Status gdx_quiet(const TeamHandle& team) {
  device::impl::note_call<S>("gdx_quiet");
  if (team.layout != team_layout(P)) return device::impl::layout_status(team.layout);
  return device::impl::scope_by_leader<S>([&] {
    if (team.peers == nullptr)  // the lane does not exist
      return device::impl::record_fault(team.copy, Status::kInvalidArgument, team.size, nullptr, 0);
    return device::impl::flush_ranks<P>(team, 0, team.size);
  });
}

// Waits until this rank's signal compares true, which `rank` is to change. A silent rank's NIC is probed, so
// a dead one ends the wait. Errors: kTimeout, kAborted, which leave the team intact; the failure of the
// rank's connection, such as kPeerUnreachable.
template <Scope S = Scope::kThread, Placement P = Placement::kHost>
GDX_DEVICE Status gdx_wait(const TeamHandle& team, const std::uint64_t* signal, Compare how,
                           std::uint64_t value, std::uint32_t rank) {
  device::impl::note_call<S>("gdx_wait", signal, how, value, rank);
  // A rank that does not exist must not stand for "any".
  const std::uint32_t named = rank != kAnyTeamRank ? rank : kAnyTeamRank - 1;
  return device::impl::wait_in_team<S, P>(team, {signal, 1, nullptr, named, how, value});
}

// Waits until this rank's signal compares true, which any rank may change. No rank is probed. Errors:
// kTimeout, with a dead rank too; kAborted.
template <Scope S = Scope::kThread, Placement P = Placement::kHost>
GDX_DEVICE Status gdx_wait(const TeamHandle& team, const std::uint64_t* signal, Compare how,
                           std::uint64_t value) {
  device::impl::note_call<S>("gdx_wait", signal, how, value);
  return device::impl::wait_in_team<S, P>(team, {signal, 1, nullptr, kAnyTeamRank, how, value});
}

// Names what to write for a pointer to no signal. Errors: none, since it does not compile.
template <Scope S = Scope::kThread, Placement P = Placement::kHost, typename T, typename... Rank,
          std::enable_if_t<!std::is_convertible_v<T*, const std::uint64_t*>, int> = 0>
GDX_DEVICE Status gdx_wait(const TeamHandle&, T*, Compare, std::uint64_t, Rank...) {
  static_assert(
      std::is_convertible_v<T*, const std::uint64_t*>,
      "a signal is a std::uint64_t: gdx_wait(team, static_cast<const std::uint64_t*>(signal), ...)");
  return Status::kInvalidArgument;
}

// Waits until all of `count` signals compare true; 0 do at once. ranks[i] is to change signals[i].
// Null: no rank is known, and none is probed. `ranks` may be any memory that the kernel reads. Errors:
// gdx_wait's, of the first rank that fails.
template <Scope S = Scope::kThread, Placement P = Placement::kHost>
GDX_DEVICE Status gdx_wait_all(const TeamHandle& team, const std::uint64_t* signals,
                               const std::uint32_t* ranks, std::uint32_t count, Compare how,
                               std::uint64_t value) {
  device::impl::note_call<S>("gdx_wait_all", signals, ranks, count, how, value);
  return device::impl::wait_all_in_team<S, P>(
      team, device::impl::TeamSignals{signals, count, ranks, kAnyTeamRank, how, value});
}

// The same with values[i] for signals[i]. `values` may be any memory that the kernel reads. Errors: those of
// the other gdx_wait_all.
template <Scope S = Scope::kThread, Placement P = Placement::kHost, typename Value,
          std::enable_if_t<std::is_same_v<std::remove_cv_t<Value>, std::uint64_t>, int> = 0>
GDX_DEVICE Status gdx_wait_all(const TeamHandle& team, const std::uint64_t* signals,
                               const std::uint32_t* ranks, std::uint32_t count, Compare how, Value* values) {
  device::impl::note_call<S>("gdx_wait_all", signals, ranks, count, how, values);
  return device::impl::wait_all_in_team<S, P>(
      team, device::impl::TeamSignalsOfValues{{signals, count, ranks, kAnyTeamRank, how, 0}, values});
}

// Waits until one of the signals compares true. Returns its index in `*index`, in every thread of the scope.
// A failed wait leaves `*index` as it was. Begins at signals[from]: pass the last index plus one to serve all
// in turn. Errors: those of gdx_wait_all; kInvalidLength for no signals; kInvalidArgument for a null `index`.
template <Scope S = Scope::kThread, Placement P = Placement::kHost>
GDX_DEVICE Status gdx_wait_any(const TeamHandle& team, const std::uint64_t* signals,
                               const std::uint32_t* ranks, std::uint32_t count, Compare how,
                               std::uint64_t value, std::uint32_t* index, std::uint32_t from = 0) {
  device::impl::note_call<S>("gdx_wait_any", signals, ranks, count, how, value, from);
  return device::impl::wait_any_in_team<S, P>(
      team, device::impl::TeamSignals{signals, count, ranks, kAnyTeamRank, how, value}, index, from);
}

// The same with values[i] for signals[i]. `values` may be any memory that the kernel reads. Errors: those of
// the other gdx_wait_any.
template <Scope S = Scope::kThread, Placement P = Placement::kHost, typename Value,
          std::enable_if_t<std::is_same_v<std::remove_cv_t<Value>, std::uint64_t>, int> = 0>
GDX_DEVICE Status gdx_wait_any(const TeamHandle& team, const std::uint64_t* signals,
                               const std::uint32_t* ranks, std::uint32_t count, Compare how, Value* values,
                               std::uint32_t* index, std::uint32_t from = 0) {
  device::impl::note_call<S>("gdx_wait_any", signals, ranks, count, how, values, from);
  return device::impl::wait_any_in_team<S, P>(
      team, device::impl::TeamSignalsOfValues{{signals, count, ranks, kAnyTeamRank, how, 0}, values}, index,
      from);
}

// Returns the place of `own` at `rank` for loads and stores of this kernel, `own` itself at this rank. Null
// where only messages lead to that rank, where it is gone or does not exist, and for a pointer outside the
// team's windows. Stores there are seen after the caller's next signal to that rank, as its puts are. Words
// that signals and atomics change are not for stores.
template <Placement P = Placement::kHost, typename T>
GDX_DEVICE T* gdx_ptr(const TeamHandle& team, T* own, std::uint32_t rank) {
  if (team.layout != team_layout(P) || rank >= team.size) return nullptr;
  return reinterpret_cast<T*>(const_cast<std::byte*>(device::impl::reached_at(team, own, rank)));
}

}  // namespace gdx

using gdx::gdx_compare_swap;
using gdx::gdx_fetch_add;
using gdx::gdx_flush;
using gdx::gdx_get;
using gdx::gdx_mark;
using gdx::gdx_ptr;
using gdx::gdx_put;
using gdx::gdx_put_signal;
using gdx::gdx_put_value;
using gdx::gdx_quiet;
using gdx::gdx_signal;
using gdx::gdx_signal_after_all;
using gdx::gdx_wait;
using gdx::gdx_wait_all;
using gdx::gdx_wait_any;
