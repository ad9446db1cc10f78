// Calls of the host on a stream, between ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/collectives/on_stream.h"
#include "tests/e2e/collectives_of_ranks.h"

namespace gdx::collectives_test {

class OnStream : public Collectives {
 protected:
  OnStream() {
    for (exec::Stream& stream : streams_) EXPECT_EQ(exec::create_stream(&stream), Status::kOk);
  }
  ~OnStream() override {
    for (const exec::Stream stream : streams_) exec::destroy_stream(stream);
  }
  [[nodiscard]] std::uint32_t right() const { return (team_.rank() + 1) % team_.size(); }
  [[nodiscard]] std::uint32_t left() const { return (team_.rank() + team_.size() - 1) % team_.size(); }
  static void expect_ok(std::initializer_list<Status> launches) {
    for (const Status launch : launches) EXPECT_EQ(launch, Status::kOk);
  }

  exec::Stream streams_[2] = {};
};
INSTANTIATE_TEST_SUITE_P(By, OnStream, ::testing::Values(Ways::kNic, Ways::kDirect, Ways::kMixed), name_of);

// Without a kernel of its own: the host fills memory, makes calls, and reads what came.
TEST_P(OnStream, collective_calls_follow_each_other) {
  constexpr std::size_t kCount = 20'011;
  const std::uint32_t size = team_.size();
  const std::uint32_t rank = team_.rank();
  auto* const x = allocate<std::uint64_t>(size * kCount);
  auto* const y = allocate<std::uint64_t>(size * kCount);
  auto* const z = allocate<std::uint64_t>(size * kCount);
  const auto sum = [&](std::size_t i) {
    std::uint64_t all = 0;
    for (std::uint32_t r = 0; r < size; ++r) all += value(r, i);
    return all;
  };
  TeamStream on(team_.handle(), streams_[0]);
  for (round_ = 1; round_ <= 2; ++round_) {
    const auto root = static_cast<std::uint32_t>(round_ % size);
    for (std::size_t i = 0; i < size * kCount; ++i) x[i] = value(rank, i);
    // Each call takes what the one before made.
    expect_ok({gdx_all_to_all(on, y, x, kCount), gdx_all_reduce<Reduce::kMax>(on, z, y, kCount),
               gdx_barrier(on), gdx_gather(on, y, z, kCount, root), gdx_scatter(on, z, y, kCount, root),
               gdx_broadcast(on, y, z, kCount, root)});
    EXPECT_EQ(on.synchronize(), Status::kOk) << team_.describe_fault();
    // The greatest of rank 0's pieces, which it sent to the last rank.
    for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(y[i], value(0, (size - 1) * kCount + i)) << i;
    expect_ok({gdx_reduce_scatter<Reduce::kSum>(on, y, x, kCount), gdx_all_gather(on, z, y, kCount),
               gdx_reduce<Reduce::kSum>(on, y, x, kCount, root), gdx_quiet(on)});
    EXPECT_EQ(on.synchronize(), Status::kOk) << team_.describe_fault();
    for (std::size_t i = 0; i < size * kCount; ++i) ASSERT_EQ(z[i], sum(i)) << i;
    for (std::size_t i = 0; rank == root && i < kCount; ++i) ASSERT_EQ(y[i], sum(i)) << i;
    expect_ok({gdx_barrier(on)});
    EXPECT_EQ(on.synchronize(), Status::kOk);
  }
}

// Pieces of the heap hold a few elements, or all of them, or all but one. Ranks that are no root name no
// memory that they do not have.
TEST_P(OnStream, memory_outside_the_heap_goes_through_a_piece_of_it) {
  const std::uint32_t size = team_.size();
  const std::uint32_t rank = team_.rank();
  const std::uint32_t root = size - 1;
  const bool is_root = rank == root;
  auto* const piece = allocate<std::uint64_t>(4000);
  TeamStream on(team_.handle(), streams_[0]);
  for (const std::size_t count : {1u, 3u, 200u, 201u, 2000u, 2001u}) {
    ++round_;
    on.send_through(piece, count < 4 ? 2 * size * sizeof *piece : 4000 * sizeof *piece);
    std::vector<std::uint64_t> x(size * count);
    std::vector<std::uint64_t> y(size * count);
    std::vector<std::uint64_t> z(size * count);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = value(rank, i);
    expect_ok({gdx_all_to_all(on, y.data(), x.data(), count)});
    ASSERT_EQ(on.synchronize(), Status::kOk) << team_.describe_fault();
    for (std::size_t i = 0; i < y.size(); ++i)
      ASSERT_EQ(y[i], value(static_cast<std::uint32_t>(i / count), rank * count + i % count)) << i;
    expect_ok({gdx_reduce_scatter<Reduce::kMin>(on, y.data(), x.data(), count),
               gdx_all_gather(on, z.data(), y.data(), count)});
    ASSERT_EQ(on.synchronize(), Status::kOk) << team_.describe_fault();
    for (std::size_t i = 0; i < z.size(); ++i) ASSERT_EQ(z[i], value(0, i)) << i;
    expect_ok({gdx_all_reduce<Reduce::kMax>(on, y.data(), x.data(), count),
               gdx_broadcast(on, z.data(), is_root ? x.data() : nullptr, count, root),
               gdx_gather(on, is_root ? x.data() : nullptr, y.data(), count, root),
               gdx_scatter(on, y.data(), is_root ? x.data() : nullptr, count, root),
               gdx_reduce<Reduce::kMax>(on, is_root ? x.data() : nullptr, z.data(), count, root)});
    ASSERT_EQ(on.synchronize(), Status::kOk) << team_.describe_fault();
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(y[i], value(root, i)) << i;
      ASSERT_EQ(z[i], value(root, i)) << i;
      if (is_root) {
        ASSERT_EQ(x[i], value(root, i)) << i;
      }
    }
  }
  // In place: the piece stays as it is.
  auto* const inside = allocate<std::uint64_t>(7);
  std::fill_n(piece, 4000, 3);
  expect_ok({gdx_all_reduce<Reduce::kMax>(on, inside, inside, 7)});
  ASSERT_EQ(on.synchronize(), Status::kOk) << team_.describe_fault();
  EXPECT_EQ(std::count(piece, piece + 4000, 3u), 4000);
  std::uint64_t outside = 0;
  on.send_through(piece, 2 * sizeof *piece);
  // Not in place at rank 0, as in a piece, so that the piece alone differs.
  expect_ok({gdx_all_reduce<Reduce::kMax>(on, rank == 0 ? inside : &outside,
                                          rank == 0 ? inside + 1 : &outside, 0)});
  ASSERT_EQ(on.synchronize(), Status::kOk) << "rank 0 alone has its memory inside";
  const auto met = team_.barrier();
  EXPECT_EQ(met ? Status::kOk : met.error().status, size == 1 ? Status::kOk : Status::kInvalidArgument);
  on.send_through(piece, 2 * sizeof *piece - 1);
  EXPECT_EQ(gdx_all_reduce<Reduce::kMax>(on, &outside, &outside, 1), Status::kInvalidLength);
  on.send_through(piece, 2 * size * sizeof *piece - 1);
  EXPECT_EQ(gdx_all_to_all(on, &outside, &outside, 1), Status::kInvalidLength);
}

