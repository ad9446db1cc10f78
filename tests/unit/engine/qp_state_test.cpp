#include "driver-shim/softhca/engine/qp_state.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>

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

}  // namespace
}  // namespace gdx::softhca
