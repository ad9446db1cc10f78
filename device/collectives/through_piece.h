// Collective calls of kernels on memory outside the heap, such as a buffer that another library made. Each is
// the call of that name with a piece of the heap behind the team:
//
//   const HeapPiece piece{memory, bytes};                    of Team::allocate, equal at every rank
//   gdx_all_reduce<Reduce::kSum, Scope::kBlock>(team, piece, x, x, n);
//
// Rules, beside those of collectives.h:
//  - Peers write into the piece alone. The call goes in rounds of as many elements of each vector as the
//    piece holds, and copies them into it before a round and out of it behind.
//  - The cost is these two copies of every byte, by the scope that calls and not while a round goes on, and
//    the latency of a call for each round. A piece of 2 vectors takes an all-reduce, broadcast or reduce in
//    one round, of 2 for each rank an all-to-all, of one more than ranks the others.
//  - `to` and `from` may be anywhere that the kernel reaches, in the heap too. A rank that gives or gets
//    nothing, because it is not the root, may pass null.
//  - No other call uses the piece meanwhile, or the lane, because one that comes between two rounds is not
//    refused. All ranks make this form of a call, or all the other one: where they differ, the host's next
//    barrier() or close() fails, or the call ends by its timeout.
//  - "Errors: the rules'" has kInvalidLength for a piece that holds no element of each vector, too.
// Source: docs/collectives.md, "Memory outside the heap".
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/collectives/collectives.h"

