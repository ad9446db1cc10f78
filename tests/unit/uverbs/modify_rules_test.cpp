#include "driver-shim/softhca/uverbs/modify_rules.h"

#include <gtest/gtest.h>

#include <array>

#include "driver-shim/softhca/engine/qp_state.h"

namespace gdx::softhca::uverbs {
namespace modify_rules_test {

constexpr std::uint32_t kPath = kQpAddress | kQpPathMtu | kQpDestinationQpn | kQpReceivePsn;
constexpr std::uint32_t kRcToRtr = kQpState | kPath | kQpMaxDestRdAtomic | kQpMinRnrTimer;
constexpr std::uint32_t kRcToRts =
    kQpState | kQpTimeout | kQpRetryCount | kQpRnrRetry | kQpSendPsn | kQpMaxRdAtomic;

TEST(ModifyRules, each_required_attribute_missing_is_refused) {
  const auto sweep = [](QpType type, QpState from, QpState to, std::uint32_t mask) {
    ASSERT_TRUE(may_modify(type, from, to, mask));
    for (std::uint32_t bit = 2; bit < 1u << 22; bit <<= 1) {
      if ((mask & bit) == 0) continue;
      EXPECT_FALSE(may_modify(type, from, to, mask & ~bit)) << "without " << bit;
    }
  };
  const std::uint32_t init = kQpState | kQpPkeyIndex | kQpPort;
  sweep(QpType::kRc, QpState::kReset, QpState::kInit, init | kQpAccessFlags);
  sweep(QpType::kUc, QpState::kReset, QpState::kInit, init | kQpAccessFlags);
  sweep(QpType::kUd, QpState::kReset, QpState::kInit, init | kQpQkey);
  sweep(QpType::kRc, QpState::kInit, QpState::kRtr, kRcToRtr);
  sweep(QpType::kUc, QpState::kInit, QpState::kRtr, kQpState | kPath);
  sweep(QpType::kRc, QpState::kRtr, QpState::kRts, kRcToRts);
  sweep(QpType::kUc, QpState::kRtr, QpState::kRts, kQpState | kQpSendPsn);
  sweep(QpType::kUd, QpState::kRtr, QpState::kRts, kQpState | kQpSendPsn);
}

TEST(ModifyRules, attribute_that_has_no_place_in_a_transition_is_refused) {
  EXPECT_FALSE(may_modify(QpType::kRc, QpState::kInit, QpState::kRtr, kRcToRtr | kQpTimeout));
  EXPECT_FALSE(may_modify(QpType::kUc, QpState::kRtr, QpState::kRts, kQpState | kQpSendPsn | kQpRetryCount));
  EXPECT_FALSE(may_modify(QpType::kRc, QpState::kRts, QpState::kRts, kQpTimeout)) << "fixed once in RTS";
  EXPECT_FALSE(may_modify(QpType::kRc, QpState::kRts, QpState::kError, kQpState | kQpAccessFlags));
  EXPECT_FALSE(may_modify(QpType::kUd, QpState::kRts, QpState::kRts, kQpAccessFlags));
}

TEST(ModifyRules, attribute_that_may_come_along_is_accepted) {
  EXPECT_TRUE(may_modify(QpType::kRc, QpState::kRts, QpState::kRts, kQpAccessFlags | kQpMinRnrTimer));
  EXPECT_TRUE(may_modify(QpType::kUd, QpState::kRts, QpState::kRts, kQpQkey));
  EXPECT_TRUE(may_modify(QpType::kUd, QpState::kSqe, QpState::kRts, kQpState | kCurrentStateAttribute));
  EXPECT_TRUE(may_modify(QpType::kRc, QpState::kRtr, QpState::kRts, kRcToRts | kMigrationStateAttribute));
}

// From (row) to (column), in the order of the states: R I T S D E X for RESET INIT RTR RTS SQD SQE ERROR.
// mlx5 has no command that leads into SQD or out of it, and RC is never in SQE. Source: Linux
// drivers/infiniband/core/verbs.c, qp_state_table.
TEST(ModifyRules, every_pair_of_states_is_as_the_kernels_table_says) {
  constexpr int kStates = 7;
  constexpr std::array<const char*, kStates> kKernel = {"RI.....", "RIT...X", "R..S..X", "R..SD.X",
                                                        "R..SD.X", "R..S..X", "R.....X"};
  for (const QpType type : {QpType::kRc, QpType::kUc, QpType::kUd}) {
    for (int from = 0; from < kStates; ++from) {
      for (int to = 0; to < kStates; ++to) {
        const auto start = static_cast<QpState>(from);
        const auto end = static_cast<QpState>(to);
        const bool drained = end == QpState::kSqd || (start == QpState::kSqd && end == QpState::kRts);
        bool permitted = false;
        for (const std::uint32_t attributes :
             {0u, kQpPkeyIndex | kQpPort | kQpAccessFlags, kQpPkeyIndex | kQpPort | kQpQkey, kPath, kRcToRtr,
              std::uint32_t{kQpSendPsn}, kRcToRts}) {
          permitted = permitted || may_modify(type, start, end, attributes | kQpState);
        }
        EXPECT_EQ(permitted, kKernel[from][to] != '.' && !drained)
            << "type " << static_cast<int>(type) << " from " << from << " to " << to;
      }
    }
  }
}

// Every transition that the kernel permits exists in the HCA, except RC in SQE, a state that RC never enters.
TEST(ModifyRules, every_permitted_transition_exists_in_the_hca) {
  constexpr int kStates = 7;
  constexpr std::array<std::uint32_t, 9> kMasks = {kQpState | kQpPkeyIndex | kQpPort | kQpAccessFlags,
                                                   kQpState | kQpPkeyIndex | kQpPort | kQpQkey,
                                                   kQpState | kPath,
                                                   kRcToRtr,
                                                   kQpState | kQpSendPsn,
                                                   kRcToRts,
                                                   kQpState,
                                                   kQpState | kQpQkey,
                                                   kQpState | kQpAccessFlags};
  int permitted = 0;
  for (const QpType type : {QpType::kRc, QpType::kUc, QpType::kUd}) {
    for (int from = 0; from < kStates; ++from) {
      for (int to = 0; to < kStates; ++to) {
        for (const std::uint32_t mask : kMasks) {
          const auto start = static_cast<QpState>(from);
          if (type == QpType::kRc && start == QpState::kSqe) continue;
          QpAttributes attributes;
          attributes.state = static_cast<QpState>(to);
          if (!may_modify(type, start, attributes.state, mask)) continue;
          ++permitted;
          EXPECT_EQ(check_modify(type, start, mask, attributes), 0)
              << from << " to " << to << " mask " << mask;
        }
      }
    }
  }
  EXPECT_GT(permitted, 3 * kStates * 2) << "to RESET and to ERROR alone are as many";
}

}  // namespace modify_rules_test
}  // namespace gdx::softhca::uverbs
