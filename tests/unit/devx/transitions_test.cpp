// Transitions of a queue pair by DevX, and the query of one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "driver-shim/softhca/devx/limits.h"
#include "driver-shim/softhca/wire/addressing.h"
#include "tests/unit/devx/commands_fixture.h"

namespace gdx::softhca::devx {
namespace transitions_test {

using testing::_;
using testing::DoAll;
using testing::Return;
using testing::SaveArg;

const wire::Address peer_address = wire::Address::ipv4(0x7f000009);

// An INIT2RTR to peer_address that a ConnectX would not only accept: its packets would arrive.
prm::Mailbox<prm::kModifyQpInBytes> valid_init_to_rtr() {
  prm::Mailbox<prm::kModifyQpInBytes> in{};
  prm::set(in, prm::qp::kMtu, 5);
  prm::set(in, prm::qp::kLogMaxMessage, 30);
  prm::set(in, prm::qp::kRemoteQpn, 0x1234);
  prm::set(in, prm::qp::kNextReceivePsn, 0xfedcba);
  prm::set(in, prm::qp::kLogRraMax, 4);
  prm::set(in, prm::qp::kPathSourceGidIndex, 1);
  prm::set(in, prm::qp::kPathHopLimit, 1);
  prm::set(in, prm::qp::kPathUdpSourcePort, 0xc000);
  prm::set(in, prm::qp::kPathRemoteMacHigh, 0x0267);
  prm::set(in, prm::qp::kPathRemoteMacLow, 0x7f000009);
  std::copy(peer_address.gid.begin(), peer_address.gid.end(), in.begin() + prm::qp::kPathRemoteGidByte);
  return in;
}

TEST_F(DevxCommands, init_to_rtr_sets_the_attributes_that_the_context_carries) {
  QpAttributes set;
  std::uint32_t mask = 0;
  EXPECT_CALL(hca_, modify_qp(kQpn, _, _)).WillOnce(DoAll(SaveArg<1>(&mask), SaveArg<2>(&set), Return(0)));
  EXPECT_EQ(modify(prm::Opcode::kInit2Rtr, QpState::kInit, valid_init_to_rtr()), 0);
  EXPECT_EQ(mask, kQpState | kQpAddress | kQpPathMtu | kQpDestinationQpn | kQpReceivePsn |
                      kQpMaxDestRdAtomic | kQpMinRnrTimer | kQpMaxMessage | kQpDataOrder);
  EXPECT_EQ(set.state, QpState::kRtr);
  EXPECT_EQ(set.mtu_bytes, 4096u);
  EXPECT_EQ(set.max_message_bytes, 1u << 30);
  EXPECT_EQ(set.remote_qpn, 0x1234u);
  EXPECT_EQ(set.receive_psn, 0xfedcbau);
  EXPECT_EQ(set.max_dest_rd_atomic, 16);
  EXPECT_EQ(set.remote, peer_address);
}

// By the lowest bit of the tier where it is forced; only an HCA that says so lets it be.
TEST_F(DevxCommands, init_to_rtr_chooses_the_order_of_data) {
  config_.strict = true;
  QpAttributes set;
  EXPECT_CALL(hca_, modify_qp(kQpn, _, _)).WillRepeatedly(DoAll(SaveArg<2>(&set), Return(0)));
  for (const std::uint64_t any : {0u, 1u}) {
    auto in = valid_init_to_rtr();
    prm::set(in, prm::qp::kOrderingLow, any);
    EXPECT_EQ(modify(prm::Opcode::kInit2Rtr, QpState::kInit, in), 0);
    EXPECT_FALSE(set.any_order || set.forces_order) << "not forced";
    prm::set(in, prm::qp::kOrderingForce, 1);
    for (const OrderRule order : {OrderRule::kChosen, OrderRule::kKept, OrderRule::kAny}) {
      config_.data_order = order;
      EXPECT_EQ(modify(prm::Opcode::kInit2Rtr, QpState::kInit, in),
                order == OrderRule::kChosen ? 0 : EREMOTEIO);
      EXPECT_EQ(set.any_order, any == 1);
      EXPECT_TRUE(set.forces_order);
    }
    EXPECT_EQ(prm::get(out_, prm::kSyndrome), static_cast<std::uint32_t>(Syndrome::kOrderNotForced));
    config_.data_order = OrderRule::kChosen;
  }
}

TEST_F(DevxCommands, init_to_rtr_on_a_path_that_leads_nowhere_is_refused) {
  EXPECT_CALL(hca_, modify_qp(_, _, _)).Times(0);
  const auto refused_with = [this](PrmFieldValue wrong) {
    auto in = valid_init_to_rtr();
    prm::set(in, wrong.field, wrong.value);
    EXPECT_EQ(modify(prm::Opcode::kInit2Rtr, QpState::kInit, in), EREMOTEIO);
    EXPECT_EQ(status(), prm::CommandStatus::kBadParameter);
    return static_cast<Syndrome>(prm::get(out_, prm::kSyndrome));
  };
  EXPECT_EQ(refused_with({prm::qp::kPathRemoteMacHigh, 0}), Syndrome::kBadPath);
  EXPECT_EQ(refused_with({prm::qp::kPathRemoteMacLow, 0}), Syndrome::kBadPath);
  EXPECT_EQ(refused_with({prm::qp::kPathHopLimit, 0}), Syndrome::kBadPath);
  EXPECT_EQ(refused_with({prm::qp::kPathSourceGidIndex, wire::kGidTableSize}), Syndrome::kBadPath);
  EXPECT_EQ(refused_with({prm::qp::kPathUdpSourcePort, 0xbfff}), Syndrome::kBadPath);
  EXPECT_EQ(refused_with({prm::qp::kLogMaxMessage, 31}), Syndrome::kBadLimit);
  EXPECT_EQ(refused_with({prm::qp::kLogRraMax, 5}), Syndrome::kBadLimit);
  EXPECT_EQ(refused_with({prm::qp::kMtu, 0}), Syndrome::kBadMtu);
}

TEST_F(DevxCommands, init_to_rtr_on_infiniband_leads_by_lid) {
  config_.infiniband = true;
  QpAttributes set;
  EXPECT_CALL(hca_, modify_qp(kQpn, _, _)).Times(2).WillRepeatedly(DoAll(SaveArg<2>(&set), Return(0)));
  prm::Mailbox<prm::kModifyQpInBytes> in{};
  prm::set(in, prm::qp::kMtu, 5);
  prm::set(in, prm::qp::kPathRemoteLid, 0x0203);
  EXPECT_EQ(modify(prm::Opcode::kInit2Rtr, QpState::kInit, in), 0);
  EXPECT_EQ(set.remote, wire::Address::ipv4(0x7f000203));
  EXPECT_FALSE(set.global);
  prm::set(in, prm::qp::kPathGrh, 1);
  prm::set(in, prm::qp::kPathHopLimit, 1);
  const wire::Gid gid = wire::gid_of(set.remote, 0);
  std::ranges::copy(gid, in.begin() + prm::qp::kPathRemoteGidByte);
  EXPECT_EQ(modify(prm::Opcode::kInit2Rtr, QpState::kInit, in), 0);
  EXPECT_TRUE(set.global);
  for (const PrmFieldValue& wrong :
       {PrmFieldValue{prm::qp::kPathHopLimit, 0}, PrmFieldValue{prm::qp::kPathSourceGidIndex, 2},
        PrmFieldValue{prm::qp::kPathRemoteLid, 0x0204}}) {
    auto changed = in;
    prm::set(changed, wrong.field, wrong.value);
    EXPECT_EQ(modify(prm::Opcode::kInit2Rtr, QpState::kInit, changed), EREMOTEIO)
        << "a GRH without hops, from no GID, to another port's GID";
  }
  EXPECT_EQ(modify(prm::Opcode::kInit2Rtr, QpState::kInit, valid_init_to_rtr()), EREMOTEIO) << "no LID";
}

TEST_F(DevxCommands, reset_to_init_on_no_such_port_key_or_path_state_is_refused) {
  constexpr std::uint32_t kRearm = 1;
  prm::Mailbox<prm::kModifyQpInBytes> valid{};
  prm::set(valid, prm::qp::kPathPort, 1);
  prm::set(valid, prm::qp::kPathMigrationState, prm::qp::kMigrated);
  EXPECT_CALL(hca_, modify_qp(kQpn, _, _)).Times(2).WillRepeatedly(Return(0));
  EXPECT_EQ(modify(prm::Opcode::kRst2Init, QpState::kReset, valid), 0);
  prm::set(valid, prm::qp::kPathMigrationState, prm::qp::kArmed);
  EXPECT_EQ(modify(prm::Opcode::kRst2Init, QpState::kReset, valid), 0);
  for (const PrmFieldValue& wrong :
       {PrmFieldValue{prm::qp::kPathPort, 0}, PrmFieldValue{prm::qp::kPathPort, 2},
        PrmFieldValue{prm::qp::kPathPkeyIndex, 1}, PrmFieldValue{prm::qp::kPathMigrationState, kRearm}}) {
    auto in = valid;
    prm::set(in, wrong.field, wrong.value);
    EXPECT_EQ(modify(prm::Opcode::kRst2Init, QpState::kReset, in), EREMOTEIO);
    EXPECT_EQ(prm::get(out_, prm::kSyndrome), static_cast<std::uint32_t>(Syndrome::kBadPath));
  }
  config_.pkeys = {0xffff, 0x8001};
  QpAttributes set;
  EXPECT_CALL(hca_, modify_qp(kQpn, _, _)).WillOnce(DoAll(SaveArg<2>(&set), Return(0)));
  prm::set(valid, prm::qp::kPathPkeyIndex, 1);
  EXPECT_EQ(modify(prm::Opcode::kRst2Init, QpState::kReset, valid), 0);
  EXPECT_EQ(set.pkey_index, 1);
}

TEST_F(DevxCommands, atomics_without_an_atomic_mode_are_no_right) {
  prm::Mailbox<prm::kModifyQpInBytes> in{};
  prm::set(in, prm::qp::kPathPort, 1);
  prm::set(in, prm::qp::kPathMigrationState, prm::qp::kMigrated);
  prm::set(in, prm::qp::kRemoteAtomic, 1);
  prm::set(in, prm::qp::kRemoteWrite, 1);
  QpAttributes set;
  EXPECT_CALL(hca_, modify_qp(kQpn, _, _)).Times(2).WillRepeatedly(DoAll(SaveArg<2>(&set), Return(0)));
  EXPECT_EQ(modify(prm::Opcode::kRst2Init, QpState::kReset, in), 0);
  EXPECT_EQ(set.access, kRemoteWrite);
  EXPECT_EQ(set.counter_set, 0) << "of no counters, as long as nobody says which";
  prm::set(in, prm::qp::kCounterSet, 1);
  prm::set(in, prm::qp::kAtomicMode, prm::qp::kAtomicModeIbSpec);
  EXPECT_EQ(modify(prm::Opcode::kRst2Init, QpState::kReset, in), 0);
  EXPECT_EQ(set.access, kRemoteWrite | kRemoteAtomic);
  EXPECT_EQ(set.counter_set, 1);
}

// Linux include/linux/mlx5/qp.h, enum mlx5_qp_optpar.
TEST_F(DevxCommands, optional_parameter_alone_changes_what_it_names_and_nothing_else) {
  struct Parameter {
    std::uint32_t bit;
    std::uint32_t changed;
    std::uint32_t right = 0;
  };
  const Parameter parameters[] = {{1 << 1, kQpAccessFlags, kRemoteRead},
                                  {1 << 2, kQpAccessFlags, kRemoteAtomic},
                                  {1 << 3, kQpAccessFlags, kRemoteWrite},
                                  {1 << 6, kQpMinRnrTimer},
                                  {1 << 10, 0},
                                  {1 << 12, kQpRetryCount},
                                  {1 << 13, kQpRnrRetry},
                                  {1 << 14, kQpTimeout}};
  const QpAttributes otherwise;
  for (const Parameter& parameter : parameters) {
    for (const std::uint32_t rights : {0u, kRemoteRead | kRemoteWrite | kRemoteAtomic}) {
      SCOPED_TRACE(testing::Message() << "parameter " << parameter.bit << ", rights before " << rights);
      prm::Mailbox<prm::kModifyQpInBytes> in{};
      prm::set(in, prm::kOptParamMask, parameter.bit);
      prm::set(in, prm::qp::kPathMigrationState, prm::qp::kMigrated);
      prm::set(in, prm::qp::kPathAckTimeout, 9);
      prm::set(in, prm::qp::kRetryCount, 5);
      prm::set(in, prm::qp::kRnrRetry, 6);
      prm::set(in, prm::qp::kMinRnrNak, 11);
      prm::set(in, prm::qp::kAtomicMode, prm::qp::kAtomicModeIbSpec);
      for (const auto right : {prm::qp::kRemoteRead, prm::qp::kRemoteWrite, prm::qp::kRemoteAtomic}) {
        prm::set(in, right, rights == 0);
      }
      QpAttributes set;
      std::uint32_t mask = 0;
      EXPECT_CALL(hca_, modify_qp(kQpn, _, _))
          .WillOnce(DoAll(SaveArg<1>(&mask), SaveArg<2>(&set), Return(0)));
      EXPECT_EQ(modify(prm::Opcode::kRts2Rts, QpState::kRts, in, rights), 0);
      EXPECT_EQ(mask, kQpState | parameter.changed);
      EXPECT_EQ(set.access, rights ^ parameter.right);
      EXPECT_EQ(set.timeout, parameter.changed == kQpTimeout ? 9 : otherwise.timeout);
      EXPECT_EQ(set.retry_count, parameter.changed == kQpRetryCount ? 5 : otherwise.retry_count);
      EXPECT_EQ(set.rnr_retry, parameter.changed == kQpRnrRetry ? 6 : otherwise.rnr_retry);
      EXPECT_EQ(set.min_rnr_timer, parameter.changed == kQpMinRnrTimer ? 11 : otherwise.min_rnr_timer);
    }
  }
}

TEST_F(DevxCommands, optional_parameters_that_would_change_nothing_are_refused) {
  EXPECT_CALL(hca_, modify_qp(_, _, _)).Times(0);
  constexpr std::uint32_t kApplied =
      1 << 1 | 1 << 2 | 1 << 3 | 1 << 6 | 1 << 10 | 1 << 12 | 1 << 13 | 1 << 14;
  for (std::uint32_t bit = 0; bit < 32; ++bit) {
    if ((kApplied >> bit & 1) != 0) continue;
    prm::Mailbox<prm::kModifyQpInBytes> in{};
    prm::set(in, prm::kOptParamMask, 1u << bit);
    EXPECT_EQ(modify(prm::Opcode::kRts2Rts, QpState::kRts, in), EREMOTEIO) << bit;
    EXPECT_EQ(status(), prm::CommandStatus::kBadParameter) << bit;
  }
}

TEST_F(DevxCommands, transition_from_another_state_is_refused_without_reaching_the_engine) {
  EXPECT_CALL(hca_, modify_qp(_, _, _)).Times(0);
  EXPECT_EQ(modify(prm::Opcode::kRtr2Rts, QpState::kInit, {}), EREMOTEIO);
  EXPECT_EQ(status(), prm::CommandStatus::kBadQpState);
}

TEST_F(DevxCommands, query_qp_tells_the_limits_of_both_directions) {
  QpAttributes attributes;
  attributes.max_rd_atomic = 2;
  attributes.max_dest_rd_atomic = 8;
  ON_CALL(hca_, query_qp(kQpn)).WillByDefault(Return(attributes));
  prm::Mailbox<prm::kQueryQpOutBytes> out{};
  ASSERT_TRUE(query_qp(hca_, kQpn, out).ok());
  EXPECT_EQ(prm::get(out, prm::qp::kLogSraMax), 1u);
  EXPECT_EQ(prm::get(out, prm::qp::kLogRraMax), 3u);
}

}  // namespace transitions_test
}  // namespace gdx::softhca::devx
