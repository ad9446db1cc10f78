// Calls of a team on records that tests fill in: which way each goes, what it names there, what is refused,
// and how long it waits for a connection.
#include "device/team/team.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "tests/unit/device/serving_nic.h"

namespace gdx::device {
namespace {

using mlx5::WqeOpcode;

constexpr std::size_t kHeapBytes = 4096;
constexpr std::size_t kWindowBytes = 512;
constexpr std::uint64_t kRemoteHeap = 0x7000'0000'0000;  // as the peers' NICs have it
constexpr std::uint64_t kRemoteWindow = 0x7100'0000'0000;
constexpr std::uint32_t kSize = 5;

// Ranks of the team, by their way.
constexpr std::uint32_t kOwn = 0;
constexpr std::uint32_t kNative = 1;
constexpr std::uint32_t kDirect = 2;
constexpr std::uint32_t kAbsent = 3;
constexpr std::uint32_t kMapped = 4;

// A rank's heap and second window, with bytes around them that nobody may touch.
struct RankMemory {
  alignas(64) std::array<std::byte, 64> before{};
  alignas(64) std::array<std::byte, kHeapBytes> heap{};
  alignas(64) std::array<std::byte, 64> between{};
  alignas(64) std::array<std::byte, kWindowBytes> window{};
};

class Team : public ::testing::Test {
 protected:
  void SetUp() override {
    for (std::uint32_t i = 0; i < 2 * kSize; ++i) {
      nics_.push_back(std::make_unique<ServingNic>());
      nics_.back()->probe_after_ns = 1'000;
      nics_.back()->modes = {0, 0, kNoSizeLimit};
    }
    for (std::uint32_t rank = 0; rank < kSize; ++rank) ranks_.push_back(std::make_unique<RankMemory>());
    handle_.layout = team_layout(Placement::kHost);
    handle_.size = kSize;
    handle_.lanes = 2;
    handle_.window_count = 2;
    handle_.most_bytes = kHeapBytes;
    handle_.peers = records_.data();
    handle_.pool_peers = records_.data();
    handle_.pool_peer_count = 2 * kSize;
    handle_.fault = &fault_;
    handle_.abort = &abort_;
    handle_.timeout_ns = 60'000'000'000;
    handle_.probe_after_ns = 1'000;
    handle_.progress = progress;
    handle_.windows[0] = {ranks_[kOwn]->heap.data(), kHeapBytes, 0x11, 0};
    handle_.windows[1] = {ranks_[kOwn]->window.data(), kWindowBytes, 0x12, 0};
    running = this;
    for (const std::uint32_t lane : {0u, 1u}) {
      connect(lane, kOwn, PeerWay::kDirect);
      connect(lane, kNative, PeerWay::kNative);
      connect(lane, kDirect, PeerWay::kDirect);
      connect(lane, kAbsent, PeerWay::kNone);
      connect(lane, kMapped, PeerWay::kMapped);
    }
  }

  TeamPeer& record(std::uint32_t lane, std::uint32_t rank) { return records_[lane * kSize + rank]; }
  ServingNic& nic(std::uint32_t rank, std::uint32_t lane = 0) { return *nics_[lane * kSize + rank]; }

  void connect(std::uint32_t lane, std::uint32_t rank, PeerWay way) {
    TeamPeer& peer = record(lane, rank);
    const bool mapped = way == PeerWay::kDirect || way == PeerWay::kMapped;
    peer.asked = &asked_[lane * kSize + rank];
    peer.set_endpoint(nic(rank, lane).handle());
    peer.set_window(0, {kRemoteHeap, 0x77, 0, mapped ? ranks_[rank]->heap.data() : nullptr}, heap());
    peer.set_window(1, {kRemoteWindow, 0x78, 0, mapped ? ranks_[rank]->window.data() : nullptr}, heap());
    std::atomic_ref<std::uint64_t>(reinterpret_cast<std::uint64_t&>(peer))
        .store(peer.first_word(way), std::memory_order_release);
  }

  std::byte* heap() { return ranks_[kOwn]->heap.data(); }
  std::uint64_t* word(std::size_t index) { return reinterpret_cast<std::uint64_t*>(heap()) + index; }
  static std::uint64_t& word_of(RankMemory& memory, std::size_t index) {
    return reinterpret_cast<std::uint64_t*>(memory.heap.data())[index];
  }

