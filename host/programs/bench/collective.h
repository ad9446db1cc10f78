// Rounds of all ranks, by one scope of a kernel.
#pragma once

#include "device/collectives/collectives.h"
#include "host/programs/bench/load.h"

namespace gdx::bench {

// Rank 0 starts the others, and waits for them.
template <Mode M, Scope S>
GDX_DEVICE Status incast(const Round& round, std::uint64_t bytes, std::uint64_t value) {
  const TeamHandle& team = round.team;
  Status status = Status::kOk;
  if (team.rank != 0) {
    status = gdx_wait<S>(team, round.words, Compare::kGreaterEqual, value, 0);
    if (status != Status::kOk) return status;
    return gdx_put_signal<M, S>(team, round.to + team.rank * bytes, round.from, bytes,
                                round.words + team.rank, value, SignalOp::kSet, 0);
  }
  for (std::uint32_t rank = 1; rank < team.size && status == Status::kOk; ++rank)
    status = gdx_signal<S>(team, round.words, value, SignalOp::kSet, rank);
  for (std::uint32_t rank = 1; rank < team.size && status == Status::kOk; ++rank)
    status = gdx_wait<S>(team, round.words + rank, Compare::kGreaterEqual, value, rank);
  return status;
}

// Sends each rank one message for each token, and waits for the signals of all others. Ranks take turns, so
// that none gets all of its messages at the end; each begins with the next rank, so that none is everybody's
// first.
template <Mode M, Scope S>
GDX_DEVICE Status exchange_tokens(const Load& load, std::uint64_t value) {
  const Round& round = load.round;
  const TeamHandle& team = round.team;
  Status status = Status::kOk;
  for (std::uint64_t message = 0; message < load.slots; ++message) {
    for (std::uint32_t i = 1; i < team.size && status == Status::kOk; ++i) {
      const std::uint32_t rank = (team.rank + i) % team.size;
      if (message >= round.messages[rank]) continue;
      status =
          gdx_put<M, S>(team, round.to + (team.rank * load.slots + message) * load.stride_bytes,
                        round.from + (rank * load.slots + message) * load.stride_bytes, load.bytes, rank);
    }
  }
  for (std::uint32_t rank = 0; rank < team.size && status == Status::kOk; ++rank)
    if (rank != team.rank) status = gdx_signal<S>(team, round.words + team.rank, value, SignalOp::kSet, rank);
  for (std::uint32_t rank = 0; rank < team.size && status == Status::kOk; ++rank)
    if (rank != team.rank)
      status = gdx_wait<S>(team, round.words + rank, Compare::kGreaterEqual, value, rank);
  return status;
}

// Makes round number `number`, from 0, to its end at this rank.
template <Mode M, Scope S>
GDX_DEVICE Status make_round(const Load& load, std::uint64_t number) {
  const Round& round = load.round;
  switch (load.operation) {
    case Operation::kAllToAll:
      return gdx_all_to_all<S, Placement::kHost, M>(round.team, round.to, round.from, load.bytes);
    case Operation::kIncast: return incast<M, S>(round, load.bytes, load.first_sequence + number);
    case Operation::kDispatch:
    case Operation::kCombine: return exchange_tokens<M, S>(load, load.first_sequence + number);
    default:
      return gdx_all_reduce<Reduce::kSum, S, Placement::kHost, M>(
          round.team, reinterpret_cast<float*>(round.to), reinterpret_cast<const float*>(round.from),
          load.bytes / sizeof(float));
  }
}

}  // namespace gdx::bench
