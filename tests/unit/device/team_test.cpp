// Calls of a team: which way each goes, what it names there, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/unit/device/team_records.h"

namespace gdx::device {
namespace team_test {

using mlx5::WqeOpcode;

template <Scope S, Mode M>
void put_and_flush(const TeamHandle& team, std::byte* at, std::size_t bytes, std::uint32_t rank,
                   Status* status) {
  Status mine = gdx_put<M, S>(team, at, at, bytes, rank);
  if (mine == Status::kOk) mine = gdx_flush<S>(team, rank);
  if (exec::thread_rank<S>() == 0) *status = mine;
}

TEST_F(Team, put_to_a_native_rank_names_its_heap_at_the_same_offset) {
  for (const unsigned threads : {1u, 32u, 96u}) {
    for (const bool pulls : {true, false}) {
      const std::size_t before = nic(kNative).requests().size();
      Status status = Status::kPending;
      in_kernel(
          [&](const TeamHandle& team) {
            std::byte* const at = heap() + 128;
            if (threads == 1 && pulls)
              put_and_flush<Scope::kThread, Mode::kPull>(team, at, 64, kNative, &status);
            if (threads == 1 && !pulls)
              put_and_flush<Scope::kThread, Mode::kAuto>(team, at, 64, kNative, &status);
            if (threads == 32) put_and_flush<Scope::kWarp, Mode::kPull>(team, at, 64, kNative, &status);
            if (threads == 96) put_and_flush<Scope::kBlock, Mode::kAuto>(team, at, 64, kNative, &status);
          },
          threads);
      ASSERT_EQ(status, Status::kOk);
      ASSERT_EQ(nic(kNative).requests().size(), before + 1);
      const ServingNic::Request& request = nic(kNative).requests().back();
      EXPECT_EQ(request.opcode, WqeOpcode::kRdmaWrite);
      EXPECT_EQ(request.remote, kRemoteHeap + 128);
      EXPECT_EQ(request.local, reinterpret_cast<std::uint64_t>(heap() + 128));
    }
  }
  EXPECT_EQ(nic(kNative).mistakes(), 0u);
  EXPECT_EQ(posted(), nic(kNative).requests().size());
}

TEST_F(Team, rows_of_a_record_are_what_the_endpoint_has) {
  const EndpointHandle handle = nic(kNative).handle();
  const TeamPeer& peer = record(0, kNative);
  EXPECT_EQ(peer.queue_pair_word, impl::queue_pair_word(handle.qpn));
  EXPECT_EQ(peer.block_mask, ServingNic::kBlocks - 1);
}

TEST_F(Team, put_to_a_mapped_rank_stores_exactly_its_bytes) {
  for (std::size_t i = 0; i < kHeapBytes; ++i) heap()[i] = std::byte(1 + i % 255);
  Status status = Status::kPending;
  in_kernel(
      [&](const TeamHandle& team) {
        put_and_flush<Scope::kBlock, Mode::kAuto>(team, heap() + 5, 1001, kDirect, &status);
      },
      96);
  EXPECT_EQ(status, Status::kOk);
  EXPECT_EQ(std::memcmp(ranks_[kDirect]->heap.data() + 5, heap() + 5, 1001), 0);
  EXPECT_EQ(std::count(ranks_[kDirect]->heap.begin(), ranks_[kDirect]->heap.end(), std::byte{0}),
            std::ptrdiff_t{kHeapBytes - 1001});
  EXPECT_EQ(posted(), 0u);
}

TEST_F(Team, signals_and_atomics_of_a_mapped_rank_are_processors_where_all_are_mapped) {
  std::uint64_t got = 0;
  const Status status = status_of([&](const TeamHandle& team) {
    Status s = gdx_put_signal(team, word(0), word(0), 8, word(8), 5, SignalOp::kSet, kDirect);
    if (s == Status::kOk) s = gdx_signal(team, word(8), 2, SignalOp::kAdd, kDirect);
    if (s == Status::kOk) s = gdx_fetch_add(team, word(20), word(8), 10, kDirect);
    if (s == Status::kOk) s = gdx_compare_swap(team, word(21), word(8), 17, 99, kDirect);
    if (s == Status::kOk) s = gdx_put_value(team, word(9), std::uint64_t{33}, kDirect);
    if (s == Status::kOk) s = gdx_get(team, word(30), word(8), 16, kDirect);
    if (s == Status::kOk) s = gdx_flush(team, kDirect);
    return s;
  });
  EXPECT_EQ(status, Status::kOk);
  got = *word(20);
  EXPECT_EQ(got, 7u);
  EXPECT_EQ(*word(21), 17u);
  EXPECT_EQ(word_of(*ranks_[kDirect], 8), 99u);
  EXPECT_EQ(*word(30), 99u);
  EXPECT_EQ(*word(31), 33u);
  EXPECT_EQ(posted(), 0u);
}

TEST_F(Team, every_signal_and_atomic_is_the_nics_where_one_rank_is_not_mapped) {
  handle_.atomics = TeamAtomics::kNic;
  for (const std::uint32_t rank : {kOwn, kNative, kDirect}) {
    const Status status = status_of([&](const TeamHandle& team) {
      Status s = gdx_put_signal(team, word(0), word(0), 8, word(8), 5, SignalOp::kSet, rank);
      if (s == Status::kOk) s = gdx_signal(team, word(8), 2, SignalOp::kAdd, rank);
      if (s == Status::kOk) s = gdx_fetch_add(team, word(20), word(9), 10, rank);
      if (s == Status::kOk) s = gdx_compare_swap(team, word(21), word(9), 17, 99, rank);
      if (s == Status::kOk) s = gdx_quiet(team);
      return s;
    });
    EXPECT_EQ(status, Status::kOk);
    std::vector<WqeOpcode> opcodes;
    std::vector<std::uint64_t> places;
    for (const ServingNic::Request& request : nic(rank).requests()) {
      opcodes.push_back(request.opcode);
      places.push_back(request.remote - kRemoteHeap);
    }
    std::vector<WqeOpcode> wanted{WqeOpcode::kRdmaWrite, WqeOpcode::kAtomicFetchAdd,
                                  WqeOpcode::kAtomicFetchAdd, WqeOpcode::kAtomicCompareSwap};
    std::vector<std::uint64_t> at{64, 64, 72, 72};
    if (rank == kNative) {
      wanted.insert(wanted.begin(), WqeOpcode::kRdmaWrite);
      at.insert(at.begin(), 0);
    }
    EXPECT_EQ(opcodes, wanted);
    EXPECT_EQ(places, at);
  }
}

TEST_F(Team, ranges_of_a_window_beside_the_heap_have_its_addresses_and_keys) {
  std::byte* const at = ranks_[kOwn]->window.data() + 64;
  const auto expect_request = [&](auto call, std::uint64_t remote, Be32 rkey, const void* local, Be32 lkey) {
    ASSERT_EQ(status_of(call), Status::kOk);
    const ServingNic::Request& request = nic(kNative).requests().back();
    EXPECT_EQ(request.remote, remote);
    EXPECT_EQ(request.rkey, rkey);
    EXPECT_EQ(request.local, reinterpret_cast<std::uint64_t>(local));
    EXPECT_EQ(request.lkey, lkey);
  };
  const auto put_there = [&](auto& t) { return gdx_put(t, at, heap(), 64, kNative); };
  const auto put_from_there = [&](auto& t) { return gdx_put(t, heap(), at, 64, kNative); };
  const auto get_there = [&](auto& t) { return gdx_get(t, at, heap(), 64, kNative); };
  const auto get_from_there = [&](auto& t) { return gdx_get(t, heap(), at, 64, kNative); };
  const auto add_there = [&](auto& t) {
    return gdx_fetch_add(t, word(2), reinterpret_cast<std::uint64_t*>(at), 1, kNative);
  };
  expect_request(put_there, kRemoteWindow + 64, 0x78, heap(), 0x11);
  expect_request(put_from_there, kRemoteHeap, 0x77, at, 0x12);
  expect_request(get_there, kRemoteHeap, 0x77, at, 0x12);
  expect_request(get_from_there, kRemoteWindow + 64, 0x78, heap(), 0x11);
  handle_.atomics = TeamAtomics::kNic;
  ASSERT_EQ(status_of(add_there), Status::kOk);
  EXPECT_EQ(nic(kNative).requests().back().remote, kRemoteWindow + 64);
  EXPECT_EQ(nic(kNative).requests().back().rkey, Be32(0x78));
  heap()[0] = std::byte{9};
  EXPECT_EQ(status_of([&](const TeamHandle& team) { return gdx_put(team, at, heap(), 64, kDirect); }),
            Status::kOk);
  EXPECT_EQ(ranks_[kDirect]->window[64], std::byte{9});
}

TEST_F(Team, last_word_of_each_window_is_within_it_for_every_call) {
  std::byte* const ends[] = {heap() + kHeapBytes, ranks_[kOwn]->window.data() + kWindowBytes};
  for (std::byte* const end : ends) {
    auto* const last = reinterpret_cast<std::uint64_t*>(end - 8);
    for (const std::uint32_t rank : {kNative, kDirect}) {
      EXPECT_EQ(status_of([&](const TeamHandle& t) {
                  Status s = gdx_put(t, last, word(0), 8, rank);
                  if (s == Status::kOk) s = gdx_put(t, word(0), last, 8, rank);
                  if (s == Status::kOk) s = gdx_get(t, last, word(0), 8, rank);
                  if (s == Status::kOk) s = gdx_get(t, word(0), last, 8, rank);
                  if (s == Status::kOk) s = gdx_put_value(t, last, std::uint64_t{1}, rank);
                  if (s == Status::kOk) s = gdx_signal(t, last, 1, SignalOp::kSet, rank);
                  if (s == Status::kOk)
                    s = gdx_put_signal(t, word(0), word(0), 8, last, 1, SignalOp::kAdd, rank);
                  if (s == Status::kOk) s = gdx_fetch_add(t, last, word(0), 1, rank);
                  if (s == Status::kOk) s = gdx_fetch_add(t, word(0), last, 1, rank);
                  if (s == Status::kOk) s = gdx_compare_swap(t, last, last, 1, 2, rank);
                  if (s == Status::kOk) s = gdx_wait(t, last, Compare::kGreaterEqual, 0, rank);
                  return s;
                }),
                Status::kOk)
          << rank << (end == ends[0] ? " heap " : " window ") << fault_.address;
    }
  }
}

TEST_F(Team, nothing_is_put_of_no_bytes_and_its_signal_goes_alone) {
  EXPECT_EQ(status_of([&](const TeamHandle& team) {
              Status s = gdx_put(team, heap(), heap(), 0, kNative);
              if (s == Status::kOk) s = gdx_put<Mode::kAuto, Scope::kWarp>(team, heap(), heap(), 0, kAbsent);
              if (s == Status::kOk) s = gdx_get(team, heap(), heap(), 0, kNative);
              if (s == Status::kOk)
                s = gdx_put_signal(team, heap(), heap(), 0, word(8), 1, SignalOp::kSet, kNative);
              return s;
            }),
            Status::kOk);
  EXPECT_EQ(asked_[kAbsent], 0u) << "nothing needs no connection";
  ASSERT_EQ(nic(kNative).requests().size(), 1u);
  EXPECT_EQ(nic(kNative).requests()[0].remote, kRemoteHeap + 64);
  EXPECT_EQ(status_of([&](const TeamHandle& team) {
              return gdx_put_signal(team, heap(), heap(), 0, word(8), 7, SignalOp::kSet, kDirect);
            }),
            Status::kOk);
  EXPECT_EQ(word_of(*ranks_[kDirect], 8), 7u);
}

// Each misuse is refused by its call, leaves nothing behind, and the next call works.
class TeamMisuse : public Team {
 protected:
  static Status pull(const TeamHandle& t, std::byte* to, const std::byte* from, std::size_t n,
                     std::uint32_t rank) {
    return gdx_put<Mode::kPull, Scope::kThread>(t, to, from, n, rank);
  }
  static std::uint64_t* as_word(std::byte* at) { return reinterpret_cast<std::uint64_t*>(at); }
  static Status pull_signal(const TeamHandle& t, std::byte* at, std::byte* signal, std::uint32_t rank) {
    return gdx_put_signal<Mode::kPull, Scope::kThread>(t, at, at, 8, as_word(signal), 1, SignalOp::kSet,
                                                       rank);
  }
  template <typename Call>
  void expect_refused(Status wanted, Call call) {
    fault_ = {};
    EXPECT_EQ(status_of(call), wanted);
    EXPECT_EQ(fault_.status, wanted);
    EXPECT_EQ(posted(), 0u);
  }
  void TearDown() override {
    for (const auto& rank : ranks_)
      EXPECT_EQ(std::count(rank->heap.begin(), rank->heap.end(), std::byte{0}), std::ptrdiff_t{kHeapBytes});
    EXPECT_EQ(status_of([&](auto& t) { return gdx_put(t, heap(), heap(), kHeapBytes, kNative); }),
              Status::kOk);
  }