  // Runs `body(team)` in each of `threads` threads of one block, then serves the rest.
  template <typename Body>
  void in_kernel(Body body, unsigned threads = 1) {
    handle_.copy = &copy_;
    copy_ = handle_;
    ASSERT_EQ(exec::launch(
                  {.block = {threads}}, [&](const TeamHandle& team) { body(team); }, handle_),
              Status::kOk);
    while (progress() != 0) {
    }
  }
  template <typename Body>
  Status status_of(Body body) {
    Status status = Status::kPending;
    in_kernel([&](const TeamHandle& team) { status = body(team); });
    return status;
  }

  static int progress() {
    int done = 0;
    for (const auto& nic : running->nics_) done += nic->step() ? 1 : 0;
    if (running->on_progress_) running->on_progress_();
    return done;
  }

  std::size_t posted() {
    std::size_t total = 0;
    for (const auto& nic : nics_) total += nic->requests().size();
    return total;
  }

  static inline Team* running = nullptr;
  std::vector<std::unique_ptr<ServingNic>> nics_;
  std::vector<std::unique_ptr<RankMemory>> ranks_;
  std::array<TeamPeer, 2 * kSize> records_{};
  std::array<std::uint32_t, 2 * kSize> asked_{};
  std::function<void()> on_progress_;
  TeamFault fault_{};
  std::uint32_t abort_ = 0;
  TeamHandle handle_{};
  TeamHandle copy_{};
};

template <Scope S, Mode M>
void put_and_flush(const TeamHandle& team, std::byte* at, std::size_t bytes, std::uint32_t rank,
                   Status* status) {
  Status mine = gdx_put<S, M>(team, at, at, bytes, rank);
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
    Status s = gdx_put_signal(team, word(0), word(0), 1, word(8), 5, SignalOp::kSet, kDirect);
    if (s == Status::kOk) s = gdx_signal(team, word(8), 2, SignalOp::kAdd, kDirect);
    if (s == Status::kOk) s = gdx_fetch_add(team, word(20), word(8), 10, kDirect);
    if (s == Status::kOk) s = gdx_compare_swap(team, word(21), word(8), 17, 99, kDirect);
    if (s == Status::kOk) s = gdx_put_value(team, word(9), std::uint64_t{33}, kDirect);
    if (s == Status::kOk) s = gdx_get(team, word(30), word(8), 2, kDirect);
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
      Status s = gdx_put_signal(team, word(0), word(0), 1, word(8), 5, SignalOp::kSet, rank);
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

TEST_F(Team, nothing_is_put_of_no_bytes_and_its_signal_goes_alone) {
  EXPECT_EQ(status_of([&](const TeamHandle& team) {
              Status s = gdx_put(team, heap(), heap(), 0, kNative);
              if (s == Status::kOk) s = gdx_put<Scope::kWarp>(team, heap(), heap(), 0, kAbsent);
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
    return gdx_put<Scope::kThread, Mode::kPull>(t, to, from, n, rank);
  }
  static std::uint64_t* as_word(std::byte* at) { return reinterpret_cast<std::uint64_t*>(at); }
  static Status pull_signal(const TeamHandle& t, std::byte* at, std::byte* signal, std::uint32_t rank) {
    return gdx_put_signal<Scope::kThread, Mode::kPull>(t, at, at, 8, as_word(signal), 1, SignalOp::kSet,
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
    constexpr std::size_t kWraps = (std::size_t{1} << 61) + 1;
    expect_refused(Status::kInvalidLength,
                   [&](auto& t) { return gdx_put(t, word(0), word(0), kWraps, rank); });
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
    return gdx_put<Scope::kThread, Mode::kPull>(t, heap(), heap(), 8, kNative);
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

TEST_F(Team, call_to_a_rank_without_a_connection_asks_and_waits_for_it) {
  on_progress_ = [&] {
    if (std::atomic_ref(asked_[kAbsent]).load() != 0) connect(0, kAbsent, PeerWay::kNative);
  };
  EXPECT_EQ(status_of([&](auto& t) { return gdx_put(t, heap(), heap(), 8, kAbsent); }), Status::kOk);
  EXPECT_EQ(nic(kAbsent).requests().size(), 1u);
}

TEST_F(Team, call_to_a_rank_that_cannot_be_connected_ends_with_the_reason) {
  const auto put = [&](auto& t) {
    return gdx_put<Scope::kThread, Mode::kPull>(t, heap(), heap(), 8, kAbsent);
  };
  handle_.timeout_ns = 1'000'000;
  EXPECT_EQ(status_of(put), Status::kTimeout);
  EXPECT_EQ(fault_.rank, kAbsent);
  handle_.timeout_ns = 60'000'000'000;
  abort_ = 1;
  EXPECT_EQ(status_of(put), Status::kAborted);
  abort_ = 0;
  connect(0, kAbsent, PeerWay::kGone);
  EXPECT_EQ(status_of(put), Status::kPeerUnreachable);
}

TEST_F(Team, flush_after_a_rank_is_gone_fails_what_was_posted_to_it) {
  EXPECT_EQ(status_of([&](auto& t) { return gdx_put(t, heap(), heap(), 8, kNative); }), Status::kOk);
  connect(0, kNative, PeerWay::kGone);
  EXPECT_EQ(status_of([&](auto& t) { return gdx_flush(t, kNative); }), Status::kPeerUnreachable);
  EXPECT_EQ(status_of([&](auto& t) { return gdx_quiet(t); }), Status::kPeerUnreachable);
  EXPECT_EQ(fault_.rank, kNative);
}

TEST_F(Team, mapped_rank_needs_a_connection_for_the_nics_atomics_only) {
  EXPECT_EQ(status_of([&](auto& t) { return gdx_put(t, word(1), word(0), 1, kMapped); }), Status::kOk);
  EXPECT_EQ(asked_[kMapped], 0u);
  handle_.atomics = TeamAtomics::kNic;
  on_progress_ = [&] {
    if (std::atomic_ref(asked_[kMapped]).load() != 0) connect(0, kMapped, PeerWay::kDirect);
  };
  EXPECT_EQ(status_of([&](auto& t) { return gdx_signal(t, word(0), 1, SignalOp::kAdd, kMapped); }),
            Status::kOk);
  EXPECT_EQ(nic(kMapped).requests().size(), 1u);
}

TEST_F(Team, wait_ends_with_the_signal_whoever_sends_it) {
  on_progress_ = [&] { std::atomic_ref(*word(3)).store(4, std::memory_order_release); };
  EXPECT_EQ(status_of([&](auto& t) { return gdx_wait(t, word(3), Compare::kEqual, 4); }), Status::kOk);
  EXPECT_EQ(status_of([&](auto& t) { return gdx_wait(t, word(3), Compare::kGreaterEqual, 4, kAbsent); }),
            Status::kOk);
}

// Rank kNative keeps an idle slot that the scheduler asks back, and no thread has a call to it.
TEST_F(Team, push_that_waits_for_a_slot_returns_the_idle_one_of_another_rank) {
  const auto push = [&](std::uint32_t rank) {
    return status_of(
        [&](auto& t) { return gdx_put<Scope::kThread, Mode::kPush>(t, heap() + 64, heap() + 64, 32, rank); });
  };
  nic(kNative).pool.grant(1, 1);
  nic(kAbsent).pool.grant(0, 1);
  connect(0, kNative, PeerWay::kNative);
  connect(0, kAbsent, PeerWay::kNative);
  EXPECT_EQ(push(kNative), Status::kOk);
  nic(kNative).pool.grant(1, 0);
  EXPECT_EQ(nic(kNative).pool.requests.returned, 0u);
  on_progress_ = [&] {
    if (std::atomic_ref(nic(kNative).pool.requests.returned).load() == 1)
      std::atomic_ref(nic(kAbsent).pool.grants).store(pack_grants(1, 1), std::memory_order_release);
  };
  EXPECT_EQ(push(kAbsent), Status::kOk);
  EXPECT_EQ(nic(kNative).pool.requests.returned, 1u);
  EXPECT_EQ(nic(kAbsent).requests().size(), 1u);
  EXPECT_EQ(nic(kNative).overwritten() + nic(kAbsent).overwritten(), 0u);
}

// ServingNic counts a probe as any WRITE; the peer that fails it is dead.
TEST_F(Team, wait_for_a_dead_rank_ends_with_its_failure) {
  nic(kNative).fails_at = 0;
  nic(kDirect).fails_at = 0;
  for (const std::uint32_t rank : {kNative, kDirect}) {
    fault_ = {};
    EXPECT_EQ(status_of([&](auto& t) { return gdx_wait(t, word(3), Compare::kEqual, 4, rank); }),
              Status::kPeerUnreachable);
    EXPECT_EQ(fault_.rank, rank);
  }
}

TEST_F(Team, wait_for_a_silent_rank_without_a_connection_asks_for_one) {
  for (const std::uint32_t rank : {kAbsent, kMapped}) {
    on_progress_ = [&] {
      if (std::atomic_ref(asked_[rank]).load() != 0) connect(0, rank, PeerWay::kGone);
    };
    EXPECT_EQ(status_of([&](auto& t) { return gdx_wait(t, word(3), Compare::kEqual, 4, rank); }),
              Status::kPeerUnreachable);
  }
}

TEST_F(Team, wait_for_all_ends_with_the_last_and_names_who_is_missing) {
  const std::array<std::uint32_t, 3> ranks{kNative, kDirect, kAbsent};
  std::size_t next = 2;
  on_progress_ = [&] { std::atomic_ref(*word(next < 3 ? next-- : 0)).store(1, std::memory_order_release); };
  EXPECT_EQ(status_of([&](auto& t) { return gdx_wait_all(t, word(0), ranks.data(), 3, Compare::kEqual, 1); }),
            Status::kOk);
  on_progress_ = nullptr;
  nic(kDirect).fails_at = 0;
  nic(kNative).serves = false;
  connect(0, kAbsent, PeerWay::kNone);
  EXPECT_NE(
      status_of([&](auto& t) { return gdx_wait_all(t, word(10), ranks.data(), 3, Compare::kEqual, 1); }),
      Status::kOk);
  EXPECT_EQ(fault_.rank, kDirect);
  EXPECT_EQ(status_of([&](auto& t) { return gdx_wait_all(t, word(0), nullptr, 0, Compare::kEqual, 1); }),
            Status::kOk);
}

TEST_F(Team, wait_for_any_finds_one_and_serves_all_in_turn) {
  *word(1) = *word(2) = 1;
  std::array<std::uint32_t, 3> found{};
  in_kernel(
      [&](const TeamHandle& team) {
        std::uint32_t from = 0;
        for (std::uint32_t& index : found) {
          std::uint32_t mine = 9;
          EXPECT_EQ(gdx_wait_any<Scope::kWarp>(team, word(0), nullptr, 3, Compare::kEqual, 1, &mine, from),
                    Status::kOk);
          from = mine + 1;
          if (threadIdx.x == 31) index = mine;
        }
      },
      32);
  EXPECT_EQ(found, (std::array<std::uint32_t, 3>{1, 2, 1}));
  std::uint32_t index = 9;
  const auto wait = [&](const TeamHandle& t, std::uint32_t count, std::uint32_t from) {
    return gdx_wait_any(t, word(0), nullptr, count, Compare::kEqual, 1, &index, from);
  };
  *word(1) = 0;
  EXPECT_EQ(status_of([&](auto& t) { return wait(t, 3, ~0u); }), Status::kOk);
  EXPECT_EQ(index, 2u) << "counting from the largest number misses none";
  EXPECT_EQ(status_of([&](auto& t) { return wait(t, 0, 0); }), Status::kInvalidLength);
  handle_.timeout_ns = 1'000;
  EXPECT_EQ(status_of([&](auto& t) { return wait(t, 2, 0); }), Status::kTimeout);
  EXPECT_EQ(index, 2u) << "a failed wait returns none";
}

TEST_F(Team, quiet_returns_the_first_failure_after_flushing_every_rank) {
  nic(kNative).fails_at = 0;
  connect(0, kAbsent, PeerWay::kNative);
  const Status status = status_of([&](auto& t) {
    (void)gdx_put(t, heap(), heap(), 8, kNative);
    (void)gdx_put(t, heap(), heap(), 8, kAbsent);
    return gdx_quiet(t);
  });
  EXPECT_EQ(status, Status::kPeerUnreachable);
  EXPECT_EQ(fault_.rank, kNative);
  EXPECT_EQ(nic(kAbsent).state().shared.completed, 1u);
}

// Each flush takes a timeout if it counts its own time.
TEST_F(Team, quiet_of_many_silent_ranks_takes_one_timeout) {
  static std::uint64_t now_ns;
  now_ns = 1'000;
  copy_ = handle_;
  handle_.copy = copy_.copy = &copy_;
  Status status = Status::kPending;
  const auto kernel = [&](const TeamHandle& team) {
    for (const std::uint32_t lane : {0u, 1u}) (void)gdx_put(team.on_lane(lane), heap(), heap(), 8, kNative);
    status = gdx_quiet(team);
  };
  const auto clock = [] { return now_ns += 600'000'000; };  // 100 looks a timeout
  ASSERT_EQ(exec::launch({.progress = [] { return 0; }, .clock = clock}, kernel, handle_), Status::kOk);
  EXPECT_EQ(status, Status::kTimeout);
  EXPECT_LT(now_ns, 90'000'000'000u);
}

}  // namespace
}  // namespace gdx::device
