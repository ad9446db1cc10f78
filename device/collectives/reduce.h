// Reductions of elements, and the ring in which ranks reduce long vectors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "device/collectives/call.h"
#include "device/exec/halves.h"

namespace gdx {

// Of integers kAverage is the sum, which may wrap around, divided and cut off towards zero.
enum class Reduce : std::uint32_t { kSum = 0, kProduct = 1, kMin = 2, kMax = 3, kAverage = 4 };

}  // namespace gdx

namespace gdx::device::impl {

template <Reduce R, typename T>
GDX_DEVICE T reduced(T a, T b) {
  if constexpr (R == Reduce::kSum || R == Reduce::kAverage) return static_cast<T>(a + b);
  if constexpr (R == Reduce::kProduct) return static_cast<T>(a * b);
  if constexpr (R == Reduce::kMin) return b < a ? b : a;
  if constexpr (R == Reduce::kMax) return a < b ? b : a;
}

// Returns the result of so many ranks, from what their elements were reduced to.
template <Reduce R, typename T>
GDX_DEVICE T finished(T all, std::uint32_t ranks) {
  if constexpr (R != Reduce::kAverage) {
    return all;
  } else if constexpr (std::is_integral_v<T>) {
    using Wide = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
    return static_cast<T>(static_cast<Wide>(all) / static_cast<Wide>(ranks));
  } else {
    return static_cast<T>(all / static_cast<T>(static_cast<float>(ranks)));
  }
}

// Reduces `from` into `to`, with all threads of the scope; they have synchronised before the next access.
template <Reduce R, Scope S, typename T>
GDX_DEVICE void reduce_into(T* to, const T* from, std::size_t count) {
  for (std::size_t i = exec::thread_rank<S>(); i < count; i += exec::thread_count<S>())
    to[i] = reduced<R>(to[i], from[i]);
  exec::sync<S>();
}

// Collects `count` elements of every rank in this rank's scratch, a slot of `slot_bytes` for each, and sends
// this rank's to those that collect. `collects`, `source`: which ranks do, and what each of them is to get.
// Piece numbers from `piece` on are used up, one for each call.
template <Mode M, Scope S, Placement P, typename T, typename Collects, typename Source>
GDX_DEVICE Status collect_in_scratch(const TeamHandle& team, const CollectiveCall& call, std::size_t count,
                                     std::size_t slot_bytes, std::uint64_t piece, const Collects& collects,
                                     const Source& source) {
  const auto slot = [&](std::uint32_t rank) {
    return reinterpret_cast<T*>(scratch_of(team) + rank * slot_bytes);
  };
  const bool mine = collects(team.rank);
  Status status = Status::kOk;
  if (mine)
    status =
        for_each_other(team, [&](std::uint32_t rank) { return signal_ready<S, P>(team, call, rank, piece); });
  if (status != Status::kOk) return status;
  status = for_each_other(team, [&](std::uint32_t rank) {
    if (!collects(rank)) return Status::kOk;
    return send_when_ready<M, S, P>(team, call, slot(team.rank), source(rank), count, rank, piece);
  });
  if (!mine || status != Status::kOk) return status;
  copy_own<S>(slot(team.rank), source(team.rank), count);
  exec::sync<S>();
  return for_each_other(team,
                        [&](std::uint32_t rank) { return await_piece<S, P>(team, call, piece + 1, rank); });
}

// Reduces what was collected, in the order of ranks. So all ranks that collect the same have equal results,
// of floating-point numbers too.
template <Reduce R, Scope S, typename T>
GDX_DEVICE void reduce_scratch(const TeamHandle& team, T* to, std::size_t count, std::size_t slot_bytes) {
  const auto slot = [&](std::uint32_t rank) {
    return reinterpret_cast<T*>(scratch_of(team) + rank * slot_bytes);
  };
  for (std::size_t i = exec::thread_rank<S>(); i < count; i += exec::thread_count<S>()) {
    T all = slot(0)[i];
    for (std::uint32_t rank = 1; rank < team.size; ++rank) all = reduced<R>(all, slot(rank)[i]);
    to[i] = finished<R>(all, team.size);
  }
  exec::sync<S>();
}

// Reduces a vector that fits into scratch once for each rank: all collect it from all.
template <Reduce R, Mode M, Scope S, Placement P, typename T>
GDX_DEVICE Status all_reduce_directly(const TeamHandle& team, const CollectiveCall& call, T* to,
                                      const T* from, std::size_t count, std::size_t slot_bytes) {
  Status status = collect_in_scratch<M, S, P, T>(
      team, call, count, slot_bytes, 0, [](std::uint32_t) { return true; },
      [&](std::uint32_t) { return from; });
  if (status == Status::kOk) status = gdx_quiet<S, P>(team);  // `from` may be `to`
  if (status == Status::kOk) reduce_scratch<R, S>(team, to, count, slot_bytes);
  return status;
}

// Reduces at the ranks that collect, in chunks for which every rank's slot has room. `source(rank)`: what
// `rank` gets.
template <Reduce R, Mode M, Scope S, Placement P, typename T, typename Collects, typename Source>
GDX_DEVICE Status reduce_in_chunks(const TeamHandle& team, const CollectiveCall& call, T* to,
                                   std::size_t count, const Collects& collects, const Source& source) {
  const std::size_t slot_bytes = team.scratch_bytes / team.size / 16 * 16;
  const std::size_t most = slot_bytes / sizeof(T);
  if (most == 0 || count / most + 1 >= 1u << kStepBits)
    return record_fault(team.copy, Status::kInvalidLength, team.rank, to, count * sizeof(T));
  Status status = Status::kOk;
  std::uint64_t piece = 0;
  for (std::size_t at = 0; at < count && status == Status::kOk; at += most, ++piece) {
    const std::size_t chunk = count - at < most ? count - at : most;
    status = collect_in_scratch<M, S, P, T>(team, call, chunk, slot_bytes, piece, collects,
                                            [&](std::uint32_t rank) { return source(rank) + at; });
    if (status == Status::kOk && collects(team.rank)) reduce_scratch<R, S>(team, to + at, chunk, slot_bytes);
  }
  return status == Status::kOk ? gdx_quiet<S, P>(team) : status;
}

// One way round the ring: partial results come from the left into scratch, in chunks for which there is room,
// are reduced into `to`, and go on to the right. In the end this rank has the whole result of part rank + 1.
template <Reduce R, Mode M, Scope S, Placement P, typename T>
struct ReducingRing {
  const TeamHandle& team;
  const CollectiveCall& call;
  std::uint32_t left;
  std::uint32_t right;
  std::size_t slot_count;  // elements of a chunk
  std::uint64_t sent;      // chunks, of all steps
  std::uint64_t received;

