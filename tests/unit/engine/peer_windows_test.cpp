// The windows of one HCA to its peers: who has one, what moves it, and what leaves when.
#include "driver-shim/softhca/engine/peer_windows.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace gdx::softhca {
namespace peer_windows_test {

constexpr std::uint64_t kStartNs = 1'000'000'000;
constexpr std::size_t kSocketBytes = 1 << 20;
// Share that a peer gets first: a 32nd of the half of the socket that is for windows.
constexpr std::size_t kFirstShare = kSocketBytes / 2 / 32;
constexpr std::uint16_t kOurPort = roce::kUdpPort;
constexpr std::uint16_t kStandardPort = 50'000;
constexpr std::uint64_t kLimit = 400'000;
const wire::Address kPeer = wire::Address::ipv4(0x0a000002);
const wire::Address kOther = wire::Address::ipv4(0x0a000003);

struct Sent {
  wire::Address peer;
  roce::Opcode opcode;
  roce::WindowGrant body;
};

class Windows : public testing::Test {
 protected:
  void SetUp() override {
    windows.connect(kPeer);
    windows.connect(kOther);
  }
  std::vector<Sent> send_due(std::uint64_t now_ns = kStartNs) {
    std::vector<Sent> sent;
    windows.send_due(now_ns,
                     [&](const wire::Address& peer, roce::Opcode opcode, const roce::WindowGrant& body) {
                       sent.push_back({peer, opcode, body});
                     });
    EXPECT_STREQ(windows.check_invariants(), nullptr);
    return sent;
  }
  void take_packet(const wire::Address& peer, std::uint16_t port = kOurPort) {
    EXPECT_TRUE(windows.on_taken(peer, port, 64, kStartNs));
  }
  static bool give(PeerWindows& to, const wire::Address& from, roce::Opcode opcode,
                   const roce::WindowGrant& body, std::size_t bytes = roce::kWindowBytes) {
    std::array<std::byte, roce::kWindowBytes> payload{};
    roce::encode_grant(body, payload);
    roce::Decoded packet;
    packet.headers.bth.opcode = opcode;
    packet.payload = std::span(payload).first(bytes);
    return to.on_packet(from, packet, kStartNs);
  }
  bool give(const wire::Address& from, roce::Opcode opcode, const roce::WindowGrant& body) {
    return give(windows, from, opcode, body);
  }
  // The marker that the peer is sent once a packet of it has arrived.
  roce::WindowMarker ask(const wire::Address& peer) {
    take_packet(peer);
    const std::vector<Sent> sent = send_due();
    EXPECT_EQ(sent.size(), 1u);
    return sent.empty() ? roce::WindowMarker{} : sent[0].body.marker;
  }
  static std::uint64_t room(const PeerWindow* window) { return window->window().room_units(kStartNs); }

  std::uint32_t random_ = 0;
  PeerWindows windows{true, kSocketBytes, [this] { return ++random_; }};
};

TEST_F(Windows, each_peer_has_one_of_its_own_that_stays) {
  PeerWindow* const first = windows.to(kPeer);
  PeerWindow* const second = windows.to(kOther);
  ASSERT_NE(first, nullptr);
  EXPECT_NE(first, second);
  EXPECT_EQ(windows.to(kPeer), first);
  EXPECT_EQ(windows.to(kOther), second);
  windows.charge(*first, 500);
  EXPECT_EQ(room(first), transport::kMinimumUnits - transport::window_units(500));
  EXPECT_EQ(room(second), transport::kMinimumUnits);
}

TEST_F(Windows, packet_before_the_window_was_made_counts_afterwards) {
  take_packet(kPeer);
  EXPECT_TRUE(send_due().empty());
  static_cast<void>(windows.to(kPeer));
  take_packet(kPeer);
  const std::vector<Sent> sent = send_due();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].peer, kPeer);
  EXPECT_EQ(sent[0].opcode, roce::Opcode::kWindowMarker);
}

TEST_F(Windows, peers_that_speak_in_turn_are_told_apart) {
  PeerWindow* const first = windows.to(kPeer);
  PeerWindow* const second = windows.to(kOther);
  take_packet(kPeer);
  take_packet(kOther, kStandardPort);
  take_packet(kPeer);
  EXPECT_EQ(room(first), transport::kMinimumUnits);
  EXPECT_EQ(room(second), transport::kNever);
  const std::vector<Sent> sent = send_due();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].peer, kPeer);
}

TEST_F(Windows, standard_peer_and_shared_memory_get_no_marker) {
  static_cast<void>(windows.to(kPeer));
  take_packet(kPeer, kStandardPort);
  EXPECT_TRUE(send_due().empty());
  static_cast<void>(windows.to(kOther));
  take_packet(kOther, 0);
  EXPECT_TRUE(send_due().empty());
}