// Some pieces are empty, and the piece of the heap holds the longest in three rounds.
TEST_P(OnStream, pieces_of_any_length_inside_the_heap_and_through_a_piece_of_it) {
  constexpr std::size_t kLongest = 3 * 97;
  const std::uint32_t size = team_.size();
  const std::uint32_t own = team_.rank();
  auto* const inside = allocate<std::uint32_t>(2 * size * kLongest);
  const std::size_t piece_bytes = (3 * size + 2) * sizeof(std::size_t) + 2 * size * 100 * sizeof *inside;
  auto* const piece = allocate<std::uint64_t>(piece_bytes / sizeof(std::uint64_t) + 1);
  std::vector<std::uint32_t> outside(2 * size * kLongest);
  const auto length = [&](std::uint32_t sender, std::uint32_t receiver) -> std::size_t {
    return (sender * 7 + receiver * 3 + round_) % 4 * 97;
  };
  TeamStream on(team_.handle(), streams_[0]);
  on.send_through(piece, piece_bytes);
  for (round_ = 1; round_ <= 4; ++round_) {
    std::uint32_t* const from = round_ % 2 == 0 ? inside : outside.data();
    std::uint32_t* const to = from + size * kLongest;
    std::vector<std::size_t> to_at(size), from_at(size), counts(size);
    std::size_t end = 0;
    for (std::uint32_t rank = size; rank-- > 0; end += length(rank, own)) {
      to_at[rank] = end;
      from_at[rank] = rank * kLongest;
      counts[rank] = length(own, rank);
      for (std::size_t i = 0; i < counts[rank]; ++i)
        from[from_at[rank] + i] = static_cast<std::uint32_t>(value(own * size + rank, i));
    }
    std::fill_n(to, size * kLongest, 5);
    expect_ok({gdx_all_to_all_v(on, to, to_at.data(), from, from_at.data(), counts.data())});
    ASSERT_EQ(on.synchronize(), Status::kOk) << team_.describe_fault();
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      for (std::size_t i = 0; i < length(rank, own); ++i)
        ASSERT_EQ(to[to_at[rank] + i], static_cast<std::uint32_t>(value(rank * size + own, i)))
            << "round " << round_ << ", of rank " << rank << ", element " << i;
    }
    ASSERT_EQ(std::count(to + end, to + size * kLongest, 5u),
              static_cast<std::ptrdiff_t>(size * kLongest - end));
  }
  ASSERT_TRUE(team_.barrier());
  on.send_through(piece, (3 * size + 2) / 2 * 2 * sizeof(std::size_t));
  EXPECT_EQ(gdx_all_to_all_v(on, outside.data(), nullptr, outside.data(), nullptr, nullptr),
            Status::kInvalidLength);
}