namespace gdx {

// Part of a team's heap, at every rank at the same place, aligned as Team::allocate does.
struct HeapPiece {
  std::byte* data;
  std::size_t bytes;
};

namespace device::impl {

// Returns how many vectors a call of a kind has in its `from` and its `to` together.
constexpr std::uint32_t vectors_in(CollectiveKind kind, std::uint32_t ranks) {
  const bool many = kind == CollectiveKind::kScatter || kind == CollectiveKind::kAllToAll ||
                    kind == CollectiveKind::kAllToAllV || kind == CollectiveKind::kReduceScatter;
  return many ? ranks : 1;
}
constexpr std::uint32_t vectors_out(CollectiveKind kind, std::uint32_t ranks) {
  const bool many = kind == CollectiveKind::kGather || kind == CollectiveKind::kAllToAll ||
                    kind == CollectiveKind::kAllToAllV || kind == CollectiveKind::kAllGather;
  return many ? ranks : 1;
}

// Words in front of the vectors of an all-to-all with lengths: three for each rank and one, in whole 16 B.
constexpr std::size_t length_bytes(std::uint32_t ranks) {
  return (3 * std::size_t{ranks} + 2) / 2 * 2 * sizeof(std::size_t);
}

// Returns how many elements of each vector a piece holds.
constexpr std::size_t elements_of(CollectiveKind kind, std::uint32_t ranks, std::size_t piece_bytes,
                                  std::size_t element_bytes) {
  const std::size_t words = kind == CollectiveKind::kAllToAllV ? length_bytes(ranks) : 0;
  const std::size_t vectors = vectors_in(kind, ranks) + vectors_out(kind, ranks);
  return vectors == 0 || piece_bytes < words ? 0 : (piece_bytes - words) / element_bytes / vectors;
}

// Refuses a handle of another layout, and a piece that holds no element of each vector. A lane that does not
// exist is refused by the call itself.
template <CollectiveKind K, Placement P, typename T>
GDX_DEVICE Status check_piece(const TeamHandle& team, const HeapPiece& piece) {
  if (team.layout != team_layout(P)) return layout_status(team.layout);
  if (team.size == 0 || elements_of(K, team.size, piece.bytes, sizeof(T)) != 0) return Status::kOk;
  return record_fault(team.copy, Status::kInvalidLength, team.rank, piece.data, 0);
}

// Says whether calls of the lane go through a piece. It is mixed into what all ranks must give alike.
template <Scope S>
GDX_DEVICE void mark_through(const TeamHandle& team, bool through) {
  if (exec::thread_rank<S>() == 0 && team.size != 0) area_words(team).through = through ? 0x80 : 0;
}

// Makes `call(to, from, count)` in rounds. One round without elements is made for a call without any, because
// ranks whose memory is inside make a call.
template <CollectiveKind K, Scope S, Placement P, typename T, typename Call>
GDX_DEVICE Status go_through(const TeamHandle& team, const HeapPiece& piece, T* to, const T* from,
                             std::size_t count, std::uint32_t root, const Call& call) {
  if (const Status bad = check_piece<K, P, T>(team, piece); bad != Status::kOk) return bad;
  const std::uint32_t in = vectors_in(K, team.size);
  const std::uint32_t out = vectors_out(K, team.size);
  const std::size_t most = elements_of(K, team.size, piece.bytes, sizeof(T));
  const bool gives = team.rank == root || (K != CollectiveKind::kBroadcast && K != CollectiveKind::kScatter);
  const bool takes = team.rank == root || (K != CollectiveKind::kGather && K != CollectiveKind::kReduce);
  T* const inside = reinterpret_cast<T*>(piece.data);
  std::size_t at = 0;
  Status status = Status::kOk;
  mark_through<S>(team, true);
  do {
    const std::size_t round = count - at < most ? count - at : most;
    T* const result = inside + in * round;
    for (std::uint32_t i = 0; gives && i < in; ++i)
      copy_own<S>(inside + i * round, from + i * count + at, round);
    exec::sync<S>();
    status = call(result, static_cast<const T*>(inside), round);
    for (std::uint32_t i = 0; status == Status::kOk && takes && i < out; ++i)
      copy_own<S>(to + i * count + at, result + i * round, round);
    exec::sync<S>();
    at += most;
  } while (status == Status::kOk && at < count);
  mark_through<S>(team, false);
  return status;
}

// Words of an all-to-all with lengths through a piece, by rank. A slot of each rank in either half of the
// piece has room for a round.
struct PieceLengths {
  std::size_t* places;  // of the slots
  std::size_t* round;   // lengths that this rank sends in the round
  std::size_t* come;    // lengths that come to it in all rounds
  std::size_t* most;    // of all lengths at all ranks
};
GDX_DEVICE std::size_t rest_of(std::size_t length, std::size_t at, std::size_t most) {
  return length <= at ? 0 : length - at < most ? length - at : most;
}

// Tells the ranks what each of them gets, and all how many rounds there will be.
template <Scope S, Placement P>
GDX_DEVICE Status agree_on_lengths(const TeamHandle& team, const PieceLengths& lengths,
                                   const std::size_t* counts, std::size_t slot) {
  for (std::uint32_t i = exec::thread_rank<S>(); i < team.size; i += exec::thread_count<S>()) {
    lengths.places[i] = i * slot;
    lengths.round[i] = counts[i];
  }
  exec::sync<S>();
  const Status told = gdx_all_to_all<S, P>(team, lengths.come, lengths.round, 1);
  if (told != Status::kOk) return told;
  if (exec::thread_rank<S>() == 0) {
    *lengths.most = 0;
    for (std::uint32_t i = 0; i < team.size; ++i)
      if (lengths.come[i] > *lengths.most) *lengths.most = lengths.come[i];
  }
  exec::sync<S>();
  return gdx_all_reduce<Reduce::kMax, S, P>(team, lengths.most, lengths.most, 1);
}

}  // namespace device::impl

// Makes gdx_broadcast through a piece of the heap. Errors: the rules'; kInvalidArgument for no such root.
template <Scope S = Scope::kThread, Placement P = Placement::kHost, Mode M = Mode::kAuto, typename T>
GDX_DEVICE Status gdx_broadcast(const TeamHandle& team, const HeapPiece& piece, T* to, const T* from,
                                std::size_t count, std::uint32_t root) {
  return device::impl::go_through<device::impl::CollectiveKind::kBroadcast, S, P>(
      team, piece, to, from, count, root, [&](T* result, const T* inside, std::size_t n) {
        return gdx_broadcast<S, P, M>(team, result, inside, n, root);
      });
}

// Makes gdx_all_gather through a piece of the heap. Errors: the rules'.
template <Scope S = Scope::kThread, Placement P = Placement::kHost, Mode M = Mode::kAuto, typename T>
GDX_DEVICE Status gdx_all_gather(const TeamHandle& team, const HeapPiece& piece, T* to, const T* from,
                                 std::size_t count) {
  return device::impl::go_through<device::impl::CollectiveKind::kAllGather, S, P>(
      team, piece, to, from, count, 0, [&](T* result, const T* inside, std::size_t n) {
        return gdx_all_gather<S, P, M>(team, result, inside, n);
      });
}

// Makes gdx_gather through a piece of the heap. Errors: the rules'; kInvalidArgument for no such root.
template <Scope S = Scope::kThread, Placement P = Placement::kHost, Mode M = Mode::kAuto, typename T>
GDX_DEVICE Status gdx_gather(const TeamHandle& team, const HeapPiece& piece, T* to, const T* from,
                             std::size_t count, std::uint32_t root) {
  return device::impl::go_through<device::impl::CollectiveKind::kGather, S, P>(
      team, piece, to, from, count, root, [&](T* result, const T* inside, std::size_t n) {
        return gdx_gather<S, P, M>(team, result, inside, n, root);
      });
}

// Makes gdx_scatter through a piece of the heap. Errors: the rules'; kInvalidArgument for no such root.
template <Scope S = Scope::kThread, Placement P = Placement::kHost, Mode M = Mode::kAuto, typename T>
GDX_DEVICE Status gdx_scatter(const TeamHandle& team, const HeapPiece& piece, T* to, const T* from,
                              std::size_t count, std::uint32_t root) {
  return device::impl::go_through<device::impl::CollectiveKind::kScatter, S, P>(
      team, piece, to, from, count, root, [&](T* result, const T* inside, std::size_t n) {
        return gdx_scatter<S, P, M>(team, result, inside, n, root);
      });
}

// Makes gdx_all_to_all through a piece of the heap. Errors: the rules'.
template <Scope S = Scope::kThread, Placement P = Placement::kHost, Mode M = Mode::kAuto, typename T>
GDX_DEVICE Status gdx_all_to_all(const TeamHandle& team, const HeapPiece& piece, T* to, const T* from,
                                 std::size_t count) {
  return device::impl::go_through<device::impl::CollectiveKind::kAllToAll, S, P>(
      team, piece, to, from, count, 0, [&](T* result, const T* inside, std::size_t n) {
        return gdx_all_to_all<S, P, M>(team, result, inside, n);
      });
}

// Makes gdx_all_to_all_v through a piece of the heap, behind two short calls by which ranks tell their
// counts. The longest count of any two ranks sets the number of rounds. Errors: the rules'.
template <Scope S = Scope::kThread, Placement P = Placement::kHost, Mode M = Mode::kAuto, typename T>
GDX_DEVICE Status gdx_all_to_all_v(const TeamHandle& team, const HeapPiece& piece, T* to,
                                   const std::size_t* to_at, const T* from, const std::size_t* from_at,
                                   const std::size_t* counts) {
  using namespace device::impl;
  if (const Status bad = check_piece<CollectiveKind::kAllToAllV, P, T>(team, piece); bad != Status::kOk)
    return bad;
  const std::uint32_t size = team.size;
  const std::size_t slot = elements_of(CollectiveKind::kAllToAllV, size, piece.bytes, sizeof(T));
  auto* const words = reinterpret_cast<std::size_t*>(piece.data);
  const PieceLengths lengths{words, words + size, words + 2 * size, words + 3 * size};
  T* const inside = reinterpret_cast<T*>(piece.data + length_bytes(size));
  T* const result = inside + size * slot;
  mark_through<S>(team, true);
  Status status = agree_on_lengths<S, P>(team, lengths, counts, slot);
  for (std::size_t at = 0; status == Status::kOk && at < *lengths.most; at += slot) {
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      const std::size_t count = rest_of(counts[rank], at, slot);
      copy_own<S>(inside + rank * slot, from + from_at[rank] + at, count);
      if (exec::thread_rank<S>() == 0) lengths.round[rank] = count;
    }
    exec::sync<S>();
    status = gdx_all_to_all_v<S, P, M>(team, result, lengths.places, static_cast<const T*>(inside),
                                       lengths.places, lengths.round);
    for (std::uint32_t rank = 0; status == Status::kOk && rank < size; ++rank)
      copy_own<S>(to + to_at[rank] + at, result + rank * slot, rest_of(lengths.come[rank], at, slot));
    exec::sync<S>();
  }
  mark_through<S>(team, false);
  return status;
}