TEST_F(Windows, marker_says_what_was_charged_and_its_grant_opens_the_window) {
  PeerWindow* const window = windows.to(kPeer);
  windows.charge(*window, 1000);
  const roce::WindowMarker marker = ask(kPeer);
  EXPECT_EQ(marker.sent_units, transport::window_units(1000));
  EXPECT_EQ(marker.sent_at_ns, kStartNs);
  EXPECT_TRUE(give(kOther, roce::Opcode::kWindowGrant, {marker, kLimit}));
  EXPECT_EQ(room(window), transport::kMinimumUnits - marker.sent_units) << "of somebody else";
  EXPECT_TRUE(give(kPeer, roce::Opcode::kWindowGrant, {marker, kLimit}));
  EXPECT_EQ(room(window), kLimit - marker.sent_units);
  EXPECT_EQ(windows.counters().markers, 1u);
  EXPECT_EQ(windows.counters().grants, 0u);
}

TEST_F(Windows, who_did_not_wait_is_listed_again_by_what_it_sends) {
  PeerWindow* const window = windows.to(kPeer);
  ASSERT_TRUE(give(kPeer, roce::Opcode::kWindowGrant, {ask(kPeer), kLimit}));
  EXPECT_TRUE(send_due().empty());
  windows.charge(*window, kLimit / 4);
  EXPECT_EQ(send_due().size(), 1u) << "half of the window has been sent";
}

TEST_F(Windows, marker_of_a_peer_is_answered_once_with_a_share_of_the_socket) {
  const roce::WindowMarker marker{7, 100, kStartNs};
  EXPECT_TRUE(give(kPeer, roce::Opcode::kWindowMarker, {marker, 0}));
  const std::vector<Sent> sent = send_due();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].peer, kPeer);
  EXPECT_EQ(sent[0].opcode, roce::Opcode::kWindowGrant);
  EXPECT_EQ(sent[0].body, (roce::WindowGrant{marker, 100 + kFirstShare}));
  EXPECT_EQ(windows.counters().grants, 1u);
  EXPECT_TRUE(send_due().empty());
}

// A thousand of them would leave a peer a thousandth of the socket.
TEST_F(Windows, markers_of_invented_addresses_get_the_minimum_and_take_nothing_of_a_peers_share) {
  const auto invented = [](std::uint32_t i) { return wire::Address::ipv4(0x0b000000 + i); };
  for (std::uint32_t i = 0; i < 1000; ++i)
    EXPECT_TRUE(give(invented(i), roce::Opcode::kWindowMarker, {{i, 100, kStartNs}, 0}));
  EXPECT_TRUE(give(kPeer, roce::Opcode::kWindowMarker, {{7, 100, kStartNs}, 0}));
  const std::vector<Sent> sent = send_due();
  ASSERT_EQ(sent.size(), 1001u);
  EXPECT_EQ(sent.front().body.limit_units, 100u);
  EXPECT_EQ(sent.back().body.limit_units, 100 + kFirstShare);
}

// Those of UD have any peer: who is sent to may send.
TEST_F(Windows, share_belongs_to_an_address_as_long_as_a_queue_pair_has_it_as_its_peer) {
  const wire::Address third = wire::Address::ipv4(0x0a000004);
  std::uint64_t count = 0;
  const auto has_share = [&] {
    ++count;
    EXPECT_TRUE(give(third, roce::Opcode::kWindowMarker, {{7, count, kStartNs}, 0}));
    return send_due().back().body.limit_units > count;
  };
  EXPECT_FALSE(has_share());
  windows.connect(third);
  windows.connect(third);
  windows.disconnect(third);
  EXPECT_TRUE(has_share());
  windows.disconnect(third);
  EXPECT_FALSE(has_share());
  static_cast<void>(windows.to(third));
  EXPECT_FALSE(has_share());
  windows.connect({});
  EXPECT_TRUE(has_share());
}

TEST_F(Windows, peer_that_answered_a_marker_sends_from_no_other_port_while_it_is_connected) {
  static_cast<void>(windows.to(kPeer));
  const auto from_another_port = [&] { return windows.on_taken(kPeer, kStandardPort, 64, kStartNs); };
  const roce::WindowMarker marker = ask(kPeer);
  EXPECT_TRUE(from_another_port()) << "it may be of another make";
  roce::WindowMarker guessed = marker;
  ++guessed.incarnation;
  give(kPeer, roce::Opcode::kWindowGrant, {guessed, kLimit});
  EXPECT_TRUE(from_another_port()) << "that was no answer";
  give(kPeer, roce::Opcode::kWindowGrant, {marker, kLimit});
  EXPECT_FALSE(from_another_port());
  EXPECT_TRUE(windows.on_taken(kPeer, kOurPort, 64, kStartNs));
  windows.disconnect(kPeer);
  windows.connect(kPeer);
  EXPECT_TRUE(from_another_port()) << "the address may have another owner";
  windows.charge(*windows.to(kPeer), 64);
  EXPECT_EQ(send_due().size(), 1u) << "it is asked again";
}

