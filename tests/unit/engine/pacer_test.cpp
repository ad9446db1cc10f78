// A pacer alone: windows, a wire that answers what the test sets, and time that the test counts.
#include "driver-shim/softhca/engine/pacer.h"

#include <gtest/gtest.h>

#include <array>

#include "tests/unit/engine/still_wire.h"

namespace gdx::softhca {
namespace pacer_test {

constexpr std::uint64_t kStartNs = 1'000'000'000;
constexpr std::uint32_t kMtuBytes = 4096;
constexpr std::uint64_t kPacketUnits =
    transport::window_units(kMtuBytes + roce::kMaxHeaderBytes + roce::kIcrcBytes);
constexpr std::uint32_t kMany = 1000;

class PacerTest : public testing::Test {
 protected:
  PacerTest() {
    attributes_.state = QpState::kRts;
    attributes_.remote = peer_;
    attributes_.mtu_bytes = kMtuBytes;
  }
  Pacer pacer(QpType type = QpType::kRc) { return {type, attributes_, config_, windows_, wire_}; }

  wire::Address peer_ = wire::Address::ipv4(0x0a000002);
  QpAttributes attributes_;
  HcaConfig config_;
  PeerWindows windows_{true, 1 << 20, [] { return 1u; }};
  test::StillWire wire_;
};

TEST_F(PacerTest, new_peer_takes_what_the_minimum_of_its_window_holds) {
  Pacer pacer = this->pacer();
  pacer.advance(kStartNs);
  ASSERT_NE(pacer.window(), nullptr);
  constexpr std::uint64_t kRoom = transport::kMinimumUnits / kPacketUnits;
  EXPECT_EQ(pacer.requests_permitted(kStartNs, kMany, pacer.window(), true), kRoom);
  EXPECT_EQ(pacer.responses_permitted(kStartNs, kMany), kRoom);
  pacer.charge(pacer.window(), kMtuBytes);
  EXPECT_EQ(pacer.requests_permitted(kStartNs, kMany, pacer.window(), true), kRoom - 1);
  wire_.packets_of_room = 1;
  EXPECT_EQ(pacer.requests_permitted(kStartNs, kMany, pacer.window(), true), 1u);
  EXPECT_EQ(pacer.responses_permitted(kStartNs, kMany), 1u);
}

TEST_F(PacerTest, ring_that_bounds_and_a_state_that_receives_nothing_have_no_window) {
  Pacer pacer = this->pacer();
  wire_.bounded_by_ring = true;
  pacer.advance(kStartNs);
  EXPECT_EQ(pacer.window(), nullptr);
  EXPECT_EQ(pacer.requests_permitted(kStartNs, kMany, pacer.window(), true), kMany);
  wire_.bounded_by_ring = false;
  pacer.advance(kStartNs);
  EXPECT_NE(pacer.window(), nullptr);
  attributes_.state = QpState::kError;
  pacer.advance(kStartNs);
  EXPECT_EQ(pacer.window(), nullptr);
}

TEST_F(PacerTest, silent_peer_gets_one_packet_of_a_connection_whose_timer_does_not_run) {
  Pacer pacer = this->pacer();
  pacer.advance(kStartNs);
  while (pacer.window_has_room(kStartNs)) pacer.charge(pacer.window(), kMtuBytes);
  windows_.wait(*pacer.window(), kStartNs);
  EXPECT_EQ(pacer.requests_permitted(kStartNs, kMany, pacer.window(), false), 0u);
  const std::uint64_t stalled_ns = kStartNs + transport::kStalledNs;
  EXPECT_EQ(pacer.requests_permitted(stalled_ns, kMany, pacer.window(), true), 0u);
  EXPECT_EQ(pacer.requests_permitted(stalled_ns, kMany, pacer.window(), false), 1u);
}

TEST_F(PacerTest, datagrams_are_permitted_one_by_one_where_a_window_bounds_them) {
  Pacer pacer = this->pacer(QpType::kUd);
  pacer.advance(kStartNs);
  EXPECT_EQ(pacer.window(), nullptr) << "of no one peer";
  PeerWindow* const window = pacer.window_to(peer_);
  EXPECT_EQ(pacer.requests_permitted(kStartNs, kMany, window, false), kMany);
  EXPECT_TRUE(windows_.on_taken(peer_, roce::kUdpPort, 64, kStartNs));
  EXPECT_EQ(pacer.requests_permitted(kStartNs, kMany, window, false), 1u);
}

TEST_F(PacerTest, notification_halves_the_rate_until_reset_and_is_answered_at_intervals) {
  Pacer pacer = this->pacer();
  EXPECT_EQ(pacer.budget_bytes(kStartNs), ~std::uint64_t{0});
  pacer.on_sent(kStartNs, 1);
  EXPECT_TRUE(pacer.on_notification(kStartNs));
  const std::uint64_t burst = pacer.budget_bytes(kStartNs);
  pacer.on_sent(kStartNs, 2 * burst);
  EXPECT_TRUE(pacer.paused(kStartNs));
  // The port's 100 Gb/s, halved: 0.16 ns a byte.
  EXPECT_NEAR(static_cast<double>(pacer.wait_ns(kStartNs)), static_cast<double>(burst) * 0.16, 2);
  EXPECT_FALSE(pacer.paused(kStartNs + pacer.wait_ns(kStartNs)));
  pacer.reset(kStartNs);
  EXPECT_FALSE(pacer.paused(kStartNs));

  EXPECT_TRUE(pacer.take_notification(kStartNs));
  EXPECT_FALSE(pacer.take_notification(kStartNs + 1));
  EXPECT_TRUE(pacer.take_notification(kStartNs + transport::kNotificationIntervalNs));
}

TEST_F(PacerTest, notification_is_heeded_once_in_an_interval_and_only_after_a_packet) {
  Pacer pacer = this->pacer();
  EXPECT_FALSE(pacer.on_notification(kStartNs)) << "nothing was sent";
  pacer.on_sent(kStartNs, 0);
  EXPECT_FALSE(pacer.on_notification(kStartNs)) << "no byte was sent";
  pacer.on_sent(kStartNs, 1);
  EXPECT_TRUE(pacer.on_notification(kStartNs));
  EXPECT_FALSE(pacer.on_notification(kStartNs + 1));
  EXPECT_TRUE(pacer.on_notification(kStartNs + transport::kNotificationIntervalNs));
  EXPECT_FALSE(pacer.on_notification(kStartNs + 1'000'000'000)) << "what was sent is long gone";
}

TEST_F(PacerTest, congestion_control_off_or_without_a_connection_limits_nothing) {
  Pacer datagrams = pacer(QpType::kUd);
  datagrams.on_sent(kStartNs, 1);
  EXPECT_FALSE(datagrams.on_notification(kStartNs));
  config_.congestion_control = CongestionControl::kNone;
  Pacer off = pacer();
  off.on_sent(kStartNs, 1);
  EXPECT_FALSE(off.on_notification(kStartNs));
  EXPECT_FALSE(off.take_notification(kStartNs));
  EXPECT_EQ(off.budget_bytes(kStartNs), ~std::uint64_t{0});
}

}  // namespace pacer_test
}  // namespace gdx::softhca
