#include "driver-shim/softhca/engine/qp_state.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace gdx::softhca {
namespace qp_state_test {

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

TEST(QpState, each_missing_attribute_is_refused_and_no_other_is_needed) {
  const auto sweep = [](QpType type, QpState from, QpState to, std::uint32_t mask) {
    EXPECT_EQ(modify(from, to, mask, type), 0) << "no more is needed";
    for (std::uint32_t bit = 1; bit < 1u << 21; bit <<= 1) {
      if (bit == kQpState || !(mask & bit)) continue;
      EXPECT_EQ(modify(from, to, mask & ~bit, type), EINVAL) << "without bit " << bit;
    }
  };
  sweep(QpType::kRc, QpState::kReset, QpState::kInit, kToInit);
  sweep(QpType::kRc, QpState::kInit, QpState::kRtr, kToRtr);
  sweep(QpType::kRc, QpState::kRtr, QpState::kRts, kToRts);
  sweep(QpType::kUc, QpState::kReset, QpState::kInit, kToInit);
  sweep(QpType::kUc, QpState::kInit, QpState::kRtr, kToRtr & ~(kQpMaxDestRdAtomic | kQpMinRnrTimer));
  sweep(QpType::kUc, QpState::kRtr, QpState::kRts, kQpState | kQpSendPsn);
  sweep(QpType::kUd, QpState::kReset, QpState::kInit, kQpState | kQpPkeyIndex | kQpPort | kQpQkey);
  sweep(QpType::kUd, QpState::kInit, QpState::kRtr, kQpState);
  sweep(QpType::kUd, QpState::kRtr, QpState::kRts, kQpState | kQpSendPsn);
  for (const QpType type : {QpType::kUc, QpType::kUd}) sweep(type, QpState::kSqe, QpState::kRts, kQpState);
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

TEST(QpState, values_are_permitted_up_to_their_bounds) {
  using Set = void (*)(QpAttributes&, std::uint32_t);
  const Set mtu = [](QpAttributes& to, std::uint32_t value) { to.mtu_bytes = value; };
  const Set timeout = [](QpAttributes& to, std::uint32_t value) { to.timeout = value & 0xff; };
  const Set retries = [](QpAttributes& to, std::uint32_t value) { to.retry_count = value & 0xff; };
  const Set rnr_retries = [](QpAttributes& to, std::uint32_t value) { to.rnr_retry = value & 0xff; };
  const Set rnr_timer = [](QpAttributes& to, std::uint32_t value) { to.min_rnr_timer = value & 0xff; };
  const Set remote_qpn = [](QpAttributes& to, std::uint32_t value) { to.remote_qpn = value; };
  const Set port = [](QpAttributes& to, std::uint32_t value) { to.port = value & 0xff; };
  const struct {
    std::uint32_t bit;
    Set set;
    std::vector<std::uint32_t> permitted;
    std::vector<std::uint32_t> refused;
  } cases[] = {{kQpPathMtu, mtu, {256, 512, 1024, 2048, 4096}, {0, 128, 1500, 8192}},
               {kQpTimeout, timeout, {0, 31}, {32}},
               {kQpRetryCount, retries, {0, 7}, {8}},
               {kQpRnrRetry, rnr_retries, {0, 7}, {8}},
               {kQpMinRnrTimer, rnr_timer, {0, 31}, {32}},
               {kQpDestinationQpn, remote_qpn, {0, 0xffffff}, {0x1000000}},
               {kQpPort, port, {1}, {0, 2}}};
  const auto check = [](std::uint32_t mask, Set set, std::uint32_t value) {
    QpAttributes attributes;
    set(attributes, value);
    return check_modify(QpType::kRc, QpState::kRts, mask, attributes);
  };
  for (const auto& one : cases) {
    for (const std::uint32_t value : one.permitted) EXPECT_EQ(check(one.bit, one.set, value), 0) << value;
    for (const std::uint32_t value : one.refused) {
      EXPECT_EQ(check(one.bit, one.set, value), EINVAL) << one.bit << ' ' << value;
      EXPECT_EQ(check(0, one.set, value), 0) << "not asked for";
    }
  }
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

TEST(QpStates, transports_get_every_attribute_each_right_and_a_window_of_whole_packets) {
  QpStates states(QpType::kRc, 0x11);
  QpAttributes asked;
  asked.qkey = 5;
  asked.mtu_bytes = 1024;
  asked.timeout = 3;
  asked.retry_count = 4;
  asked.rnr_retry = 6;
  asked.min_rnr_timer = 8;
  asked.max_rd_atomic = 9;
  asked.max_dest_rd_atomic = 10;
  asked.receive_psn = 11;
  asked.send_psn = 12;
  asked.remote_qpn = 0x22;
  constexpr std::uint32_t kAll = kQpQkey | kQpPathMtu | kQpTimeout | kQpRetryCount | kQpRnrRetry |
                                 kQpMinRnrTimer | kQpMaxRdAtomic | kQpMaxDestRdAtomic | kQpReceivePsn |
                                 kQpSendPsn | kQpDestinationQpn;
  states.move_to(QpState::kInit);
  ASSERT_EQ(states.modify(kAll, asked, kPortMtuBytes, kIpv4), 0);
  const transport::RcConfig rc = states.rc_config(100 * 1024 + 1);
  EXPECT_EQ(std::tuple(rc.local_qpn, rc.remote_qpn, rc.send_psn, rc.receive_psn, rc.first_msn, rc.mtu_bytes),
            std::tuple(0x11, 0x22, 12, 11, 0, 1024));
  EXPECT_EQ(std::tuple(rc.ack_timeout, rc.retry_count, rc.rnr_retry, rc.min_rnr_timer, rc.max_rd_atomic,
                       rc.max_dest_rd_atomic),
            std::tuple(3, 4, 6, 8, 9, 10));
  EXPECT_EQ(rc.max_unacked_packets, 100u);
  EXPECT_EQ(states.rc_config(0).max_unacked_packets, 32u);
  EXPECT_EQ(states.rc_config(1 << 30).max_unacked_packets, 512u);
  const transport::UcConfig uc = states.uc_config();
  EXPECT_EQ(std::tuple(uc.remote_qpn, uc.send_psn, uc.receive_psn, uc.mtu_bytes),
            std::tuple(0x22, 12, 11, 1024));
  const transport::UdConfig ud = states.ud_config(kPortMtuBytes);
  EXPECT_EQ(std::tuple(ud.local_qpn, ud.qkey, ud.send_psn, ud.mtu_bytes),
            std::tuple(0x11, 5, 12, kPortMtuBytes));
  for (const std::uint32_t right :
       {0u, std::uint32_t{kRemoteWrite}, std::uint32_t{kRemoteRead}, std::uint32_t{kRemoteAtomic}}) {
    asked.access = right;
    ASSERT_EQ(states.modify(kQpAccessFlags, asked, kPortMtuBytes, kIpv4), 0);
    const transport::RcConfig of = states.rc_config(0);
    EXPECT_EQ(of.remote_write, right == kRemoteWrite);
    EXPECT_EQ(of.remote_read, right == kRemoteRead);
    EXPECT_EQ(of.remote_atomic, right == kRemoteAtomic);
    EXPECT_EQ(states.uc_config().remote_write, right == kRemoteWrite);
  }
}

}  // namespace qp_state_test
}  // namespace gdx::softhca
