#include "driver-shim/softhca/engine/qp_state.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <optional>

namespace gdx::softhca {
namespace {

constexpr std::uint32_t kToInit = kQpState | kQpPkeyIndex | kQpPort | kQpAccessFlags;
constexpr std::uint32_t kToRtr = kQpState | kQpAddress | kQpPathMtu | kQpDestinationQpn | kQpReceivePsn |
                                 kQpMaxDestRdAtomic | kQpMinRnrTimer;
constexpr std::uint32_t kToRts =
    kQpState | kQpTimeout | kQpRetryCount | kQpRnrRetry | kQpSendPsn | kQpMaxRdAtomic;

Errno modify(QpState from, QpState to, std::uint32_t mask, QpType type = QpType::kRc) {
  QpAttributes attributes;
  attributes.state = to;
  return check_modify(type, from, mask, attributes);
}

TEST(QpState, rc_path_to_rts_is_permitted) {
  EXPECT_EQ(modify(QpState::kReset, QpState::kInit, kToInit), 0);
  EXPECT_EQ(modify(QpState::kInit, QpState::kInit, kQpState), 0);
  EXPECT_EQ(modify(QpState::kInit, QpState::kRtr, kToRtr), 0);
  EXPECT_EQ(modify(QpState::kRtr, QpState::kRts, kToRts), 0);
  EXPECT_EQ(modify(QpState::kRts, QpState::kRts, kQpState), 0);
}

TEST(QpState, every_state_may_reset_and_fail) {
  for (int from = 0; from <= static_cast<int>(QpState::kError); ++from) {
    EXPECT_EQ(modify(static_cast<QpState>(from), QpState::kReset, kQpState), 0) << from;
    EXPECT_EQ(modify(static_cast<QpState>(from), QpState::kError, kQpState), 0) << from;
  }
}

TEST(QpState, each_missing_attribute_is_refused) {
  const auto sweep = [](QpState from, QpState to, std::uint32_t mask) {
    for (std::uint32_t bit = 1; bit < 1u << 21; bit <<= 1) {
      if (bit == kQpState || !(mask & bit)) continue;
      EXPECT_EQ(modify(from, to, mask & ~bit), EINVAL) << "without bit " << bit;
    }
  };
  sweep(QpState::kReset, QpState::kInit, kToInit);
  sweep(QpState::kInit, QpState::kRtr, kToRtr);
  sweep(QpState::kRtr, QpState::kRts, kToRts);
}

// From (row) to (column), in the order of QpState: R I T S D E X for RESET INIT RTR RTS SQD SQE ERROR.
TEST(QpState, every_pair_of_states_is_as_the_table_says) {
  constexpr int kStates = 7;
  constexpr std::array<const char*, kStates> kRc = {"RI....X", "RIT...X", "R..S..X", "R..S..X",
                                                    "R.....X", "R.....X", "R.....X"};
  constexpr std::array<const char*, kStates> kOthers = {"RI....X", "RIT...X", "R..S..X", "R..S..X",
                                                        "R.....X", "R..S..X", "R.....X"};
  constexpr std::uint32_t kEverything = 0x3fffff;
  for (const QpType type : {QpType::kRc, QpType::kUc, QpType::kUd}) {
    for (int from = 0; from < kStates; ++from) {
      for (int to = 0; to < kStates; ++to) {
        const bool permitted = (type == QpType::kRc ? kRc : kOthers)[from][to] != '.';
        EXPECT_EQ(modify(static_cast<QpState>(from), static_cast<QpState>(to), kEverything, type),
                  permitted ? 0 : EINVAL)
            << "type " << static_cast<int>(type) << " from " << from << " to " << to;
      }
    }
  }
}

TEST(QpState, values_out_of_range_are_refused) {
  QpAttributes attributes;
  attributes.state = QpState::kRtr;
  attributes.mtu_bytes = 1500;
  EXPECT_EQ(check_modify(QpType::kRc, QpState::kInit, kToRtr, attributes), EINVAL);
  attributes.mtu_bytes = 4096;
  EXPECT_EQ(check_modify(QpType::kRc, QpState::kInit, kToRtr, attributes), 0);
  attributes.remote_qpn = 0x1000000;
  EXPECT_EQ(check_modify(QpType::kRc, QpState::kInit, kToRtr, attributes), EINVAL);
}

constexpr std::uint32_t kPortMtuBytes = 4096;
constexpr bool kIpv4 = true;

TEST(QpStates, attributes_are_taken_by_the_mask_and_none_if_one_does_not_fit_the_port) {
  QpStates states(QpType::kRc, 0x11);
  QpAttributes asked;
  asked.qkey = 5;
  asked.mtu_bytes = 2048;
  asked.send_psn = 0x1234567;
  asked.remote = wire::Address::ipv4(0x0a000002);
  EXPECT_EQ(states.modify(kQpPathMtu | kQpSendPsn, asked, kPortMtuBytes, kIpv4), 0);
  EXPECT_EQ(states.attributes().mtu_bytes, 2048u);
  EXPECT_EQ(states.attributes().send_psn, 0x234567u) << "of 24 bits";
  EXPECT_EQ(states.attributes().qkey, 0u);
  EXPECT_EQ(states.modify(kQpQkey | kQpPathMtu, asked, 1024, kIpv4), EINVAL);
  EXPECT_EQ(states.modify(kQpQkey | kQpAddress, asked, kPortMtuBytes, !kIpv4), EINVAL);
  EXPECT_EQ(states.attributes().qkey, 0u);
}

TEST(QpStates, failure_ends_a_connection_but_only_the_sending_of_others_and_acts_once) {
  for (const QpType type : {QpType::kRc, QpType::kUc, QpType::kUd}) {
    QpStates states(type, 0x11);
    states.move_to(QpState::kRts);
    EXPECT_FALSE(states.take_failure());
    states.fail();
    const auto end = states.take_failure();
    ASSERT_TRUE(end);
    EXPECT_EQ(end->state, type == QpType::kRc ? QpState::kError : QpState::kSqe);
    EXPECT_EQ(end->event_type, QpStates::kNoEvent);
    EXPECT_FALSE(states.take_failure());
  }
}

TEST(QpStates, failure_with_an_event_replaces_one_without_and_nothing_fails_in_error) {
  QpStates states(QpType::kUd, 0x11);
  states.move_to(QpState::kRts);
  states.fail(kEventQpAccessError);
  states.fail();
  const auto end = states.take_failure();
  ASSERT_TRUE(end);
  EXPECT_EQ(end->state, QpState::kError);
  EXPECT_EQ(end->event_type, kEventQpAccessError);
  states.move_to(QpState::kError);
  states.fail(kEventQpFatal);
  EXPECT_FALSE(states.take_failure());
  states.move_to(QpState::kRts);
  EXPECT_FALSE(states.take_failure()) << "taken in ERROR";
}

TEST(QpStates, connection_is_established_once_in_rtr_until_reset) {
  QpStates states(QpType::kRc, 0x11);
  EXPECT_FALSE(states.establish());
  states.move_to(QpState::kRtr);
  EXPECT_TRUE(states.establish());
  EXPECT_FALSE(states.establish());
  states.reset();
  EXPECT_EQ(states.state(), QpState::kReset);
  states.move_to(QpState::kRtr);
  EXPECT_TRUE(states.establish());
  QpStates datagrams(QpType::kUd, 0x11);
  datagrams.move_to(QpState::kRtr);
  EXPECT_FALSE(datagrams.establish());
}

TEST(QpStates, transport_gets_the_rights_and_a_window_of_whole_packets) {
  QpStates states(QpType::kRc, 0x11);
  QpAttributes asked;
  asked.access = kRemoteWrite | kRemoteAtomic;
  asked.mtu_bytes = 1024;
  asked.remote_qpn = 0x22;
  ASSERT_EQ(states.modify(kQpAccessFlags | kQpPathMtu | kQpDestinationQpn, asked, kPortMtuBytes, kIpv4), 0);
  const transport::RcConfig config = states.rc_config(100 * 1024 + 1);
  EXPECT_EQ(config.local_qpn, 0x11u);
  EXPECT_EQ(config.remote_qpn, 0x22u);
  EXPECT_TRUE(config.remote_write);
  EXPECT_FALSE(config.remote_read);
  EXPECT_TRUE(config.remote_atomic);
  EXPECT_EQ(config.max_unacked_packets, 100u);
  EXPECT_EQ(states.rc_config(0).max_unacked_packets, 32u);
  EXPECT_EQ(states.rc_config(1 << 30).max_unacked_packets, 512u);
  EXPECT_EQ(states.ud_config(kPortMtuBytes).mtu_bytes, kPortMtuBytes);
}

}  // namespace
}  // namespace gdx::softhca