// The host reads a peer's puts behind a wait on the stream, without a barrier of hosts.
TEST_P(OnStream, host_reads_what_a_wait_on_the_stream_has_seen) {
  auto* const from = allocate<std::uint64_t>(kMostCount);
  auto* const inbox = allocate<std::uint64_t>(kMostCount);
  auto* const words = allocate<std::uint64_t>(2);
  TeamStream on(team_.handle(), streams_[0]);
  exec::Event come = nullptr;
  ASSERT_EQ(exec::create_event(&come), Status::kOk);
  for (round_ = 1; round_ <= 20; ++round_) {
    for (std::size_t i = 0; i < kMostCount; ++i) from[i] = value(team_.rank(), i);
    expect_ok(
        {gdx_put_signal(on, inbox, from, kMostCount * sizeof *from, words, round_, SignalOp::kSet, right()),
         gdx_wait(on, words, Compare::kGreaterEqual, round_, left()), exec::record(come, streams_[0])});
    if (round_ % 2 == 0) {
      EXPECT_EQ(exec::synchronize(come), Status::kOk);
    } else {
      EXPECT_EQ(on.synchronize(), Status::kOk) << team_.describe_fault();
    }
    for (std::size_t i = kMostCount; i-- > 0;) ASSERT_EQ(inbox[i], value(left(), i)) << "round " << round_;
    // The left neighbour may overwrite the inbox, and this rank its source.
    expect_ok({gdx_signal(on, words + 1, round_, SignalOp::kSet, left()),
               gdx_wait(on, words + 1, Compare::kGreaterEqual, round_, right()), gdx_quiet(on)});
    EXPECT_EQ(on.synchronize(), Status::kOk) << team_.describe_fault();
  }
  exec::destroy_event(come);
}

