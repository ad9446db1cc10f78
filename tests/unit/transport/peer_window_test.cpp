// Windows to a peer's receive socket, and the shares of one: what each event permits.
#include "driver-shim/softhca/transport/peer_window.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace gdx::softhca::transport {
namespace peer_window_test {

constexpr std::uint64_t kStartNs = 1'000'000'000;
constexpr std::uint64_t kLimit = 1'000'000;
constexpr std::uint64_t kIncarnation = 7;
constexpr std::uint64_t kSocketBytes = 1 << 20;
constexpr ReceiveShares::Key kFirst{1};
constexpr ReceiveShares::Key kSecond{2};

class Window : public testing::Test {
 protected:
  roce::WindowMarker ask(std::uint64_t now_ns) {
    window.on_packet(now_ns, true);
    const auto marker = window.take_marker(now_ns);
    EXPECT_TRUE(marker);
    return marker.value_or(roce::WindowMarker{});
  }
  // Waits without room until the peer counts as stalled, and asks whenever it is time. Returns when that is.
  std::uint64_t stall(std::uint64_t now_ns) {
    window.wait(now_ns);
    while (!window.stalled(now_ns)) {
      static_cast<void>(window.take_marker(now_ns));
      now_ns = window.next_deadline_ns(now_ns);
    }
    return now_ns;
  }
  // Markers after which the peer says something, but nothing of them, until it bounds nothing; 20 at most.
  int ignored_markers(std::uint64_t now_ns) {
    int markers = 0;
    while (markers < 20 && window.room_units(now_ns) != kNever) {
      window.on_packet(now_ns, true);
      window.wait(now_ns);
      markers += window.take_marker(now_ns) ? 1 : 0;
      now_ns = window.next_deadline_ns(now_ns);
    }
    return markers;
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
  EXPECT_EQ(window.next_deadline_ns(kStartNs), kStartNs + kStalledNs);
  EXPECT_EQ(window.next_deadline_ns(kStartNs + kStalledNs), kNever) << "it may send now";
}

TEST_F(Window, packet_of_a_standard_peer_bounds_nothing_and_gets_no_marker) {
  window.charge(kMinimumUnits);
  EXPECT_FALSE(window.on_packet(kStartNs, false));
  EXPECT_EQ(window.room_units(kStartNs), kNever);
  window.charge(1u << 30);
  EXPECT_FALSE(window.take_marker(kStartNs + kLeaseNs));
  EXPECT_FALSE(window.on_grant(kStartNs, {{kIncarnation, 0, 0}, 1})) << "nobody asked";
}

TEST_F(Window, standard_peer_ends_the_wait_and_one_of_our_kind_after_it_is_asked) {
  window.wait(kStartNs);
  window.on_packet(kStartNs, false);
  EXPECT_FALSE(window.waiting());
  EXPECT_TRUE(window.on_packet(kStartNs, true)) << "somebody else has the address now";
  EXPECT_EQ(window.room_units(kStartNs), kMinimumUnits);
  EXPECT_TRUE(window.take_marker(kStartNs));
}

TEST_F(Window, wait_counts_from_its_beginning_and_ends_with_a_grant) {
  EXPECT_TRUE(window.wait(kStartNs));
  EXPECT_FALSE(window.wait(kStartNs + kStalledNs / 2));
  EXPECT_TRUE(window.stalled(kStartNs + kStalledNs));
  ASSERT_TRUE(window.on_grant(kStartNs + kStalledNs, {ask(kStartNs + kStalledNs), kLimit}));
  EXPECT_FALSE(window.waiting());
  EXPECT_EQ(window.next_deadline_ns(kStartNs + kStalledNs), kNever);
}

TEST_F(Window, grant_below_the_minimum_leaves_the_minimum) {
  ASSERT_TRUE(window.on_grant(kStartNs, {ask(kStartNs), 0}));
  EXPECT_EQ(window.room_units(kStartNs), kMinimumUnits);
}

TEST_F(Window, grant_without_limit_bounds_nothing_and_is_asked_for_again_after_a_lease) {
  ASSERT_TRUE(window.on_grant(kStartNs, {ask(kStartNs), roce::kNoWindow}));
  EXPECT_EQ(window.room_units(kStartNs + 10 * kLeaseNs), kNever);
  EXPECT_FALSE(window.take_marker(kStartNs + kLeaseNs)) << "nothing was sent";
  window.charge(kLimit);
  EXPECT_FALSE(window.take_marker(kStartNs + kLeaseNs - 1));
  EXPECT_TRUE(window.take_marker(kStartNs + kLeaseNs));
}

TEST_F(Window, each_quarter_of_the_window_is_marked_and_no_less) {
  ASSERT_TRUE(window.on_grant(kStartNs, {ask(kStartNs), kLimit}));
  window.charge(kLimit / 4 - 1);
  EXPECT_FALSE(window.take_marker(kStartNs));
  window.charge(1);
  EXPECT_TRUE(window.take_marker(kStartNs));
  EXPECT_FALSE(window.take_marker(kStartNs));
}

TEST_F(Window, newer_grant_may_permit_less_and_of_two_of_one_moment_the_larger_holds) {
  const roce::WindowMarker marker = ask(kStartNs);
  ASSERT_TRUE(window.on_grant(kStartNs, {marker, 2 * kLimit}));
  ASSERT_TRUE(window.on_grant(kStartNs, {marker, kLimit}));
  EXPECT_EQ(window.room_units(kStartNs), 2 * kLimit);
  window.charge(kLimit / 2);
  const auto newer = window.take_marker(kStartNs + 1);
  ASSERT_TRUE(newer);
  ASSERT_TRUE(window.on_grant(kStartNs + 1, {*newer, kLimit}));
  EXPECT_EQ(window.room_units(kStartNs + 1), kLimit / 2);
}

TEST_F(Window, answered_sender_asks_as_patiently_as_at_first) {
  const auto silence_ns = [this](std::uint64_t now_ns) {
    EXPECT_TRUE(window.take_marker(now_ns));
    return window.next_deadline_ns(now_ns) - now_ns;
  };
  window.on_packet(kStartNs, true);
  window.wait(kStartNs);
  const std::uint64_t first_ns = silence_ns(kStartNs);
  const std::uint64_t again_ns = kStartNs + first_ns;
  EXPECT_EQ(silence_ns(again_ns), 2 * first_ns);
  ASSERT_TRUE(window.on_grant(again_ns, {{kIncarnation, 0, again_ns}, kLimit}));
  window.charge(kLimit);
  window.wait(again_ns);
  EXPECT_EQ(silence_ns(again_ns), first_ns);
  EXPECT_FALSE(window.stalled(again_ns + kStalledNs)) << "one marker is not yet silence";
}

TEST_F(Window, grant_after_long_silence_makes_the_next_silence_count_anew) {
  ASSERT_TRUE(window.on_grant(kStartNs, {ask(kStartNs), kLimit}));
  window.charge(kLimit);
  const std::uint64_t now_ns = stall(kStartNs);
  ASSERT_TRUE(window.on_grant(now_ns, {{kIncarnation, kLimit, kStartNs + 1}, 2 * kLimit}));
  window.charge(kLimit);
  window.wait(now_ns);
  EXPECT_TRUE(window.take_marker(now_ns));
  EXPECT_FALSE(window.stalled(now_ns + 2 * kStalledNs));
}

TEST_F(Window, peer_that_granted_and_speaks_without_answering_stays_bounded) {
  ASSERT_TRUE(window.on_grant(kStartNs, {ask(kStartNs), kLimit}));
  window.charge(kLimit);
  EXPECT_EQ(ignored_markers(kStartNs), 20);
}

TEST_F(Window, another_kind_of_sender_has_the_address_only_once_the_peer_is_stalled) {
  const SendWindow fresh(kIncarnation);
  window.charge(kMinimumUnits);
  const int ignored = ignored_markers(kStartNs);
  EXPECT_LT(ignored, 20);

  window = fresh;
  window.charge(kMinimumUnits);
  std::uint64_t now_ns = kStartNs;
  for (int i = 0; i < ignored - 1; ++i) {
    window.on_packet(now_ns, true);
    window.wait(now_ns);
    static_cast<void>(window.take_marker(now_ns));
    now_ns = window.next_deadline_ns(now_ns);
  }
  const roce::WindowMarker marker{kIncarnation, kMinimumUnits, now_ns - 1};
  ASSERT_TRUE(window.on_grant(now_ns, {marker, kLimit}));
  window.charge(kLimit - kMinimumUnits);
  window.on_packet(now_ns, false);
  EXPECT_EQ(window.room_units(now_ns), 0u) << "a stray packet";
  now_ns = stall(now_ns);
  window.on_packet(now_ns, false);
  EXPECT_EQ(window.room_units(now_ns), kNever);
  EXPECT_FALSE(window.waiting());
  EXPECT_TRUE(window.on_packet(now_ns, true));
  const SendWindow anew = window;
  EXPECT_EQ(ignored_markers(now_ns), ignored) << "it is asked as if for the first time";
  window = anew;
  window.wait(now_ns);
  EXPECT_TRUE(window.take_marker(now_ns));
  EXPECT_EQ(window.next_deadline_ns(now_ns), now_ns + 10'000'000);
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
  EXPECT_EQ(window.room_units(kStartNs + 2 * kLeaseNs), kMinimumUnits) << "what was taken stays taken";
  EXPECT_EQ(window.room_units(kStartNs + 3), 2 * kLimit - kLimit / 2);
  ASSERT_TRUE(window.on_grant(kStartNs + 4, {*second, 2 * kLimit}));
  EXPECT_EQ(window.room_units(kStartNs + 4), 2 * kLimit - kLimit / 2) << "absolute, so it does not add up";
}

TEST_F(Window, peer_that_speaks_but_never_grants_is_left_unbounded) {
  ask(kStartNs);
  window.charge(kMinimumUnits);
  std::uint64_t now_ns = kStartNs;
  for (int i = 0; i < 20 && window.room_units(now_ns) != kNever; ++i) {
    window.on_packet(now_ns, true);
    window.wait(now_ns);
    now_ns = window.next_deadline_ns(now_ns);
    static_cast<void>(window.take_marker(now_ns));
  }
  EXPECT_EQ(window.room_units(now_ns), kNever);
  EXPECT_FALSE(window.waiting());
}

TEST_F(Window, peer_that_spoke_once_and_is_silent_since_has_ignored_no_marker) {
  ask(kStartNs);
  window.charge(kMinimumUnits);
  window.wait(kStartNs);
  std::uint64_t now_ns = kStartNs;
  for (int marker = 0; marker < 20; ++marker) {
    now_ns = window.next_deadline_ns(now_ns);
    EXPECT_TRUE(window.take_marker(now_ns));
  }
  EXPECT_EQ(window.room_units(now_ns), 0u);
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
  const std::uint64_t late_ns = kStartNs + 10 * kStalledNs;
  for (std::uint64_t unanswered = 0; unanswered < kStalledMarkers; ++unanswered) {
    EXPECT_FALSE(window.stalled(late_ns)) << unanswered;
    EXPECT_TRUE(window.take_marker(late_ns + unanswered * kStalledNs));
  }
  EXPECT_TRUE(window.stalled(late_ns));
}

TEST_F(Window, peer_in_doubt_is_asked_anew_whatever_the_former_left_unanswered) {
  ask(kStartNs);
  window.doubt();
  EXPECT_EQ(window.check_invariants(), nullptr);
  EXPECT_FALSE(window.answered());
  EXPECT_TRUE(window.take_marker(kStartNs + 1));
}

// Lets a lone peer use up what it gets, until all is promised to it. Returns the units that it has sent.
std::uint64_t give_all(ReceiveShares& shares, const ReceiveShares::Key& peer, std::uint64_t incarnation) {
  std::uint64_t sent = 0;
  for (std::uint64_t limit = 0; shares.promised_units(peer) < shares.capacity_units();) {
    sent = limit;
    limit = shares.on_marker(kStartNs, peer, {incarnation, sent, 0})->limit_units;
  }
  return sent;
}

TEST(Shares, peer_that_sends_little_holds_little) {
  ReceiveShares shares(kSocketBytes);
  EXPECT_EQ(shares.capacity_units(), kSocketBytes / 2);
  const std::uint64_t first = shares.capacity_units() / 32;
  EXPECT_EQ(shares.on_marker(kStartNs, kFirst, {1, 0, 0})->limit_units, first);
  EXPECT_EQ(shares.on_marker(kStartNs, kFirst, {1, 100, 0})->limit_units, 100 + first);
  // Its markers are a quarter of its window apart: that gets twice as much.
  const std::uint64_t quarter = first / 4;
  EXPECT_EQ(shares.on_marker(kStartNs, kFirst, {1, 100 + quarter, 0})->limit_units,
            100 + quarter + 8 * quarter);
}

TEST(Shares, lone_peer_gets_all_and_a_newcomer_only_what_is_left) {
  ReceiveShares shares(kSocketBytes);
  const std::uint64_t all = shares.capacity_units();
  const std::uint64_t sent = give_all(shares, kFirst, 1);
  EXPECT_EQ(shares.on_marker(kStartNs, kSecond, {2, 0, 0})->limit_units, 0u);
  // The first one sends a half, and is told to stop there.
  EXPECT_EQ(shares.on_marker(kStartNs, kFirst, {1, sent + all / 2, 0})->limit_units, sent + all);
  EXPECT_EQ(shares.on_marker(kStartNs, kSecond, {2, all / 8, 0})->limit_units, all / 8 + all / 2);
}

TEST(Shares, lease_that_ended_comes_back_when_the_socket_was_seen_empty) {
  ReceiveShares shares(kSocketBytes);
  give_all(shares, kFirst, 1);
  shares.on_drained(kStartNs + kReclaimNs - 1);
  EXPECT_EQ(shares.promised_units(), shares.capacity_units());
  EXPECT_EQ(shares.on_marker(kStartNs + kReclaimNs, kSecond, {2, 0, 0})->limit_units, 0u)
      << "what the first one sent may still lie in the socket";
  shares.on_drained(kStartNs + kReclaimNs);
  EXPECT_EQ(shares.promised_units(kFirst), 0u);
  EXPECT_EQ(shares.on_marker(kStartNs + kReclaimNs, kSecond, {2, 0, 0})->limit_units,
            shares.capacity_units() / 32);
}

TEST(Shares, lease_that_ended_comes_back_when_a_socketful_has_been_taken_since) {
  ReceiveShares shares(kSocketBytes);
  give_all(shares, kFirst, 1);
  shares.on_taken(kSocketBytes);  // before it ended: proves nothing
  ASSERT_TRUE(shares.on_marker(kStartNs + kReclaimNs, kSecond, {2, 0, 0}));
  shares.on_taken(kSocketBytes - 1);
  EXPECT_EQ(shares.on_marker(kStartNs + kReclaimNs, kSecond, {2, 0, 0})->limit_units, 0u);
  shares.on_taken(1);
  EXPECT_EQ(shares.on_marker(kStartNs + kReclaimNs, kSecond, {2, 0, 0})->limit_units,
            shares.capacity_units() / 32);
}

TEST(Shares, marker_that_was_overtaken_draws_nothing) {
  ReceiveShares shares(kSocketBytes);
  ASSERT_TRUE(shares.on_marker(kStartNs, kFirst, {1, 5000, 0}));
  EXPECT_FALSE(shares.on_marker(kStartNs, kFirst, {1, 4000, 0}));
}

TEST(Shares, marker_repeated_draws_the_same_answer) {
  ReceiveShares shares(kSocketBytes);
  const auto first = shares.on_marker(kStartNs, kFirst, {1, 5000, 0});
  const auto again = shares.on_marker(kStartNs, kFirst, {1, 5000, 0});
  ASSERT_TRUE(first && again) << "the first answer may have been lost";
  EXPECT_EQ(again->limit_units, first->limit_units);
}

// Promised units may be in flight: no other peer may have them, though the fair part is smaller now.
TEST(Shares, promise_stands_when_another_comes) {
  ReceiveShares shares(kSocketBytes);
  const std::uint64_t all = shares.capacity_units();
  const std::uint64_t sent = give_all(shares, kFirst, 1);
  ASSERT_TRUE(shares.on_marker(kStartNs, kSecond, {2, 0, 0}));
  EXPECT_EQ(shares.on_marker(kStartNs, kFirst, {1, sent + all / 4, 0})->limit_units, sent + all);
  EXPECT_EQ(shares.on_marker(kStartNs, kSecond, {2, all / 8, 0})->limit_units, all / 8 + all / 4);
}

TEST(Shares, marker_renews_the_lease) {
  ReceiveShares shares(kSocketBytes);
  const std::uint64_t sent = give_all(shares, kFirst, 1);
  const std::uint64_t renewed_ns = kStartNs + kReclaimNs - 1;
  ASSERT_TRUE(shares.on_marker(renewed_ns, kFirst, {1, sent, 0}));
  shares.on_drained(renewed_ns + kReclaimNs - 1);
  EXPECT_EQ(shares.promised_units(kFirst), shares.capacity_units());
  shares.on_drained(renewed_ns + kReclaimNs);
  EXPECT_EQ(shares.promised_units(kFirst), 0u);
}

TEST(Shares, lease_that_ended_was_renewed_and_ended_again_needs_another_socketful) {
  ReceiveShares shares(kSocketBytes);
  const std::uint64_t sent = give_all(shares, kFirst, 1);
  std::uint64_t now_ns = kStartNs + kReclaimNs;
  ASSERT_TRUE(shares.on_marker(now_ns, kSecond, {2, 0, 0}));  // finds that it has ended
  shares.on_taken(kSocketBytes - 1);
  ASSERT_TRUE(shares.on_marker(now_ns, kFirst, {1, sent, 0}));
  now_ns += kReclaimNs;
  shares.on_taken(1);
  ASSERT_TRUE(shares.on_marker(now_ns, kSecond, {2, 0, 0}));
  EXPECT_EQ(shares.promised_units(kFirst), shares.capacity_units());
}

TEST(Shares, peers_beyond_the_most_are_told_no_more_than_they_have_sent) {
  ReceiveShares shares(kSocketBytes);
  const auto peer = [](std::uint32_t number) {
    return ReceiveShares::Key{1, static_cast<std::uint8_t>(number >> 8), static_cast<std::uint8_t>(number)};
  };
  const std::uint64_t all = shares.capacity_units();
  const std::uint64_t sent = give_all(shares, peer(0), 1);
  for (std::uint32_t i = 1; i < 1024; ++i) ASSERT_TRUE(shares.on_marker(kStartNs, peer(i), {1, 0, 0}));
  // The first one has used it up.
  EXPECT_EQ(shares.on_marker(kStartNs, peer(0), {1, sent + all, 0})->limit_units, sent + all + all / 1024);
  EXPECT_EQ(shares.on_marker(kStartNs, peer(1024), {1, 700, 0})->limit_units, 700u);
  EXPECT_EQ(shares.promised_units(peer(1024)), 0u);
}

// No clock is shared: both count from the marker.
TEST(Leases, senders_has_ended_when_the_receiver_gives_its_share_away) {
  SendWindow window(kIncarnation);
  ReceiveShares shares(kSocketBytes);
  window.on_packet(kStartNs, true);
  const auto marker = window.take_marker(kStartNs);
  ASSERT_TRUE(marker);
  ASSERT_TRUE(window.on_grant(kStartNs, *shares.on_marker(kStartNs, kFirst, *marker)));
  ASSERT_EQ(window.room_units(kStartNs), std::max(kMinimumUnits, shares.capacity_units() / 32));
  const std::uint64_t given_away_ns = kStartNs + kReclaimNs;
  shares.on_drained(given_away_ns);
  ASSERT_EQ(shares.promised_units(kFirst), 0u);
  EXPECT_EQ(window.room_units(given_away_ns), kMinimumUnits);
}

TEST(Shares, restarted_peer_counts_from_its_beginning) {
  ReceiveShares shares(kSocketBytes);
  ASSERT_TRUE(shares.on_marker(kStartNs, kFirst, {1, 5000, 0}));
  const auto grant = shares.on_marker(kStartNs, kFirst, {2, 100, 0});
  ASSERT_TRUE(grant);
  EXPECT_EQ(grant->limit_units, 100 + shares.capacity_units() / 32);
}

}  // namespace peer_window_test
}  // namespace gdx::softhca::transport