  std::byte* end() { return heap() + kHeapBytes; }
  std::byte* foreign() { return ranks_[kDirect]->heap.data(); }
};

TEST_F(TeamMisuse, ranges_beyond_the_heap_are_refused) {
  constexpr Status kBad = Status::kInvalidArgument;
  for (const std::uint32_t rank : {kNative, kDirect}) {
    expect_refused(kBad, [&](auto& t) { return pull(t, foreign(), heap(), 8, rank); });
    expect_refused(kBad, [&](auto& t) { return pull(t, heap(), foreign(), 8, rank); });
    expect_refused(kBad, [&](auto& t) { return pull(t, end() - 8, heap(), 16, rank); });
    expect_refused(kBad, [&](auto& t) { return pull(t, heap(), end() - 8, 16, rank); });
    expect_refused(kBad, [&](auto& t) { return pull(t, heap() - 8, heap(), 16, rank); });
    expect_refused(kBad, [&](auto& t) { return pull(t, heap(), heap(), kHeapBytes + 1, rank); });
    expect_refused(kBad, [&](auto& t) { return pull_signal(t, heap(), end(), rank); });
    expect_refused(kBad, [&](auto& t) { return gdx_put(t, heap(), heap() - 8, 16, rank); });
    expect_refused(kBad, [&](auto& t) { return gdx_signal(t, as_word(foreign()), 1, SignalOp::kSet, rank); });
    expect_refused(kBad, [&](auto& t) { return gdx_get(t, heap(), foreign(), 8, rank); });
    expect_refused(kBad, [&](auto& t) { return gdx_get(t, foreign(), heap(), 8, rank); });
    expect_refused(kBad, [&](auto& t) { return gdx_put_value(t, as_word(end()), std::uint64_t{1}, rank); });
    expect_refused(kBad, [&](auto& t) { return gdx_fetch_add(t, as_word(foreign()), word(0), 1, rank); });
    expect_refused(kBad, [&](auto& t) { return gdx_compare_swap(t, word(0), as_word(end()), 1, 2, rank); });
  }
}

TEST_F(TeamMisuse, lengths_and_words_that_cannot_be_are_refused) {
  constexpr Status kUnaligned = Status::kRemoteInvalid;
  constexpr std::size_t kLong = std::size_t{1} << 40;
  std::uint64_t* const odd = as_word(heap() + 4);
  for (const std::uint32_t rank : {kNative, kDirect}) {
    expect_refused(Status::kInvalidLength, [&](auto& t) { return gdx_put(t, heap(), heap(), kLong, rank); });
    expect_refused(Status::kInvalidLength, [&](auto& t) { return gdx_get(t, heap(), heap(), kLong, rank); });
    expect_refused(kUnaligned, [&](auto& t) { return gdx_wait(t, odd, Compare::kEqual, 1, rank); });
    expect_refused(Status::kInvalidArgument,
                   [&](auto& t) { return gdx_wait(t, as_word(foreign()), Compare::kEqual, 1, rank); });
    expect_refused(kUnaligned, [&](auto& t) { return pull_signal(t, heap(), heap() + 4, rank); });
    expect_refused(kUnaligned, [&](auto& t) { return gdx_signal(t, odd, 1, SignalOp::kAdd, rank); });
    expect_refused(kUnaligned, [&](auto& t) { return gdx_fetch_add(t, word(0), odd, 1, rank); });
    expect_refused(kUnaligned, [&](auto& t) { return gdx_fetch_add(t, odd, word(0), 1, rank); });
  }
}

TEST_F(TeamMisuse, ranks_and_lanes_that_do_not_exist_are_refused) {
  constexpr Status kBad = Status::kInvalidArgument;
  expect_refused(kBad, [&](auto& t) { return pull(t, heap(), heap(), 8, kSize); });
  expect_refused(kBad, [&](auto& t) { return gdx_put(t, heap(), heap(), 8, kSize); });
  expect_refused(kBad, [&](auto& t) { return gdx_get(t, heap(), heap(), 8, kSize); });
  expect_refused(kBad, [&](auto& t) { return gdx_flush(t, kSize); });
  for (const std::uint32_t rank : {~0u, kSize, kSize + 4}) {
    const std::uint32_t ranks[] = {kNative, rank};
    expect_refused(kBad, [&](auto& t) { return gdx_wait(t, word(0), Compare::kEqual, 1, rank); });
    expect_refused(kBad, [&](auto& t) { return gdx_wait_all(t, word(0), ranks, 2, Compare::kEqual, 1); });
  }
  EXPECT_EQ(fault_.rank, kSize + 4);
  expect_refused(kBad, [&](auto& t) { return pull(t.on_lane(2), heap(), heap(), 8, kNative); });
  expect_refused(kBad, [&](auto& t) { return gdx_put(t.on_lane(2), heap(), heap(), 8, kDirect); });
  expect_refused(kBad, [&](auto& t) { return gdx_flush(t.on_lane(2), kNative); });
  expect_refused(kBad, [&](auto& t) { return gdx_quiet(t.on_lane(2)); });
}

TEST_F(Team, the_first_refusal_is_kept_for_the_message) {
  EXPECT_EQ(status_of([&](auto& t) { return gdx_put(t, heap(), heap() - 16, 8, kNative); }),
            Status::kInvalidArgument);
  EXPECT_EQ(status_of([&](auto& t) { return gdx_put(t, heap(), heap(), 8, kSize); }),
            Status::kInvalidArgument);
  EXPECT_EQ(fault_.rank, kNative);
  EXPECT_EQ(fault_.address, reinterpret_cast<std::uint64_t>(heap() - 16));
  EXPECT_EQ(fault_.bytes, 8u);
}

TEST_F(Team, handle_of_another_layout_or_place_touches_nothing) {
  const auto put = [&](auto& t) {
    return gdx_put<Mode::kPull, Scope::kThread>(t, heap(), heap(), 8, kNative);
  };
  handle_.layout = team_layout(Placement::kGpu);
  EXPECT_EQ(status_of(put), Status::kInvalidArgument);
  EXPECT_EQ(status_of([&](auto& t) { return gdx_wait(t, word(0), Compare::kEqual, 1, kNative); }),
            Status::kInvalidArgument);
  handle_.layout += 1 << 16;
  EXPECT_EQ(status_of(put), Status::kVersionMismatch);
  handle_ = {};
  EXPECT_EQ(status_of(put), Status::kVersionMismatch);
  EXPECT_EQ(posted(), 0u);
}

TEST_F(Team, lanes_have_queues_of_their_own) {
  EXPECT_EQ(status_of([&](auto& t) { return gdx_put(t.on_lane(1), heap(), heap(), 8, kNative); }),
            Status::kOk);
  EXPECT_EQ(nic(kNative, 0).requests().size(), 0u);
  EXPECT_EQ(nic(kNative, 1).requests().size(), 1u);
  EXPECT_EQ(status_of([&](auto& t) {
              const Status put = gdx_put(t.on_lane(1), heap(), heap(), 8, kNative);
              return put == Status::kOk ? gdx_flush(t, kNative) : put;
            }),
            Status::kOk);
  EXPECT_EQ(nic(kNative, 1).state().shared.completed, 2u) << "a flush covers the lanes of its handle";
}

}  // namespace team_test
}  // namespace gdx::device
