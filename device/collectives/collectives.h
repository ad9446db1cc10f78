// Collective calls of kernels: every rank of a team makes the same ones in the same order on a lane.
//
//   gdx_barrier<Scope::kBlock>(team);
//   gdx_all_reduce<Reduce::kSum, Scope::kBlock>(team, x, x, n);
//
// Rules for every call:
//  - Template arguments are a Reduce, a Scope, a Placement and a Mode of the puts, in this order, where a
//  call has them.
//  - Those of device/team.h. `to` and `from` are in the team's heap or a window, at every rank at the
//  same place.
//  - One call at a time on a lane: another is kBusy. Calls on different lanes (TeamHandle::on_lane) run at
//  once.
//  - A rank's `to` is written only after that rank has made the call. So no barrier is needed before one.
//  - kOk means that this rank's result is there, and that its memory may be changed. Others may not be done
//  yet.
//  - A rank that is missing ends the call at all ranks that wait for it, within the team's timeout, by
//  gdx_wait's
//    statuses. Later calls on that lane return that status, because ranks no longer agree on how far they
//    are.
//  - Counts, roots, types and reductions are equal at all ranks. An all-reduce is in place at all ranks or at
//  none, and so is a call made through a piece of the heap. A kernel does not compare them: where they
//  differ, results are wrong at kOk, or a rank times out. Team::barrier and close on the host then fail, on
//  lanes 0 to 7 of a heap in host memory.
// Source: docs/collectives.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/collectives/call.h"
#include "device/collectives/reduce.h"