// Bytes taken of the socket decide when a silent peer's share is free again, windows to it or not.
TEST_F(Windows, share_of_the_silent_goes_to_who_speaks_once_a_socketful_was_taken) {
  const auto share = [&](const wire::Address& peer, std::uint64_t incarnation, std::uint64_t now_ns,
                         std::uint64_t sent_units = 0) {
    std::array<std::byte, roce::kWindowBytes> payload{};
    roce::encode_grant({{incarnation, sent_units, now_ns}, 0}, payload);
    roce::Decoded packet;
    packet.headers.bth.opcode = roce::Opcode::kWindowMarker;
    packet.payload = payload;
    EXPECT_TRUE(windows.on_packet(peer, packet, now_ns));
    return send_due(now_ns).back().body.limit_units;
  };
  EXPECT_EQ(share(kPeer, 1, kStartNs), kFirstShare);
  const std::uint64_t much = kSocketBytes / 2;
  EXPECT_EQ(share(kPeer, 1, kStartNs, much), much + kSocketBytes / 2);
  const std::uint64_t ended_ns = kStartNs + transport::kReclaimNs;
  EXPECT_EQ(share(kOther, 2, ended_ns), 0u);
  EXPECT_TRUE(windows.on_taken(kOther, 0, kSocketBytes, ended_ns));
  EXPECT_EQ(share(kOther, 2, ended_ns), 0u) << "that came by shared memory";
  EXPECT_TRUE(windows.on_taken(kOther, kStandardPort, kSocketBytes, ended_ns));
  EXPECT_EQ(share(kOther, 2, ended_ns), kFirstShare);
}

TEST_F(Windows, answers_leave_before_markers) {
  static_cast<void>(windows.to(kPeer));
  take_packet(kPeer);
  give(kOther, roce::Opcode::kWindowMarker, {{7, 0, kStartNs}, 0});
  const std::vector<Sent> sent = send_due();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].opcode, roce::Opcode::kWindowGrant);
  EXPECT_EQ(sent[1].opcode, roce::Opcode::kWindowMarker);
}

TEST_F(Windows, other_packets_are_nobodys_here_and_short_ones_draw_nothing) {
  EXPECT_FALSE(give(kPeer, roce::Opcode::kRcAcknowledge, {}));
  EXPECT_TRUE(give(windows, kPeer, roce::Opcode::kWindowMarker, {}, roce::kWindowBytes - 1));
  EXPECT_TRUE(send_due().empty());
}

TEST_F(Windows, waits_are_counted_once_and_the_next_to_ask_again_is_the_deadline) {
  EXPECT_EQ(windows.next_deadline_ns(kStartNs), transport::kNever);
  for (const wire::Address& peer : {kPeer, kOther}) {
    static_cast<void>(windows.to(peer));
    const std::uint64_t now_ns = kStartNs + (peer == kOther ? 5'000 : 0);
    windows.wait(*windows.to(peer), now_ns);
    windows.wait(*windows.to(peer), now_ns);
    EXPECT_TRUE(windows.on_taken(peer, kOurPort, 64, now_ns));
    EXPECT_EQ(send_due(now_ns).size(), 1u);
  }
  EXPECT_EQ(windows.counters().waits, 2u);
  const std::uint64_t deadline_ns = windows.next_deadline_ns(kStartNs);
  EXPECT_TRUE(send_due(deadline_ns - 1).empty());
  const std::vector<Sent> sent = send_due(deadline_ns);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].peer, kPeer);
}

TEST_F(Windows, switched_off_bounds_nothing_asks_nothing_and_grants_without_limit) {
  PeerWindows off(false, kSocketBytes, [] { return 1u; });
  EXPECT_FALSE(off.on());
  EXPECT_EQ(off.to(kPeer), nullptr);
  const roce::WindowMarker marker{7, 100, kStartNs};
  EXPECT_TRUE(give(off, kPeer, roce::Opcode::kWindowMarker, {marker, 0}));
  std::vector<roce::WindowGrant> sent;
  off.send_due(kStartNs, [&](const wire::Address&, roce::Opcode, const roce::WindowGrant& body) {
    sent.push_back(body);
  });
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0], (roce::WindowGrant{marker, roce::kNoWindow}));
  EXPECT_FALSE(PeerWindows(true, 0, [] { return 1u; }).on()) << "a wire without a socket";
}

TEST_F(Windows, beyond_the_most_peers_nothing_is_bounded) {
  for (std::uint32_t i = 0; i < 4096; ++i)
    ASSERT_NE(windows.to(wire::Address::ipv4(0x0b000000 + i)), nullptr);
  EXPECT_EQ(windows.to(kPeer), nullptr);
  EXPECT_NE(windows.to(wire::Address::ipv4(0x0b000000)), nullptr) << "who has one keeps it";
}

}  // namespace peer_windows_test
}  // namespace gdx::softhca
