// Windows to a peer's receive socket, and the shares of one: what each event permits.
#include "driver-shim/softhca/transport/peer_window.h"

#include <gtest/gtest.h>

namespace gdx::softhca::transport {
namespace {

constexpr std::uint64_t kStartNs = 1'000'000'000;
constexpr std::uint64_t kLimit = 1'000'000;
constexpr std::uint64_t kIncarnation = 7;
constexpr std::uint64_t kSocketBytes = 1 << 20;
constexpr ReceiveShares::Key kFirst{1};
constexpr ReceiveShares::Key kSecond{2};

class Window : public testing::Test {
 protected:
  roce::WindowMarker ask(std::uint64_t now_ns) {
    window.on_heard(now_ns, true);
    const auto marker = window.take_marker(now_ns);
    EXPECT_TRUE(marker);
    return marker.value_or(roce::WindowMarker{});
  }
  SendWindow window{kIncarnation};
};

TEST_F(Window, unknown_peer_gets_the_minimum_and_no_marker) {
  EXPECT_EQ(window.room_units(kStartNs), kMinimumUnits);
  window.charge(kMinimumUnits);
  EXPECT_EQ(window.room_units(kStartNs), 0u);
  EXPECT_TRUE(window.wait(kStartNs));
  EXPECT_FALSE(window.wait(kStartNs));
  EXPECT_FALSE(window.take_marker(kStartNs + kLeaseNs)) << "a standard peer must see a standard wire";
  EXPECT_FALSE(window.stalled(kStartNs + kStalledNs - 1));
  EXPECT_TRUE(window.stalled(kStartNs + kStalledNs));
}

TEST_F(Window, standard_peer_heard_bounds_nothing_and_gets_no_marker) {
  window.charge(kMinimumUnits);
  EXPECT_FALSE(window.on_heard(kStartNs, false));
  EXPECT_EQ(window.room_units(kStartNs), kNever);
  window.charge(1u << 30);
  EXPECT_FALSE(window.take_marker(kStartNs + kLeaseNs));
  EXPECT_FALSE(window.on_grant(kStartNs, {{kIncarnation, 0, 0}, 1})) << "nobody asked";
}

TEST_F(Window, grant_lasts_from_its_marker_for_a_lease_then_the_minimum_is_left) {
  const roce::WindowMarker marker = ask(kStartNs);
  const std::uint64_t late_ns = kStartNs + kLeaseNs - 1;
  ASSERT_TRUE(window.on_grant(late_ns, {marker, kLimit}));
  EXPECT_EQ(window.room_units(late_ns), kLimit);
  EXPECT_EQ(window.room_units(kStartNs + kLeaseNs), kMinimumUnits)
      << "counted from the marker, not from the grant";
}

TEST_F(Window, grant_for_another_incarnation_for_the_future_or_unasked_changes_nothing) {
  const roce::WindowMarker marker = ask(kStartNs);
  EXPECT_FALSE(window.on_grant(kStartNs, {{kIncarnation + 1, 0, marker.sent_at_ns}, kLimit}));
  EXPECT_FALSE(window.on_grant(kStartNs, {{kIncarnation, 1, marker.sent_at_ns}, kLimit}));
  EXPECT_FALSE(window.on_grant(kStartNs, {{kIncarnation, 0, kStartNs + 1}, kLimit}));
  EXPECT_EQ(window.room_units(kStartNs), kMinimumUnits);
}

TEST_F(Window, grants_overtaken_or_repeated_leave_the_newest) {
  const roce::WindowMarker first = ask(kStartNs);
  ASSERT_TRUE(window.on_grant(kStartNs, {first, kLimit}));
  window.charge(kLimit / 2);
  const auto second = window.take_marker(kStartNs + 1);
  ASSERT_TRUE(second);
  ASSERT_TRUE(window.on_grant(kStartNs + 2, {*second, 2 * kLimit}));
  EXPECT_FALSE(window.on_grant(kStartNs + 3, {first, kLimit})) << "late";
  EXPECT_EQ(window.room_units(kStartNs + 3), 2 * kLimit - kLimit / 2);
  ASSERT_TRUE(window.on_grant(kStartNs + 4, {*second, 2 * kLimit}));
  EXPECT_EQ(window.room_units(kStartNs + 4), 2 * kLimit - kLimit / 2) << "absolute, so it does not add up";
}

TEST_F(Window, peer_that_speaks_but_never_grants_is_left_unbounded) {
  ask(kStartNs);
  window.charge(kMinimumUnits);
  std::uint64_t now_ns = kStartNs;
  for (int i = 0; i < 20 && window.room_units(now_ns) != kNever; ++i) {
    window.on_heard(now_ns, true);
    window.wait(now_ns);
    now_ns = window.next_deadline_ns(now_ns);
    static_cast<void>(window.take_marker(now_ns));
  }
  EXPECT_EQ(window.room_units(now_ns), kNever);
}

TEST_F(Window, silent_peer_that_granted_once_is_asked_again_and_stays_bounded) {
  const roce::WindowMarker marker = ask(kStartNs);
  ASSERT_TRUE(window.on_grant(kStartNs, {marker, kLimit}));
  window.charge(kLimit);
  window.wait(kStartNs);
  std::uint64_t now_ns = kStartNs;
  int markers = 0;
  while (now_ns < kStartNs + kStalledNs) {
    markers += window.take_marker(now_ns) ? 1 : 0;
    now_ns = window.next_deadline_ns(now_ns);
    ASSERT_NE(now_ns, kNever);
  }
  EXPECT_GE(markers, 10);
  EXPECT_TRUE(window.stalled(now_ns));
  EXPECT_EQ(window.room_units(now_ns), 0u);
}

TEST_F(Window, sender_that_was_stopped_itself_does_not_take_the_peer_for_stalled) {
  const roce::WindowMarker marker = ask(kStartNs);
  ASSERT_TRUE(window.on_grant(kStartNs, {marker, kLimit}));
  window.charge(kLimit);
  window.wait(kStartNs);
  EXPECT_FALSE(window.stalled(kStartNs + 10 * kStalledNs));
}

TEST(Shares, lone_peer_gets_all_and_a_newcomer_only_what_is_left) {
  ReceiveShares shares(kSocketBytes);
  const auto first = shares.on_marker(kStartNs, kFirst, {1, 0, 0});
  ASSERT_TRUE(first);
  EXPECT_EQ(first->limit_units, shares.capacity_units());
  const auto second = shares.on_marker(kStartNs, kSecond, {2, 0, 0});
  ASSERT_TRUE(second);
  EXPECT_EQ(second->limit_units, 0u);
  // The first one sends a half, and is told to stop there.
  const auto half = shares.on_marker(kStartNs, kFirst, {1, shares.capacity_units() / 2, 0});
  EXPECT_EQ(half->limit_units, shares.capacity_units());
  EXPECT_EQ(shares.on_marker(kStartNs, kSecond, {2, 0, 0})->limit_units, shares.capacity_units() / 2);
}

TEST(Shares, lease_that_ended_comes_back_when_the_socket_was_seen_empty) {
  ReceiveShares shares(kSocketBytes);
  ASSERT_TRUE(shares.on_marker(kStartNs, kFirst, {1, 0, 0}));
  shares.on_drained(kStartNs + kReclaimNs - 1);
  EXPECT_EQ(shares.promised_units(), shares.capacity_units());
  EXPECT_EQ(shares.on_marker(kStartNs + kReclaimNs, kSecond, {2, 0, 0})->limit_units, 0u)
      << "what the first one sent may still lie in the socket";
  shares.on_drained(kStartNs + kReclaimNs);
  EXPECT_EQ(shares.promised_units(kFirst), 0u);
  EXPECT_EQ(shares.on_marker(kStartNs + kReclaimNs, kSecond, {2, 0, 0})->limit_units,
            shares.capacity_units());
}

TEST(Shares, lease_that_ended_comes_back_when_a_socketful_has_been_taken_since) {
  ReceiveShares shares(kSocketBytes);
  ASSERT_TRUE(shares.on_marker(kStartNs, kFirst, {1, 0, 0}));
  shares.on_taken(kSocketBytes);  // before it ended: proves nothing
  ASSERT_TRUE(shares.on_marker(kStartNs + kReclaimNs, kSecond, {2, 0, 0}));
  shares.on_taken(kSocketBytes - 1);
  EXPECT_EQ(shares.on_marker(kStartNs + kReclaimNs, kSecond, {2, 0, 0})->limit_units, 0u);
  shares.on_taken(1);
  EXPECT_EQ(shares.on_marker(kStartNs + kReclaimNs, kSecond, {2, 0, 0})->limit_units,
            shares.capacity_units());
}

TEST(Shares, marker_that_was_overtaken_draws_nothing) {
  ReceiveShares shares(kSocketBytes);
  ASSERT_TRUE(shares.on_marker(kStartNs, kFirst, {1, 5000, 0}));
  EXPECT_FALSE(shares.on_marker(kStartNs, kFirst, {1, 4000, 0}));
}

TEST(Shares, restarted_peer_counts_from_its_beginning) {
  ReceiveShares shares(kSocketBytes);
  ASSERT_TRUE(shares.on_marker(kStartNs, kFirst, {1, 5000, 0}));
  const auto grant = shares.on_marker(kStartNs, kFirst, {2, 100, 0});
  ASSERT_TRUE(grant);
  EXPECT_EQ(grant->limit_units, 100 + shares.capacity_units());
}

}  // namespace
}  // namespace gdx::softhca::transport
