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
    return record_fault(team.copy, Status::kInvalidLength, team.rank, to, 0);
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

// Two ways round the ring, as one stream of chunks: on the first, parts come from the left, are reduced, and
// go on to the right; on the second, results are handed on. A rank sends some chunks ahead of those that it
// receives, so that neighbours need not run at the same time. In step s of the first way it receives part
// rank - s - 1, which then holds what s + 2 ranks have: after the last step it has the result of part rank
// + 1.
template <Reduce R, Mode M, Scope S, Placement P, typename T>
class ReducingRing {
 public:
  // Takes what comes on the first way into `to`, or into four slots of scratch where `to` is `from`.
  GDX_DEVICE ReducingRing(const TeamHandle& team, const CollectiveCall& call, T* to, const T* from,
                          std::size_t count)
      : team_(team),
        call_(call),
        to_(to),
        from_(from),
        count_(count),
        left_((team.rank + team.size - 1) % team.size),
        right_((team.rank + 1) % team.size),
        chunk_(chunk_of(part_of(count, 0, team.size).count, team.scratch_bytes / kSlots / sizeof(T))),
        chunks_(chunk_ == 0 ? 0 : (part_of(count, 0, team.size).count + chunk_ - 1) / chunk_) {}

  // Returns whether signals can count the chunks.
  [[nodiscard]] GDX_DEVICE bool is_countable() const {
    return chunk_ != 0 && chunks_ < (1u << kStepBits) / (2 * team_.size);
  }
  GDX_DEVICE Status run() {
    Status status = signal_ready<S, P>(team_, call_, left_);
    if (status == Status::kOk) status = await_ready<S, P>(team_, call_, right_);
    const std::size_t all = 2 * (team_.size - 1) * chunks_;
    const std::size_t most_ahead = uses_slots() ? kSlots - 1 : chunks_;
    const std::size_t ahead = chunks_ - 1 < most_ahead ? chunks_ - 1 : most_ahead;
    for (std::size_t i = 0; i < all + ahead && status == Status::kOk; ++i) {
      if (i < all) status = send(i);
      if (status == Status::kOk && i >= ahead) status = receive(i - ahead);
    }
    return status == Status::kOk ? gdx_flush<S, P>(team_, right_) : status;
  }

 private:
  static constexpr std::uint32_t kSlots = 4;

  GDX_DEVICE bool uses_slots() const { return to_ == from_; }
  // Returns the elements of a chunk: those of a slot, or without slots half a part, which fits into a cache.
  [[nodiscard]] GDX_DEVICE std::size_t chunk_of(std::size_t part, std::size_t slot) const {
    constexpr std::size_t kMost = (512 << 10) / sizeof(T);
    const std::size_t half = part / 2 < kMost ? (part + 1) / 2 : kMost;
    return uses_slots() || half < slot ? slot : half;
  }
  GDX_DEVICE bool reduces(std::size_t i) const { return i < (team_.size - 1) * chunks_; }
  // Returns the chunk at place `i` of the stream that this rank sends, or, of the part before it, receives.
  // Parts differ in length, so the last may be empty.
  GDX_DEVICE Part chunk_at(std::size_t i, std::uint32_t before) const {
    const auto step = static_cast<std::uint32_t>(i / chunks_) + before;
    const Part part = part_of(count_, (team_.rank + 2 * team_.size - step) % team_.size, team_.size);
    const std::size_t at = i % chunks_ * chunk_;
    const std::size_t rest = at >= part.count ? 0 : part.count - at;
    return {part.at + at, rest < chunk_ ? rest : chunk_};
  }
  GDX_DEVICE T* slot(std::uint64_t number) const {
    return reinterpret_cast<T*>(scratch_of(team_)) + number % kSlots * chunk_;
  }
  GDX_DEVICE Status send(std::size_t i) {
    const Part chunk = chunk_at(i, 0);
    if (chunk.count == 0) return Status::kOk;
    T* place = to_ + chunk.at;
    if (reduces(i) && uses_slots()) {
      place = slot(sent_);
      if (sent_ >= kSlots) {
        const Status status = gdx_wait<S, P>(team_, &words_of(team_, right_).taken, Compare::kGreaterEqual,
                                             call_.base + sent_ - kSlots + 1, right_);
        if (status != Status::kOk) return status;
      }
    }
    const T* const source = i < chunks_ ? from_ : to_;
    return send_piece<M, S, P>(team_, call_, place, source + chunk.at, chunk.count, ++sent_, right_);
  }
  GDX_DEVICE Status receive(std::size_t i) {
    const Part chunk = chunk_at(i, 1);
    if (chunk.count == 0) return Status::kOk;
    const Status status = await_piece<S, P>(team_, call_, received_ + 1, left_);
    ++received_;
    if (status != Status::kOk || !reduces(i)) return status;
    T* const result = to_ + chunk.at;
    const T* const come = uses_slots() ? slot(received_ - 1) : result;
    const bool is_last = i / chunks_ + 2 == team_.size;
    for (std::size_t k = exec::thread_rank<S>(); k < chunk.count; k += exec::thread_count<S>()) {
      const T all = reduced<R>(from_[chunk.at + k], come[k]);
      result[k] = is_last ? finished<R>(all, team_.size) : all;
    }
    exec::sync<S>();
    if (!uses_slots()) return status;
    return gdx_signal<S, P>(team_, &words_of(team_, team_.rank).taken, call_.base + received_, SignalOp::kSet,
                            left_);
  }

  const TeamHandle& team_;
  const CollectiveCall& call_;
  T* const to_;
  const T* const from_;
  const std::size_t count_;
  const std::uint32_t left_;
  const std::uint32_t right_;
  const std::size_t chunk_;   // elements
  const std::size_t chunks_;  // of the longest part
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
};

// Reduces in two ways round the ring. A result of the second way has passed all ranks, so its holder knows
// that all scratch has been read, and that nobody needs what it replaces.
template <Reduce R, Mode M, Scope S, Placement P, typename T>
GDX_DEVICE Status all_reduce_round_a_ring(const TeamHandle& team, const CollectiveCall& call, T* to,
                                          const T* from, std::size_t count) {
  ReducingRing<R, M, S, P, T> ring(team, call, to, from, count);
  if (ring.is_countable()) return ring.run();
  return record_fault(team.copy, Status::kInvalidLength, team.rank, to, 0);
}

}  // namespace gdx::device::impl
