// Answers whole, and which command may come when.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <vector>

#include "driver-shim/softhca/devx/limits.h"
#include "driver-shim/softhca/wire/addressing.h"
#include "tests/unit/devx/commands_fixture.h"

namespace gdx::softhca::devx {
namespace answers_test {

using testing::_;
using testing::DoAll;
using testing::Return;
using testing::SaveArg;

template <std::size_t kBytes>
prm::Mailbox<kBytes> with(std::initializer_list<PrmFieldValue> fields) {
  prm::Mailbox<kBytes> box{};
  for (const PrmFieldValue& field : fields) prm::set(box, field.field, field.value);
  return box;
}

constexpr std::size_t kCapBytes = prm::kQueryHcaCapOutBytes;

// `ethernet`: 0 or 1.
prm::Mailbox<kCapBytes> general_capabilities(std::uint64_t ethernet) {
  namespace cap = prm::cap;
  return with<kCapBytes>({{cap::kHcaCap2, 1},
                          {cap::kLogMaxSrqSize, 15},
                          {cap::kLogMaxQpSize, 15},
                          {cap::kLogMaxQp, 18},
                          {cap::kLogMaxSrq, 18},
                          {cap::kLogMaxCqSize, 22},
                          {cap::kLogMaxCq, 18},
                          {cap::kLogMaxMkey, 18},
                          {cap::kMaxIndirection, 1},
                          {cap::kFixedBufferSize, 1},
                          {cap::kLogMaxTranslations, 16},
                          {cap::kLogMaxRequesterReads, 4},
                          {cap::kLogMaxResponderReads, 4},
                          {cap::kDeviceMemorySupported, 1},
                          {cap::kPortType, ethernet},
                          {cap::kNumPorts, 1},
                          {cap::kLogMaxMessage, 30},
                          {cap::kAnyOrderRc, ethernet},
                          {cap::kCqeVersion, 1},
                          {cap::kCompactAddressVector, 1},
                          {cap::kRoceSupported, ethernet},
                          {cap::kAtomicSupported, 1},
                          {cap::kCqOverrunIgnore, 1},
                          {cap::kMemoryWindows, 1},
                          {cap::kUd, 1},
                          {cap::kUc, 1},
                          {cap::kRc, 1},
                          {cap::kUar4k, 1},
                          {cap::kLogPageSize, 12},
                          {cap::kBlueFlame, 1},
                          {cap::kLogBlueFlameRegisterSize, 9},
                          {cap::kMaxWqeSizeSq, 1024},
                          {cap::kMaxWqeSizeRq, 512},
                          {cap::kLogMaxPd, 18},
                          {cap::kLogMaxRmp, 18},
                          {cap::kLogMaxRmpSize, 15},
                          {cap::kUarsPerPage, 1},
                          {cap::kCqe128Always, 1}});
}

TEST_F(DevxCommands, each_kind_of_capabilities_is_answered_whole) {
  namespace cap = prm::cap;
  config_.device_memory_bytes = 16384;
  for (const bool infiniband : {false, true}) {
    config_.infiniband = infiniband;
    config_.data_order = infiniband ? OrderRule::kKept : OrderRule::kChosen;
    const std::pair<std::uint32_t, prm::Mailbox<kCapBytes>> expected[] = {
        {0x0, general_capabilities(infiniband ? 0 : 1)},
        {0x3, with<kCapBytes>({{cap::kAtomicHostEndian, 1},
                               {cap::kAtomicHostEndianSupported, 1},
                               {cap::kAtomicOperations, 15},
                               {cap::kAtomicSizeQp, 12}})},
        {0x4, with<kCapBytes>({{cap::kRoceL3Type, 1},
                               {cap::kRoceVersions, 4},
                               {cap::kRoceDestinationUdpPort, 4791},
                               {cap::kRoceMinSourceUdpPort, 0xc000},
                               {cap::kRoceMaxSourceUdpPort, 0xffff},
                               {cap::kRoceAddressTableSize, 2}})},
        {0x7, {}},
        {0xf, with<kCapBytes>({{cap::kMemic, 1},
                               {cap::kLogMinMemicAllocation, 12},
                               {cap::kLogMaxMemicAlignment, 12},
                               {cap::kMaxMemicBytes, 16384}})},
        {0x20, with<kCapBytes>({{cap::kOrderingForced, infiniband ? 0u : 1u}})}};
    for (const auto& [type, capabilities] : expected) {
      for (const std::uint32_t current : {0u, 1u}) {
        prm::Mailbox<kCapBytes> out;
        out.fill(0xff);
        const auto in =
            with<prm::kShortCommandBytes>({{prm::kOpcode, 0x100}, {prm::kOpMod, type << 1 | current}});
        EXPECT_EQ(commands_.general(in, out), 0);
        EXPECT_EQ(out, capabilities) << type;
      }
    }
  }
  prm::Mailbox<kCapBytes> out{};
  EXPECT_EQ(commands_.general(with<prm::kShortCommandBytes>({{prm::kOpcode, 0x100}, {prm::kOpMod, 3}}), out),
            EREMOTEIO);
  EXPECT_EQ(prm::get(out, prm::kStatus), 0x03u);
  EXPECT_EQ(prm::get(out, prm::kSyndrome), 0x67640002u);
}

TEST_F(DevxCommands, addresses_bond_and_port_are_answered_whole) {
  for (std::uint8_t index = 0; index < 2; ++index) {
    auto expected = with<prm::kQueryRoceAddressOutBytes>({{prm::roce_address::kSourceMacHigh, 0x0267},
                                                          {prm::roce_address::kSourceMacLow, 0x7f000005},
                                                          {prm::roce_address::kL3Type, index == 0 ? 1u : 0u},
                                                          {prm::roce_address::kVersion, 2}});
    const wire::Gid gid = wire::gid_of(address_, index);
    std::copy(gid.begin(), gid.end(), expected.begin() + 16);
    const auto in =
        with<prm::kShortCommandBytes>({{prm::kOpcode, 0x760}, {prm::roce_address::kIndex, index}});
    prm::Mailbox<prm::kQueryRoceAddressOutBytes> out{};
    EXPECT_EQ(commands_.general(in, out), 0);
    EXPECT_EQ(out, expected) << +index;
  }
  prm::Mailbox<0x110> out{};
  EXPECT_EQ(commands_.general(with<16>({{prm::kOpcode, 0x760}, {prm::roce_address::kIndex, 2}}), out),
            EREMOTEIO);
  EXPECT_EQ(prm::get(out, prm::kStatus), 0x0au);
  EXPECT_EQ(commands_.general(with<16>({{prm::kOpcode, 0x754}}), out), 0);
  EXPECT_EQ(out, (with<0x110>({{prm::kNicVportRoceEnabled, 1}})));
  EXPECT_EQ(commands_.general(with<16>({{prm::kOpcode, 0x842}}), out), 0);
  EXPECT_EQ(out, (with<0x110>({})));
}

TEST_F(DevxCommands, queue_pair_is_queried_whole_in_each_state) {
  QpAttributes attributes;
  attributes.port = 3;
  attributes.pkey_index = 6;
  attributes.counter_set = 5;
  attributes.mtu_bytes = 2048;
  attributes.max_message_bytes = 1u << 29;
  attributes.remote_qpn = 0x123456;
  attributes.send_psn = 0x234567;
  attributes.receive_psn = 0x345678;
  attributes.retry_count = 2;
  attributes.rnr_retry = 3;
  attributes.min_rnr_timer = 17;
  attributes.max_rd_atomic = 4;
  attributes.max_dest_rd_atomic = 8;
  attributes.timeout = 21;
  attributes.any_order = true;
  attributes.forces_order = true;
  attributes.remote = wire::Address::ipv4(0x7f000203);
  const std::pair<QpState, std::uint32_t> states[] = {
      {QpState::kReset, 0}, {QpState::kInit, 1}, {QpState::kRtr, 2},  {QpState::kRts, 3},
      {QpState::kSqd, 5},   {QpState::kSqe, 4},  {QpState::kError, 6}};
  for (const auto& [state, number] : states) {
    for (const std::uint32_t access : {kRemoteRead + 0u, kRemoteWrite + 0u, kRemoteAtomic + 0u}) {
      // The port's link layer, and whether packets have a GRH.
      for (const auto& [infiniband, global] : {std::pair(false, true), {true, true}, {true, false}}) {
        attributes.global = global;
        attributes.state = state;
        attributes.access = access;
        config_.infiniband = infiniband;
        ON_CALL(hca_, query_qp(kQpn)).WillByDefault(Return(attributes));
        auto expected = with<prm::kQueryQpOutBytes>({{prm::qp::kState, number},
                                                     {prm::qp::kPathMigrationState, 3},
                                                     {prm::qp::kCounterSet, 5},
                                                     {prm::qp::kOrderingLow, 1},
                                                     {prm::qp::kOrderingForce, 1},
                                                     {prm::qp::kMtu, 4},
                                                     {prm::qp::kLogMaxMessage, 29},
                                                     {prm::qp::kRemoteQpn, 0x123456},
                                                     {prm::qp::kRemoteRead, access == kRemoteRead},
                                                     {prm::qp::kRemoteWrite, access == kRemoteWrite},
                                                     {prm::qp::kRemoteAtomic, access == kRemoteAtomic},
                                                     {prm::qp::kNextSendPsn, 0x234567},
                                                     {prm::qp::kNextReceivePsn, 0x345678},
                                                     {prm::qp::kRetryCount, 2},
                                                     {prm::qp::kRnrRetry, 3},
                                                     {prm::qp::kMinRnrNak, 17},
                                                     {prm::qp::kLogSraMax, 2},
                                                     {prm::qp::kLogRraMax, 3},
                                                     {prm::qp::kPathAckTimeout, 21},
                                                     {prm::qp::kPathPort, 3},
                                                     {prm::qp::kPathPkeyIndex, 6},
                                                     {prm::qp::kPathGrh, infiniband && global},
                                                     {prm::qp::kPathRemoteLid, infiniband ? 0x0203u : 0u}});
        const auto gid = wire::gid_of(attributes.remote, infiniband ? 0 : 1);
        if (global) std::copy(gid.begin(), gid.end(), expected.begin() + prm::qp::kPathRemoteGidByte);
        prm::Mailbox<prm::kQueryQpOutBytes> out{};
        const auto in = with<16>({{prm::kOpcode, 0x50b}, {prm::kObjectId, kQpn}});
        EXPECT_EQ(commands_.query({ObjectKind::kQp, kQpn, {}}, in, out), 0);
        EXPECT_EQ(out, expected);
        EXPECT_EQ(commands_.query({ObjectKind::kQp, kQpn + 1, {}}, in, out), EINVAL);
        EXPECT_EQ(commands_.query({ObjectKind::kCq, kQpn, {}}, in, out), EINVAL);
      }
    }
  }
}

// Lengths: Linux include/linux/mlx5/mlx5_ifc.h.
TEST_F(DevxCommands, output_shorter_than_the_commands_own_is_refused) {
  const Object queue_pair{ObjectKind::kQp, kQpn, {}};
  ON_CALL(hca_, query_qp(kQpn)).WillByDefault(Return(QpAttributes{}));
  const std::pair<std::uint16_t, std::size_t> commands[] = {
      {0x100, 0x1010}, {0x50b, 0x110}, {0x754, 0x110}, {0x760, 0x30}};
  for (const auto& [opcode, bytes] : commands) {
    const auto in = with<16>({{prm::kOpcode, opcode}, {prm::kObjectId, opcode == 0x50b ? kQpn : 0}});
    const bool of_queue_pair = opcode == 0x50b;
    const auto send = [&, of_queue_pair](Output out) {
      return of_queue_pair ? commands_.query(queue_pair, in, out) : commands_.general(in, out);
    };
    std::vector<std::uint8_t> out(bytes, 0xff);
    EXPECT_EQ(send(std::span(out).first(bytes - 1)), EREMOTEIO) << opcode;
    EXPECT_EQ(prm::get(out, prm::kStatus), 0x51u) << opcode;
    EXPECT_EQ(prm::get(out, prm::kSyndrome), 0x67640016u) << opcode;
    EXPECT_EQ(send(out), 0) << opcode;
  }
}

TEST_F(DevxCommands, command_for_each_kind_of_object_goes_with_it_alone) {
  const std::pair<ObjectKind, std::uint16_t> kinds[] = {{ObjectKind::kCq, 0x402},
                                                        {ObjectKind::kQp, 0x50b},
                                                        {ObjectKind::kRmp, 0x90f},
                                                        {ObjectKind::kMkey, 0x201}};
  for (const auto& [kind, own] : kinds) {
    const std::uint32_t number = kind == ObjectKind::kMkey ? kQpn << 8 | 0x5a : kQpn;
    const Object object{kind, number, {}};
    for (const auto& [other, opcode] : kinds) {
      const auto in = with<16>({{prm::kOpcode, opcode}, {prm::kObjectId, kQpn}});
      EXPECT_EQ(commands_.query(object, in, out_), other == kind ? EREMOTEIO : EINVAL) << opcode;
    }
    for (const std::uint16_t opcode : std::initializer_list<std::uint16_t>{0x403, 0x507, 0x90d}) {
      const bool transition = opcode == 0x507;
      const bool is_qp = kind == ObjectKind::kQp;
      const auto in = with<16>({{prm::kOpcode, opcode}, {prm::kObjectId, kQpn}});
      ON_CALL(hca_, query_qp(_)).WillByDefault(Return(QpAttributes{}));
      const Errno taken = transition ? 0 : EREMOTEIO;
      EXPECT_EQ(commands_.modify(object, in, out_), transition == is_qp ? taken : EINVAL) << opcode;
    }
    EXPECT_CALL(hca_, destroy_cq(number)).Times(kind == ObjectKind::kCq);
    EXPECT_CALL(hca_, destroy_qp(number)).Times(kind == ObjectKind::kQp);
    EXPECT_CALL(hca_, destroy_srq(number)).Times(kind == ObjectKind::kRmp);
    EXPECT_CALL(hca_, deregister_memory(number)).Times(kind == ObjectKind::kMkey);
    EXPECT_EQ(commands_.destroy(object), 0);
    testing::Mock::VerifyAndClearExpectations(&hca_);
    ON_CALL(hca_, config).WillByDefault(testing::ReturnRef(config_));
  }
  const std::pair<Errno, std::uint64_t> refusals[] = {
      {ENOENT, 0x05}, {EBUSY, 0x06}, {ENOMEM, 0x0f}, {EINVAL, 0x03}};
  for (const auto& [error, told] : refusals) {
    EXPECT_EQ(static_cast<std::uint64_t>(outcome_of(error).status), told);
    EXPECT_EQ(outcome_of(error).syndrome, 0x67640100u | static_cast<unsigned>(error));
  }
  EXPECT_TRUE(outcome_of(0).ok());
}

TEST_F(DevxCommands, transition_starts_from_its_state_and_takes_its_optional_parameters) {
  struct Transition {
    std::uint16_t opcode;
    std::vector<QpState> from;
    std::uint32_t optional;
    std::uint32_t mask;
  };
  constexpr std::uint32_t kRights = 1 << 1 | 1 << 2 | 1 << 3;
  const std::vector<QpState> any{QpState::kReset, QpState::kInit, QpState::kRtr,  QpState::kRts,
                                 QpState::kSqd,   QpState::kSqe,  QpState::kError};
  const Transition transitions[] = {
      {0x502, {QpState::kReset}, 0, kQpState | kQpPkeyIndex | kQpPort | kQpAccessFlags | kQpCounterSet},
      {0x50e, {QpState::kInit}, kRights, kQpState},
      {0x503,
       {QpState::kInit},
       kRights,
       kQpState | kQpAddress | kQpPathMtu | kQpDestinationQpn | kQpReceivePsn | kQpMaxDestRdAtomic |
           kQpMinRnrTimer | kQpMaxMessage | kQpDataOrder},
      {0x504,
       {QpState::kRtr},
       kRights | 1 << 6 | 1 << 10,
       kQpState | kQpTimeout | kQpRetryCount | kQpRnrRetry | kQpSendPsn | kQpMaxRdAtomic},
      {0x505, {QpState::kRts}, kRights | 1 << 6 | 1 << 10 | 7 << 12, kQpState},
      {0x507, any, 0, kQpState},
      {0x50a, any, 0, kQpState}};
  auto valid = with<prm::kModifyQpInBytes>({{prm::qp::kMtu, 1},
                                            {prm::qp::kPathPort, 1},
                                            {prm::qp::kPathMigrationState, 3},
                                            {prm::qp::kPathHopLimit, 1},
                                            {prm::qp::kPathUdpSourcePort, 0xffff},
                                            {prm::qp::kPathRemoteMacHigh, 0x0267},
                                            {prm::qp::kPathRemoteMacLow, 0x7f000009}});
  const wire::Address peer = wire::Address::ipv4(0x7f000009);
  std::copy(peer.gid.begin(), peer.gid.end(), valid.begin() + prm::qp::kPathRemoteGidByte);
  std::uint32_t mask = 0;
  ON_CALL(hca_, modify_qp(kQpn, _, _)).WillByDefault(DoAll(SaveArg<1>(&mask), Return(0)));
  for (const Transition& transition : transitions) {
    const auto opcode = static_cast<prm::Opcode>(transition.opcode);
    const bool bare = transition.opcode == 0x507 || transition.opcode == 0x50a;
    for (const QpState state : any) {
      const bool may = std::ranges::count(transition.from, state) != 0;
      mask = 0;
      EXPECT_EQ(modify(opcode, state, valid), may ? 0 : EREMOTEIO) << transition.opcode;
      EXPECT_EQ(status(), may ? prm::CommandStatus::kOk : prm::CommandStatus::kBadQpState);
      EXPECT_EQ(mask, may ? transition.mask : 0) << transition.opcode;
      if (!may) continue;
      for (std::uint32_t bit = 0; bit < 32 && !bare && transition.opcode != 0x502; ++bit) {
        auto in = valid;
        prm::set(in, prm::kOptParamMask, 1u << bit);
        const bool known = (transition.optional >> bit & 1) != 0;
        EXPECT_EQ(modify(opcode, state, in), known ? 0 : EREMOTEIO) << transition.opcode << " " << bit;
        EXPECT_EQ(modify(opcode, state, valid), 0);
      }
    }
  }
}

// Bits of a command, one at a time, for which a strict HCA refuses it.
std::string reserved_bits(prm::Opcode opcode) {
  std::string text;
  std::uint32_t first = 0;
  bool within = false;
  for (std::uint32_t bit = 0; bit <= 0x880; ++bit) {
    prm::Mailbox<0x880 / 8> in{};
    if (bit < 0x880) in[bit / 8] = static_cast<std::uint8_t>(0x80 >> bit % 8);
    const bool reserved = !check_reserved(opcode, in).ok();
    if (reserved && !within) first = bit;
    if (within && !reserved) text += fmt::format("{:x}-{:x} ", first, bit - 1);
    within = reserved;
  }
  return text;
}

// Linux include/linux/mlx5/mlx5_ifc.h: create_cq_in with cqc from 0x80; create_qp_in with qpc from 0xc0, in
// it the primary path from 0x180.
TEST(ReservedFields, are_those_that_no_interface_names) {
  EXPECT_EQ(reserved_bits(prm::Opcode::kCreateCq),
            "20-2f 60-7f 87-87 8c-8c 98-98 c0-d3 da-db e0-e2 100-103 120-137 140-142 148-187 1a0-1a7 "
            "1c0-1c7 1e0-1e7 220-23f ");
  EXPECT_EQ(reserved_bits(prm::Opcode::kCreateQp),
            "20-2f 60-7f de-df e4-e4 108-108 142-142 160-162 182-18f 1c5-1c7 1e0-1e3 280-283 286-286 444-447 "
            "44b-44c 453-453 45b-487 4e0-507 520-527 540-547 54b-54b 553-553 560-562 580-587 5a0-5a7 "
            "620-624 640-647 6c0-6ee 740-742 744-7df ");
}

TEST(CommandKinds, carry_the_opcodes_that_linux_lets_them) {
  const auto opcodes_of = [](CommandKind kind) {
    std::string text;
    for (std::uint16_t opcode = 0; opcode < 0xb00; ++opcode)
      if (travels_as(kind, opcode)) text += fmt::format("{:x} ", opcode);
    return text;
  };
  EXPECT_EQ(opcodes_of(CommandKind::kGeneral),
            "100 101 10a 750 752 754 760 762 76f 770 80a 80d 822 824 826 842 ");
  EXPECT_EQ(opcodes_of(CommandKind::kCreate),
            "200 400 500 600 700 705 710 717 771 782 800 806 80e 816 827 829 900 904 908 90c 912 916 930 933 "
            "936 939 "
            "93d 940 a00 ");
  EXPECT_EQ(opcodes_of(CommandKind::kModify),
            "403 502 503 504 505 506 507 50a 50e 703 708 714 71a 726 729 72a 785 827 829 901 905 909 90d 913 "
            "917 936 "
            "93c a01 ");
  EXPECT_EQ(
      opcodes_of(CommandKind::kQuery),
      "201 402 50b 702 707 713 719 725 727 773 784 82a 903 907 90b 90f 915 919 932 935 937 93b 93f 942 a02 ");
  for (const std::uint16_t opcode : std::initializer_list<std::uint16_t>{0xaff, 0xb00, 0xcff, 0xd00}) {
    EXPECT_EQ(travels_as(CommandKind::kGeneral, opcode), opcode >= 0xb00 && opcode < 0xd00) << opcode;
    EXPECT_FALSE(travels_as(CommandKind::kQuery, opcode));
  }
}

}  // namespace answers_test
}  // namespace gdx::softhca::devx