  static constexpr std::uint32_t kSlots = 4;

  GDX_DEVICE T* slot(std::uint64_t chunk) const {
    return reinterpret_cast<T*>(scratch_of(team)) + chunk % kSlots * slot_count;
  }
  GDX_DEVICE Status send(const T* from, std::size_t count) {
    if (sent >= kSlots) {
      const Status status = gdx_wait<S, P>(team, &words_of(team, right).taken, Compare::kGreaterEqual,
                                           call.base + sent - kSlots + 1, right);
      if (status != Status::kOk) return status;
    }
    ++sent;
    return send_piece<M, S, P>(team, call, slot(sent - 1), from, count, sent, right);
  }
  GDX_DEVICE Status receive(T* to, std::size_t count) {
    const Status status = await_piece<S, P>(team, call, received + 1, left);
    if (status != Status::kOk) return status;
    reduce_into<R, S>(to, slot(received), count);
    ++received;
    return gdx_signal<S, P>(team, &words_of(team, team.rank).taken, call.base + received, SignalOp::kSet,
                            left);
  }
  // Sends one part and receives another, a chunk of each in turn, so that neither end waits for all of it.
  GDX_DEVICE Status step(T* vector, const Part& out, const Part& in) {
    Status status = Status::kOk;
    for (std::size_t at = 0; at < out.count || at < in.count; at += slot_count) {
      const auto rest = [&](const Part& part) {
        return at >= part.count ? 0 : part.count - at < slot_count ? part.count - at : slot_count;
      };
      if (rest(out) != 0) status = send(vector + out.at + at, rest(out));
      if (status == Status::kOk && rest(in) != 0) status = receive(vector + in.at + at, rest(in));
      if (status != Status::kOk) return status;
    }
    return status;
  }
};

// Reduces in two ways round the ring: parts are reduced on the first, and results handed on in the second. A
// result of the second way has passed all ranks, so its holder knows that all scratch has been read.
template <Reduce R, Mode M, Scope S, Placement P, typename T>
GDX_DEVICE Status all_reduce_round_a_ring(const TeamHandle& team, const CollectiveCall& call, T* to,
                                          const T* from, std::size_t count) {
  const std::uint32_t size = team.size;
  ReducingRing<R, M, S, P, T> ring{team,
                                   call,
                                   (team.rank + size - 1) % size,
                                   (team.rank + 1) % size,
                                   team.scratch_bytes / ReducingRing<R, M, S, P, T>::kSlots / sizeof(T),
                                   0,
                                   0};
  if (count / ring.slot_count + 2 * size >= 1u << kStepBits)
    return record_fault(team.copy, Status::kInvalidLength, team.rank, to, count * sizeof(T));
  const auto part = [&](std::uint32_t step) {
    return part_of(count, (team.rank + 2 * size - step) % size, size);
  };
  copy_own<S>(to, from, count);
  exec::sync<S>();
  Status status = signal_ready<S, P>(team, call, ring.left);
  if (status == Status::kOk) status = await_ready<S, P>(team, call, ring.right);
  for (std::uint32_t step = 0; step + 1 < size && status == Status::kOk; ++step)
    status = ring.step(to, part(step), part(step + 1));
  if constexpr (R == Reduce::kAverage) {
    const Part own = part(size - 1);
    for (std::size_t i = exec::thread_rank<S>(); i < own.count; i += exec::thread_count<S>())
      to[own.at + i] = finished<R>(to[own.at + i], size);
    exec::sync<S>();
  }
  for (std::uint32_t step = 0; step + 1 < size && status == Status::kOk; ++step) {
    const Part out = part(step + size - 1);
    status = send_piece<M, S, P>(team, call, to + out.at, to + out.at, out.count, ++ring.sent, ring.right);
    if (status == Status::kOk) status = await_piece<S, P>(team, call, ++ring.received, ring.left);
  }
  return status == Status::kOk ? gdx_flush<S, P>(team, ring.right) : status;
}

}  // namespace gdx::device::impl
