// Parts of every collective call: its number, the words by which ranks signal each other, and its end.
//
// Signals of call number n set a word to n << kStepBits plus the pieces that the call has sent so far. So no
// word is ever reset, and a rank that is ahead disturbs none that is behind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "device/exec/exec.h"
#include "device/exec/halves.h"
#include "device/team.h"
#include "proto/gpu/team_area.h"

namespace gdx::device::impl {

inline constexpr std::uint32_t kStepBits = 20;

struct CollectiveCall {
  Status status;
  std::uint64_t base;  // value of signals of this call, before its first piece
};

GDX_DEVICE TeamAreaWords& area_words(const TeamHandle& team) {
  return *reinterpret_cast<TeamAreaWords*>(team.area);
}
GDX_DEVICE TeamAreaRankWords& words_of(const TeamHandle& team, std::uint32_t rank) {
  return reinterpret_cast<TeamAreaRankWords*>(team.area + sizeof(TeamAreaWords))[rank];
}
GDX_DEVICE std::byte* scratch_of(const TeamHandle& team) {
  return team.area + team.area_bytes - team.scratch_bytes;
}

enum class CollectiveKind : std::uint32_t {
  kBroadcast = 1,
  kAllGather,
  kGather,
  kScatter,
  kAllToAll,
  kAllToAllV,
  kReduce,
  kReduceScatter,
  kAllReduce
};

// Mixes what all ranks must give alike to a call. `reduction` is of enum Reduce.
template <typename T>
GDX_DEVICE std::uint64_t alike_of(CollectiveKind kind, std::size_t count, std::uint32_t root = 0,
                                  std::uint32_t reduction = 0) {
  constexpr std::uint64_t kType = sizeof(T) << 3 | (std::is_same_v<T, __nv_bfloat16> ? 5 : 0) |
                                  (std::is_same_v<T, __half> ? 4 : 0) | (std::is_signed_v<T> ? 2 : 0) |
                                  (std::is_floating_point_v<T> ? 1 : 0);
  const std::uint64_t call = kType | static_cast<std::uint64_t>(kind) << 8 | std::uint64_t{reduction} << 16;
  return (count * 0xd6e8feb86659fd93u ^ call) + (std::uint64_t{root} << 32);
}

GDX_DEVICE Status take_call(const TeamHandle& team, std::uint64_t alike, std::uint64_t* number) {
  TeamAreaWords& words = area_words(team);
  const std::uint64_t failure = exec::load_acquire(&words.failure);
  if (failure != 0) return static_cast<Status>(failure);
  if (exec::compare_swap_in_system(&words.busy, 0, 1) != 0) return Status::kBusy;
  *number = exec::load_acquire(&words.calls) + 1;
  exec::publish(&words.calls, *number);
  const std::uint64_t given = alike ^ words.through;
  const std::uint64_t mixed = (exec::split(words.alike).low ^ given) * 0x9e3779b97f4a7c15u;
  exec::publish(&words.alike, exec::join(exec::split(mixed).high, exec::split(*number).low));
  return Status::kOk;
}

// Begins a call. Its end is end_call(), unless the status here is another than kOk.
template <Scope S, Placement P>
GDX_DEVICE CollectiveCall begin_call(const TeamHandle& team, std::uint64_t alike) {
  if (team.layout != team_layout(P)) return {layout_status(team.layout), 0};
  if (team.peers == nullptr) {
    return {record_fault(team.copy, Status::kInvalidArgument, team.size, nullptr, 0), 0};  // no such lane
  }
  std::uint64_t number = 0;
  const Status status = scope_by_leader<S>([&] { return take_call(team, alike, &number); });
  const std::uint32_t low = exec::broadcast<S>(exec::split(number).low);
  const std::uint32_t high = exec::broadcast<S>(exec::split(number).high);
  return {status, exec::join(low, high) << kStepBits};
}

// Ends a call. After a failure the lane's ranks disagree on how far they are, so later calls are refused.
template <Scope S>
GDX_DEVICE Status end_call(const TeamHandle& team, Status status) {
  return scope_by_leader<S>([&] {
    TeamAreaWords& words = area_words(team);
    if (status != Status::kOk) exec::publish(&words.failure, static_cast<std::uint64_t>(status));
    exec::publish(&words.busy, 0);
    return status;
  });
}

// Tells `rank` that it may write this rank's memory, for pieces after number `piece`; and waits for that of
// `rank`.
template <Scope S, Placement P>
GDX_DEVICE Status signal_ready(const TeamHandle& team, const CollectiveCall& call, std::uint32_t rank,
                               std::uint64_t piece = 0) {
  return gdx_signal<S, P>(team, &words_of(team, team.rank).ready, call.base + piece, SignalOp::kSet, rank);
}
template <Scope S, Placement P>
GDX_DEVICE Status await_ready(const TeamHandle& team, const CollectiveCall& call, std::uint32_t rank,
                              std::uint64_t piece = 0) {
  return gdx_wait<S, P>(team, &words_of(team, rank).ready, Compare::kGreaterEqual, call.base + piece, rank);
}

// Calls `act(rank)` for every other rank, beginning with the next, so that not all begin with one. Ends with
// the first failure.
template <typename Act>
GDX_DEVICE Status for_each_other(const TeamHandle& team, const Act& act) {
  Status status = Status::kOk;
  for (std::uint32_t k = 1; k < team.size && status == Status::kOk; ++k)
    status = act((team.rank + k) % team.size);
  return status;
}

// Puts `count` elements as the call's piece number `piece`, from 1, to `rank`; and waits for that of `rank`.
template <Mode M, Scope S, Placement P, typename T>
GDX_DEVICE Status send_piece(const TeamHandle& team, const CollectiveCall& call, T* to, const T* from,
                             std::size_t count, std::uint64_t piece, std::uint32_t rank) {
  return gdx_put_signal<M, S, P>(team, to, from, count * sizeof(T), &words_of(team, team.rank).data,
                                 call.base + piece, SignalOp::kSet, rank);
}
template <Scope S, Placement P>
GDX_DEVICE Status await_piece(const TeamHandle& team, const CollectiveCall& call, std::uint64_t piece,
                              std::uint32_t rank) {
  return gdx_wait<S, P>(team, &words_of(team, rank).data, Compare::kGreaterEqual, call.base + piece, rank);
}

// Puts a piece to `rank` once that has begun the call, or is ready for pieces after number `ready`.
template <Mode M, Scope S, Placement P, typename T>
GDX_DEVICE Status send_when_ready(const TeamHandle& team, const CollectiveCall& call, T* to, const T* from,
                                  std::size_t count, std::uint32_t rank, std::uint64_t ready = 0) {
  const Status status = await_ready<S, P>(team, call, rank, ready);
  return status == Status::kOk ? send_piece<M, S, P>(team, call, to, from, count, ready + 1, rank) : status;
}

// Makes a call whose steps are `steps(call)`. `alike`: what all ranks must give it alike, if anything.
template <Scope S, Placement P, typename Steps>
GDX_DEVICE Status make_call(const TeamHandle& team, std::uint64_t alike, const Steps& steps) {
  const CollectiveCall call = begin_call<S, P>(team, alike);
  return call.status == Status::kOk ? end_call<S>(team, steps(call)) : call.status;
}
template <Scope S, Placement P, typename Steps>
GDX_DEVICE Status make_call(const TeamHandle& team, const Steps& steps) {
  return make_call<S, P>(team, 0, steps);
}
// The same of a call with a root.
template <Scope S, Placement P, typename Steps>
GDX_DEVICE Status make_rooted_call(const TeamHandle& team, std::uint64_t alike, std::uint32_t root,
                                   const void* to, const Steps& steps) {
  if (root < team.size) return make_call<S, P>(team, alike, steps);
  return record_fault(team.copy, Status::kInvalidArgument, root, to, 0);
}

// Copies between memory of this rank; nothing where both are one.
template <Scope S, typename T>
GDX_DEVICE void copy_own(T* to, const T* from, std::size_t count) {
  if (to != from)
    exec::copy<S>(reinterpret_cast<std::byte*>(to), reinterpret_cast<const std::byte*>(from),
                  count * sizeof(T));
}

// Part `index` of `parts` of `count` elements, which differ by one at most.
struct Part {
  std::size_t at;
  std::size_t count;
};
GDX_DEVICE Part part_of(std::size_t count, std::uint32_t index, std::uint32_t parts) {
  const std::size_t each = count / parts;
  const std::size_t longer = count % parts;
  const std::size_t at = index * each + (index < longer ? index : longer);
  return {at, each + (index < longer ? 1 : 0)};
}

}  // namespace gdx::device::impl
