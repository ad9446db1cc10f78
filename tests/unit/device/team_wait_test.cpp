// Waits of a team: for connections, slots, signals and completions, and how a rank that is gone ends them.
#include <gtest/gtest.h>

#include <array>
#include <atomic>

#include "tests/unit/device/team_records.h"

namespace gdx::device {
namespace team_wait_test {

TEST_F(Team, call_to_a_rank_without_a_connection_asks_and_waits_for_it) {
  on_progress_ = [&] {
    if (std::atomic_ref(asked_[kAbsent]).load() != 0) connect(0, kAbsent, PeerWay::kNative);
  };
  EXPECT_EQ(status_of([&](auto& t) { return gdx_put(t, heap(), heap(), 8, kAbsent); }), Status::kOk);
  EXPECT_EQ(nic(kAbsent).requests().size(), 1u);
}

TEST_F(Team, call_to_a_rank_that_cannot_be_connected_ends_with_the_reason) {
  const auto put = [&](auto& t) {
    return gdx_put<Mode::kPull, Scope::kThread>(t, heap(), heap(), 8, kAbsent);
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
  EXPECT_EQ(status_of([&](auto& t) { return gdx_flush(t, kNative - 1); }), Status::kOk);
  EXPECT_EQ(status_of([&](auto& t) { return gdx_flush(t, kNative + 1); }), Status::kOk);
  EXPECT_EQ(status_of([&](auto& t) { return gdx_flush(t, kNative); }), Status::kPeerUnreachable);
  EXPECT_EQ(status_of([&](auto& t) { return gdx_quiet(t); }), Status::kPeerUnreachable);
  EXPECT_EQ(fault_.rank, kNative);
}

TEST_F(Team, mapped_rank_needs_a_connection_for_the_nics_atomics_only) {
  EXPECT_EQ(status_of([&](auto& t) { return gdx_put(t, word(1), word(0), 8, kMapped); }), Status::kOk);
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

// Rank kNative keeps an idle slot that the scheduler asks back, and no thread has a call to it. A rank that
// is gone gets none any more.
TEST_F(Team, push_that_waits_for_a_slot_returns_the_idle_one_of_another_rank) {
  for (const PeerWay way : {PeerWay::kNative, PeerWay::kGone}) {
    const std::uint32_t lane = way == PeerWay::kGone ? 1 : 0;
    ServingNic& keeper = nic(kNative, lane);
    ServingNic& waiter = nic(kAbsent, lane);
    const auto push = [&](std::uint32_t rank) {
      return status_of([&](auto& t) {
        return gdx_put<Mode::kPush, Scope::kThread>(t.on_lane(lane), heap() + 64, heap() + 64, 32, rank);
      });
    };
    keeper.pool.grant(1, 1);
    waiter.pool.grant(0, 1);
    connect(lane, kNative, PeerWay::kNative);
    connect(lane, kAbsent, PeerWay::kNative);
    EXPECT_EQ(push(kNative), Status::kOk);
    keeper.pool.grant(1, 0);
    EXPECT_EQ(keeper.pool.requests.returned, 0u);
    connect(lane, kNative, way);
    on_progress_ = [&] {
      if (std::atomic_ref(keeper.pool.requests.returned).load() == 1)
        std::atomic_ref(waiter.pool.grants).store(pack_grants(1, 1), std::memory_order_release);
    };
    EXPECT_EQ(push(kAbsent), Status::kOk);
    EXPECT_EQ(keeper.pool.requests.returned, 1u);
    EXPECT_EQ(waiter.requests().size(), 1u);
    EXPECT_EQ(keeper.overwritten() + waiter.overwritten(), 0u);
  }
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

TEST_F(Team, wait_for_all_needs_no_rank_that_has_signalled) {
  const std::array<std::uint32_t, 2> ranks{kNative, kDirect};
  *word(0) = 1;
  connect(0, kNative, PeerWay::kGone);
  on_progress_ = [&] { std::atomic_ref(*word(1)).store(1, std::memory_order_release); };
  EXPECT_EQ(status_of([&](auto& t) { return gdx_wait_all(t, word(0), ranks.data(), 2, Compare::kEqual, 1); }),
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

TEST_F(Team, waits_with_a_value_for_each_signal) {
  const std::array<std::uint32_t, 3> ranks{kNative, kDirect, kMapped};
  const std::array<std::uint64_t, 3> values{7, 8, 9};
  const auto wait_for_all = [&](const TeamHandle& t) {
    return gdx_wait_all(t, word(0), ranks.data(), 3, Compare::kEqual, values.data());
  };
  std::uint32_t index = 9;
  const auto wait_for_any = [&](const TeamHandle& t) {
    return gdx_wait_any(t, word(0), nullptr, 3, Compare::kEqual, values.data(), &index);
  };
  *word(0) = 8;
  *word(1) = 9;
  *word(2) = 9;
  EXPECT_EQ(status_of(wait_for_any), Status::kOk);
  EXPECT_EQ(index, 2u) << "the others have each other's values";
  on_progress_ = [&] {
    std::atomic_ref(*word(0)).store(7, std::memory_order_release);
    std::atomic_ref(*word(1)).store(8, std::memory_order_release);
  };
  EXPECT_EQ(status_of(wait_for_all), Status::kOk);
  on_progress_ = nullptr;
  *word(1) = 0;
  nic(kDirect).fails_at = 0;
  EXPECT_NE(status_of(wait_for_all), Status::kOk);
  EXPECT_EQ(fault_.rank, kDirect);
  EXPECT_EQ(fault_.bytes, 8u) << "the value that did not come";
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

}  // namespace team_wait_test
}  // namespace gdx::device