namespace gdx {

// Returns once every rank has called it, and all that this rank had posted before, by the handle's lanes, is
// complete. So whoever returns reads what any rank had put anywhere before its call. Takes ceil(log2(ranks))
// signals after a gdx_quiet. Errors: the rules'; those of gdx_quiet.
template <Scope S = Scope::kThread, Placement P = Placement::kHost>
GDX_DEVICE Status gdx_barrier(const TeamHandle& team) {
  using namespace device::impl;
  return make_call<S, P>(team, [&](const CollectiveCall& call) {
    Status status = gdx_quiet<S, P>(team);
    std::uint64_t* arrived = area_words(team).arrived;
    for (std::uint32_t far = 1; far < team.size && status == Status::kOk; far *= 2, ++arrived) {
      const std::uint32_t to = (team.rank + far) % team.size;
      const std::uint32_t from = (team.rank + team.size - far) % team.size;
      status = gdx_signal<S, P>(team, arrived, call.base, SignalOp::kSet, to);
      if (status == Status::kOk)
        status = gdx_wait<S, P>(team, arrived, Compare::kGreaterEqual, call.base, from);
    }
    return status;
  });
}

// Copies `count` elements of `from` at rank `root` to `to` at every rank, down a binomial tree. Errors: the
// rules'; kInvalidArgument for no such root.
template <Scope S = Scope::kThread, Placement P = Placement::kHost, Mode M = Mode::kAuto, typename T>
GDX_DEVICE Status gdx_broadcast(const TeamHandle& team, T* to, const T* from, std::size_t count,
                                std::uint32_t root) {
  using namespace device::impl;
  const std::uint64_t alike = alike_of<T>(CollectiveKind::kBroadcast, count, root);
  return make_rooted_call<S, P>(team, alike, root, to, [&](const CollectiveCall& call) {
    const std::uint32_t size = team.size;
    const std::uint32_t place = (team.rank + size - root) % size;  // in the tree, whose root is 0
    const std::uint32_t bit = place & (0 - place);                 // lowest that is set
    const T* source = from;
    Status status = Status::kOk;
    if (place != 0) {
      const std::uint32_t parent = (place - bit + root) % size;
      status = signal_ready<S, P>(team, call, parent);
      if (status == Status::kOk) status = await_piece<S, P>(team, call, 1, parent);
      source = to;
    } else {
      copy_own<S>(to, from, count);
      exec::sync<S>();
    }
    for (std::uint32_t far = place == 0 ? 1u << 31 : bit / 2; far != 0 && status == Status::kOk; far /= 2) {
      if (far >= size || place + far >= size) continue;
      const std::uint32_t child = (place + far + root) % size;
      status = send_when_ready<M, S, P>(team, call, to, source, count, child);
    }
    if (status == Status::kOk) status = gdx_quiet<S, P>(team);
    return status;
  });
}

// Gathers `count` elements of `from` of every rank in `to`, by rank, at every rank, round a ring: each rank
// sends size - 1 pieces of `count` to its neighbour. `from` may be this rank's place in `to`. Errors: the
// rules'.
template <Scope S = Scope::kThread, Placement P = Placement::kHost, Mode M = Mode::kAuto, typename T>
GDX_DEVICE Status gdx_all_gather(const TeamHandle& team, T* to, const T* from, std::size_t count) {
  using namespace device::impl;
  const std::uint64_t alike = alike_of<T>(CollectiveKind::kAllGather, count);
  return make_call<S, P>(team, alike, [&](const CollectiveCall& call) {
    const std::uint32_t size = team.size;
    const std::uint32_t right = (team.rank + 1) % size;
    const std::uint32_t left = (team.rank + size - 1) % size;
    copy_own<S>(to + team.rank * count, from, count);
    exec::sync<S>();
    Status status = Status::kOk;
    if (size > 1) status = signal_ready<S, P>(team, call, left);
    if (size > 1 && status == Status::kOk) status = await_ready<S, P>(team, call, right);
    for (std::uint32_t step = 0; step + 1 < size && status == Status::kOk; ++step) {
      T* const piece = to + (team.rank + size - step) % size * count;
      status = send_piece<M, S, P>(team, call, piece, piece, count, step + 1, right);
      if (status == Status::kOk) status = await_piece<S, P>(team, call, step + 1, left);
    }
    if (status == Status::kOk) status = gdx_flush<S, P>(team, right);
    return status;
  });
}

// Gathers `count` elements of `from` of every rank in `to` at `root`, by rank. Errors: the rules';
// kInvalidArgument for no such root.
template <Scope S = Scope::kThread, Placement P = Placement::kHost, Mode M = Mode::kAuto, typename T>
GDX_DEVICE Status gdx_gather(const TeamHandle& team, T* to, const T* from, std::size_t count,
                             std::uint32_t root) {
  using namespace device::impl;
  const std::uint64_t alike = alike_of<T>(CollectiveKind::kGather, count, root);
  return make_rooted_call<S, P>(team, alike, root, to, [&](const CollectiveCall& call) {
    Status status = Status::kOk;
    T* const place = to + team.rank * count;
    if (team.rank == root) {
      copy_own<S>(place, from, count);
      exec::sync<S>();
      status = for_each_other(team, [&](std::uint32_t rank) { return signal_ready<S, P>(team, call, rank); });
      if (status == Status::kOk)
        status =
            for_each_other(team, [&](std::uint32_t rank) { return await_piece<S, P>(team, call, 1, rank); });
    } else {
      status = send_when_ready<M, S, P>(team, call, place, from, count, root);
      if (status == Status::kOk) status = gdx_flush<S, P>(team, root);
    }
    return status;
  });
}

// Copies piece r of `from` at `root`, of `count` elements, to `to` at each rank r. Errors: the rules';
// kInvalidArgument for no such root.
template <Scope S = Scope::kThread, Placement P = Placement::kHost, Mode M = Mode::kAuto, typename T>
GDX_DEVICE Status gdx_scatter(const TeamHandle& team, T* to, const T* from, std::size_t count,
                              std::uint32_t root) {
  using namespace device::impl;
  const std::uint64_t alike = alike_of<T>(CollectiveKind::kScatter, count, root);
  return make_rooted_call<S, P>(team, alike, root, to, [&](const CollectiveCall& call) {
    Status status = Status::kOk;
    if (team.rank == root) {
      status = for_each_other(team, [&](std::uint32_t rank) {
        return send_when_ready<M, S, P>(team, call, to, from + rank * count, count, rank);
      });
      copy_own<S>(to, from + root * count, count);
      exec::sync<S>();
      if (status == Status::kOk) status = gdx_quiet<S, P>(team);
    } else {
      status = signal_ready<S, P>(team, call, root);
      if (status == Status::kOk) status = await_piece<S, P>(team, call, 1, root);
    }
    return status;
  });
}

// Copies piece r of `from`, of `count` elements, to place `rank` of `to` at each rank r. Each rank sends
// one piece to each other. `to` and `from` must not overlap. Errors: the rules'.
template <Scope S = Scope::kThread, Placement P = Placement::kHost, Mode M = Mode::kAuto, typename T>
GDX_DEVICE Status gdx_all_to_all(const TeamHandle& team, T* to, const T* from, std::size_t count) {
  using namespace device::impl;
  const std::uint64_t alike = alike_of<T>(CollectiveKind::kAllToAll, count);
  return make_call<S, P>(team, alike, [&](const CollectiveCall& call) {
    Status status =
        for_each_other(team, [&](std::uint32_t rank) { return signal_ready<S, P>(team, call, rank); });
    if (status == Status::kOk)
      status = for_each_other(team, [&](std::uint32_t rank) {
        return send_when_ready<M, S, P>(team, call, to + team.rank * count, from + rank * count, count, rank);
      });
    copy_own<S>(to + team.rank * count, from + team.rank * count, count);
    exec::sync<S>();
    if (status == Status::kOk)
      status =
          for_each_other(team, [&](std::uint32_t rank) { return await_piece<S, P>(team, call, 1, rank); });
    if (status == Status::kOk) status = gdx_quiet<S, P>(team);
    return status;
  });
}

// Copies counts[r] elements of `from` from element from_at[r] on to each rank r, which places them in its
// `to` from element to_at[this rank] of its own call on. So counts and from_at are by who gets a piece, to_at
// by who sends one; each has `size` entries in any memory that the kernel reads. Each rank sends size - 1
// pieces and as many places. `to` and `from` must not overlap. Errors: the rules'.
template <Scope S = Scope::kThread, Placement P = Placement::kHost, Mode M = Mode::kAuto, typename T>
GDX_DEVICE Status gdx_all_to_all_v(const TeamHandle& team, T* to, const std::size_t* to_at, const T* from,
                                   const std::size_t* from_at, const std::size_t* counts) {
  using namespace device::impl;
  const std::uint64_t alike = alike_of<T>(CollectiveKind::kAllToAllV, 0);  // counts are each rank's own
  return make_call<S, P>(team, alike, [&](const CollectiveCall& call) {
    const std::uint32_t own = team.rank;
    Status status = for_each_other(team, [&](std::uint32_t rank) {
      const Status placed = gdx_put_value<S, P>(team, &words_of(team, own).place, to_at[rank], rank);
      return placed == Status::kOk ? signal_ready<S, P>(team, call, rank) : placed;
    });
    if (status == Status::kOk)
      status = for_each_other(team, [&](std::uint32_t rank) {
        const Status ready = await_ready<S, P>(team, call, rank);
        if (ready != Status::kOk) return ready;
        T* const place = to + exec::load_acquire(&words_of(team, rank).place);
        return send_piece<M, S, P>(team, call, place, from + from_at[rank], counts[rank], 1, rank);
      });
    copy_own<S>(to + to_at[own], from + from_at[own], counts[own]);
    exec::sync<S>();
    if (status == Status::kOk)
      status =
          for_each_other(team, [&](std::uint32_t rank) { return await_piece<S, P>(team, call, 1, rank); });
    if (status == Status::kOk) status = gdx_quiet<S, P>(team);
    return status;
  });
}

// Reduces `count` elements of `from` of all ranks, element by element, in `to` at `root`. Errors: the rules';
// kInvalidArgument for no such root; kInvalidLength beyond a million chunks of scratch.
template <Reduce R, Scope S = Scope::kThread, Placement P = Placement::kHost, Mode M = Mode::kAuto,
          typename T>
GDX_DEVICE Status gdx_reduce(const TeamHandle& team, T* to, const T* from, std::size_t count,
                             std::uint32_t root) {
  using namespace device::impl;
  const std::uint64_t alike =
      alike_of<T>(CollectiveKind::kReduce, count, root, static_cast<std::uint32_t>(R));
  return make_rooted_call<S, P>(team, alike, root, to, [&](const CollectiveCall& call) {
    return reduce_in_chunks<R, M, S, P>(
        team, call, to, count, [&](std::uint32_t rank) { return rank == root; },
        [&](std::uint32_t) { return from; });
  });
}

// Reduces piece r of `from` of all ranks, of `count` elements, in `to` at each rank r. Each rank sends
// one piece to each other. Errors: the rules'; kInvalidLength beyond a million chunks of scratch.
template <Reduce R, Scope S = Scope::kThread, Placement P = Placement::kHost, Mode M = Mode::kAuto,
          typename T>
GDX_DEVICE Status gdx_reduce_scatter(const TeamHandle& team, T* to, const T* from, std::size_t count) {
  using namespace device::impl;
  const std::uint64_t alike =
      alike_of<T>(CollectiveKind::kReduceScatter, count, 0, static_cast<std::uint32_t>(R));
  return make_call<S, P>(team, alike, [&](const CollectiveCall& call) {
    return reduce_in_chunks<R, M, S, P>(
        team, call, to, count, [](std::uint32_t) { return true; },
        [&](std::uint32_t rank) { return from + rank * count; });
  });
}

// Reduces `count` elements of `from` of all ranks, element by element, in `to` at every rank. `from` may be
// `to`, at all ranks or at none. All ranks get equal results; floating-point numbers are reduced in an order
// that depends on `count` and the number of ranks alone. A vector of which the scratch holds one for each
// rank goes from each rank to all; a longer one round a ring, 2 * (size - 1) / size of its bytes from each
// rank. T: integers of 1 to 8 B, float, double, __half, __nv_bfloat16, in whose own precision they are
// reduced. Errors: the rules'; kInvalidLength beyond half a million chunks of the ring.
template <Reduce R, Scope S = Scope::kThread, Placement P = Placement::kHost, Mode M = Mode::kAuto,
          typename T>
GDX_DEVICE Status gdx_all_reduce(const TeamHandle& team, T* to, const T* from, std::size_t count) {
  using namespace device::impl;
  const std::uint32_t in_place = to == from ? 1 : 0;  // decides where pieces land
  const std::uint64_t alike =
      alike_of<T>(CollectiveKind::kAllReduce, count, 0, static_cast<std::uint32_t>(R) | in_place << 3);
  return make_call<S, P>(team, alike, [&](const CollectiveCall& call) {
    const std::size_t slot_bytes = (count * sizeof(T) + 15) / 16 * 16;
    Status status = Status::kOk;
    if (team.size == 1 || count == 0) {
      copy_own<S>(to, from, count);  // an average, too
      exec::sync<S>();
    } else if (count <= team.scratch_bytes / sizeof(T) && slot_bytes <= team.scratch_bytes / team.size) {
      status = all_reduce_directly<R, M, S, P>(team, call, to, from, count, slot_bytes);
    } else {
      status = all_reduce_round_a_ring<R, M, S, P>(team, call, to, from, count);
    }
    return status;
  });
}

}  // namespace gdx

using gdx::gdx_all_gather;
using gdx::gdx_all_reduce;
using gdx::gdx_all_to_all;
using gdx::gdx_all_to_all_v;
using gdx::gdx_barrier;
using gdx::gdx_broadcast;
using gdx::gdx_gather;
using gdx::gdx_reduce;
using gdx::gdx_reduce_scatter;
using gdx::gdx_scatter;