// Streams of all ranks wait for each other: more kernels at a time than the machine has cores.
TEST_P(OnStream, streams_that_wait_for_each_other_go_on) {
  auto* const words = allocate<std::uint64_t>(2);
  TeamStream first(team_.handle().on_lane(0), streams_[0]);
  TeamStream second(team_.handle().on_lane(1), streams_[1]);
  constexpr std::uint64_t kTurns = 20;
  // Rank r's first stream waits for the second of rank r - 1, and that for the first of its own rank.
  for (std::uint64_t turn = 1; turn <= kTurns; ++turn) {
    expect_ok({gdx_signal(first, words, turn, SignalOp::kSet, team_.rank()),
               gdx_wait(first, words + 1, Compare::kGreaterEqual, turn, left()),
               gdx_wait(second, words, Compare::kGreaterEqual, turn, team_.rank()),
               gdx_signal(second, words + 1, turn, SignalOp::kSet, right())});
  }
  EXPECT_EQ(first.synchronize(), Status::kOk) << team_.describe_fault();
  EXPECT_EQ(second.synchronize(), Status::kOk) << team_.describe_fault();
  must(team_.barrier());
}

// Collective calls of two streams at once, a lane each.
TEST_P(OnStream, lanes_of_streams_are_independent) {
  auto* const x = allocate<std::uint64_t>(kMostCount);
  auto* const y = allocate<std::uint64_t>(kMostCount);
  TeamStream first(team_.handle().on_lane(0), streams_[0]);
  TeamStream second(team_.handle().on_lane(1), streams_[1]);
  for (std::size_t i = 0; i < kMostCount; ++i) x[i] = y[i] = i + 1;
  for (int round = 0; round < 2; ++round) {
    expect_ok({gdx_all_reduce<Reduce::kSum>(first, x, x, kMostCount),
               gdx_all_reduce<Reduce::kSum>(second, y, y, kMostCount)});
  }
  EXPECT_EQ(second.synchronize(), Status::kOk) << team_.describe_fault();
  EXPECT_EQ(first.synchronize(), Status::kOk) << team_.describe_fault();
  const std::uint64_t times = std::uint64_t{team_.size()} * team_.size();
  for (std::size_t i = 0; i < kMostCount; ++i) {
    ASSERT_EQ(x[i], times * (i + 1)) << i;
    ASSERT_EQ(y[i], times * (i + 1)) << i;
  }
}

TEST_P(OnStream, failed_call_is_kept_until_asked_and_stops_those_behind_it) {
  auto* const words = allocate<std::uint64_t>(2);
  {
    TeamStream on(team_.handle(), streams_[0]);
    expect_ok({gdx_signal(on, words, 1, SignalOp::kSet, team_.size()),
               gdx_signal(on, words + 1, 1, SignalOp::kSet, team_.rank()), gdx_quiet(on)});
    EXPECT_EQ(on.synchronize(), Status::kInvalidArgument);
    EXPECT_THAT(team_.describe_fault(), ::testing::HasSubstr("invalid argument"));
    expect_ok({gdx_quiet(on)});
    EXPECT_EQ(on.synchronize(), Status::kOk) << "asked";
    EXPECT_EQ(words[1], 0u) << "a call behind the failed one ran";
    expect_ok({gdx_signal(on, words, 1, SignalOp::kSet, team_.size())});
    ::testing::internal::CaptureStderr();
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), ::testing::HasSubstr("nobody asked for it"));
  TeamStream none(team_.handle(), nullptr);
  EXPECT_EQ(gdx_barrier(none), Status::kInvalidArgument) << "the CPU layer has no default stream";
  must(team_.barrier());
}

}  // namespace gdx::collectives_test