// Makes gdx_reduce through a piece of the heap. Errors: the rules'; kInvalidArgument for no such root.
template <Reduce R, Scope S = Scope::kThread, Placement P = Placement::kHost, Mode M = Mode::kAuto,
          typename T>
GDX_DEVICE Status gdx_reduce(const TeamHandle& team, const HeapPiece& piece, T* to, const T* from,
                             std::size_t count, std::uint32_t root) {
  return device::impl::go_through<device::impl::CollectiveKind::kReduce, S, P>(
      team, piece, to, from, count, root, [&](T* result, const T* inside, std::size_t n) {
        return gdx_reduce<R, S, P, M>(team, result, inside, n, root);
      });
}

// Makes gdx_reduce_scatter through a piece of the heap. Errors: the rules'.
template <Reduce R, Scope S = Scope::kThread, Placement P = Placement::kHost, Mode M = Mode::kAuto,
          typename T>
GDX_DEVICE Status gdx_reduce_scatter(const TeamHandle& team, const HeapPiece& piece, T* to, const T* from,
                                     std::size_t count) {
  return device::impl::go_through<device::impl::CollectiveKind::kReduceScatter, S, P>(
      team, piece, to, from, count, 0, [&](T* result, const T* inside, std::size_t n) {
        return gdx_reduce_scatter<R, S, P, M>(team, result, inside, n);
      });
}

// Makes gdx_all_reduce through a piece of the heap. Errors: the rules'.
template <Reduce R, Scope S = Scope::kThread, Placement P = Placement::kHost, Mode M = Mode::kAuto,
          typename T>
GDX_DEVICE Status gdx_all_reduce(const TeamHandle& team, const HeapPiece& piece, T* to, const T* from,
                                 std::size_t count) {
  return device::impl::go_through<device::impl::CollectiveKind::kAllReduce, S, P>(
      team, piece, to, from, count, 0, [&](T* result, const T* inside, std::size_t n) {
        return gdx_all_reduce<R, S, P, M>(team, result, inside, n);
      });
}

}  // namespace gdx
