#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <span>
#include <string>

#include "proto/mlx5/prm.h"

namespace gdx::mlx5::prm {
namespace prm_test {

TEST(PrmField, empty_buffer_set_touches_only_the_fields_bits) {
  Mailbox<8> box;
  box.fill(0xff);
  set(box, PrmField{36, 5}, 0);
  EXPECT_EQ(box, (Mailbox<8>{0xff, 0xff, 0xff, 0xff, 0xf0, 0x7f, 0xff, 0xff}));
}

TEST(PrmField, value_wider_than_the_field_set_is_cut_to_it) {
  Mailbox<4> box{};
  set(box, PrmField{8, 8}, 0x1234);
  EXPECT_EQ(box, (Mailbox<4>{0, 0x34, 0, 0}));
}

TEST(PrmField, field_of_64_bits_set_reads_back_big_endian) {
  Mailbox<16> box{};
  set(box, PrmField{32, 64}, 0x0102030405060708u);
  EXPECT_EQ(box[4], 1);
  EXPECT_EQ(box[11], 8);
  EXPECT_EQ(get(box, PrmField{32, 64}), 0x0102030405060708u);
}

TEST(PrmField, short_buffer_read_gives_zero_and_written_stays) {
  Mailbox<6> box;
  box.fill(0xff);
  EXPECT_EQ(get(box, PrmField{32, 8}), 0u);
  EXPECT_EQ(get(box, PrmField{0, 64}), 0u);
  set(box, PrmField{32, 8}, 0);
  EXPECT_EQ(box[4], 0xff);
}

// Places that independent sources give in bytes or bits: DevX clients and the PRM.
TEST(PrmField, contexts_lie_where_devx_clients_put_them) {
  EXPECT_EQ(qp::kUmemOffset.bit_offset, 0x100u * 8);
  EXPECT_EQ(qp::kUmemId.bit_offset, 0x840u);
  EXPECT_EQ(qp::kUmemValid.bit_offset, 0x860u);
  EXPECT_EQ(qp::kServiceType.bit_offset, 0x18u * 8 + 8);
  EXPECT_EQ(cq::kUmemOffset.bit_offset, 0x280u);
  EXPECT_EQ(cq::kUmemId.bit_offset, 0x2c0u);
  EXPECT_EQ(kObjectId.bit_offset, 2u * 32 + 8);
}

// "OFFSET:WIDTH " for each, the offset in hexadecimal.
std::string places_of(std::span<const PrmField> fields) {
  std::string text;
  for (const PrmField& field : fields) text += fmt::format("{:x}:{} ", field.bit_offset, field.bit_width);
  return text;
}

// Linux include/linux/mlx5/mlx5_ifc.h, field by field.
TEST(PrmField, fields_of_commands_lie_where_linux_has_them) {
  EXPECT_EQ(places_of(std::array{kOpcode, kUid, kOpMod, kStatus, kSyndrome, kObjectId, kOptParamMask,
                                 kLagState, kNicVportRoceEnabled}),
            "0:16 10:16 30:16 0:8 20:32 48:24 80:32 5d:3 9f:1 ");
}

TEST(PrmField, fields_of_completion_queues_lie_where_linux_has_them) {
  using namespace cq;
  EXPECT_EQ(places_of(std::array{kDbrUmemValid, kCqeSize, kCollapsed, kOverrunIgnore, kDbrUmemId, kLogSize,
                                 kUarPage, kEqn, kLogPageSize, kDbrAddress, kUmemOffset, kUmemId}),
            "86:1 88:3 8b:1 8e:1 a0:32 e3:5 e8:24 120:32 143:5 240:64 280:64 2c0:32 ");
  EXPECT_EQ(places_of(std::array{kUmemValid}), "2e0:1 ");
}

TEST(PrmField, fields_of_queue_pairs_lie_where_linux_has_them) {
  using namespace qp;
  EXPECT_EQ(places_of(std::array{kState, kLagPortAffinity, kServiceType, kPathMigrationState, kOrderingLow,
                                 kOrderingForce, kPd, kMtu, kLogMaxMessage, kLogRqSize, kLogRqStride, kNoSq}),
            "c0:4 c4:4 c8:8 d3:2 e6:1 e7:1 e8:24 100:3 103:5 109:4 10d:3 110:1 ");
  EXPECT_EQ(places_of(std::array{kLogSqSize, kTimestampFormat, kCounterSet, kUarPage, kUserIndex,
                                 kLogPageSize, kRemoteQpn, kLogAckRequestFrequency, kLogSraMax, kRetryCount,
                                 kRnrRetry, kNextSendPsn}),
            "111:4 118:2 120:8 128:24 148:24 163:5 168:24 440:4 448:3 44d:3 450:3 488:24 ");
  EXPECT_EQ(places_of(std::array{kSendCqn, kLogRraMax, kAtomicMode, kRemoteRead, kRemoteWrite, kRemoteAtomic,
                                 kPageOffset, kMinRnrNak, kNextReceivePsn, kReceiveCqn, kDbrAddress, kQkey}),
            "4a8:24 548:3 54c:4 550:1 551:1 552:1 554:6 563:5 568:24 5a8:24 5c0:64 600:32 ");
  EXPECT_EQ(places_of(std::array{kRqType, kSrqn, kHwSqCounter, kSwSqCounter, kDbrUmemValid, kDbrUmemId,
                                 kUmemOffset, kUmemId, kUmemValid, kPathPkeyIndex, kPathGrh, kPathRemoteLid}),
            "625:3 628:24 660:16 670:16 743:1 7e0:32 800:64 840:32 860:1 190:16 1a8:1 1b0:16 ");
  EXPECT_EQ(places_of(std::array{kPathAckTimeout, kPathSourceGidIndex, kPathHopLimit, kPathTrafficClass,
                                 kPathFlowLabel, kPathDscp, kPathUdpSourcePort, kPathEthernetPriority,
                                 kPathServiceLevel, kPathPort, kPathRemoteMacHigh, kPathRemoteMacLow}),
            "1c0:5 1c8:8 1d8:8 1e4:8 1ec:20 28a:6 290:16 2a1:3 2a4:4 2a8:8 2b0:16 2c0:32 ");
  EXPECT_EQ(places_of(std::array{kOrderingHigh}), "55c:1 ");
}

TEST(PrmField, fields_of_receive_pools_lie_where_linux_has_them) {
  using namespace rmp;
  EXPECT_EQ(places_of(std::array{kState, kBasicCyclicWqe, kQueueType, kPd, kDbrAddress, kLogStride, kLogSize,
                                 kDbrUmemId, kUmemId, kUmemOffset}),
            "108:4 120:1 280:4 2c8:24 300:64 38c:4 39b:5 3c0:32 3e0:32 400:64 ");
}

TEST(PrmField, fields_of_memory_keys_lie_where_linux_has_them) {
  using namespace mkey;
  EXPECT_EQ(places_of(std::array{kFree, kAccessModeHigh, kUmrEnabled, kAtomic, kRemoteWrite, kRemoteRead,
                                 kLocalWrite, kAccessMode, kTag, kLength64, kSignature, kRemoteInvalidate}),
            "81:1 83:3 90:1 91:1 92:1 93:1 94:1 96:2 b8:8 e0:1 e1:1 e7:1 ");
  EXPECT_EQ(places_of(std::array{kPd, kStartAddress, kLengthBytes, kMaxEntries, kLogEntityBytes, kCrypto,
                                 kEntries, kEntryMkey, kEntryAddress}),
            "e8:24 100:64 140:64 220:32 25b:5 263:2 300:32 20:32 40:64 ");
}

TEST(PrmField, fields_of_capabilities_lie_where_linux_has_them) {
  using namespace cap;
  EXPECT_EQ(places_of(std::array{kHcaCap2, kVhcaId, kLogMaxSrqSize, kLogMaxQpSize, kLogMaxQp, kLogMaxSrq,
                                 kLogMaxCqSize, kLogMaxCq, kLogMaxMkey, kMaxIndirection, kFixedBufferSize,
                                 kLogMaxTranslations}),
            "a0:1 b0:16 100:8 108:8 11b:5 12b:5 148:8 15b:5 16a:6 180:8 188:1 19a:6 ");
  EXPECT_EQ(places_of(std::array{kLogMaxRequesterReads, kLogMaxResponderReads, kRts2RtsUdpSourcePort,
                                 kRts2RtsDscp, kGidTableSize, kPkeyTableSize, kDeviceMemorySupported,
                                 kPortType, kNumPorts, kLogMaxMessage, kAnyOrderRc, kLagPortAffinityInit}),
            "1ca:6 1da:6 1d1:1 1ea:1 1f0:16 210:16 228:1 236:2 238:8 243:5 24a:1 278:1 ");
  EXPECT_EQ(places_of(std::array{kCqeVersion, kCompactAddressVector, kRoceSupported, kAtomicSupported,
                                 kCqOverrunIgnore, kMemoryWindows, kUd, kUc, kRc, kUar4k, kLogPageSize,
                                 kBlueFlame}),
            "27c:4 280:1 29d:1 29e:1 2a0:1 2b1:1 2bd:1 2be:1 2bf:1 2c0:1 2d8:8 2e0:1 ");
  EXPECT_EQ(places_of(std::array{kLogBlueFlameRegisterSize, kLagPorts, kMaxWqeSizeSq, kMaxWqeSizeRq,
                                 kLogMaxPd, kAnyOrderOfAllRc, kLogMaxRmp, kLogMaxRmpSize, kDeviceFrequencyMhz,
                                 kDeviceFrequencyKhz, kUarsPerPage, kCqe128Always, kOrderingForced}),
            "2eb:5 2fc:4 310:16 330:16 3ab:5 3b4:1 403:5 45b:5 540:32 560:32 5a0:32 63d:1 108:1 ");
  EXPECT_EQ(
      places_of(std::array{kAtomicHostEndian, kAtomicHostEndianSupported, kAtomicOperations, kAtomicSizeQp,
                           kQpTimestamps, kRoceL3Type, kRoceVersions, kRoceDestinationUdpPort,
                           kRoceMaxSourceUdpPort, kRoceMinSourceUdpPort, kRoceAddressTableSize, kMemic}),
      "c0:2 c6:1 110:16 130:16 9e:2 10c:4 118:8 130:16 140:16 150:16 170:16 80:1 ");
  EXPECT_EQ(places_of(std::array{kLogMinMemicAllocation, kLogMaxMemicAlignment, kMaxMemicBytes}),
            "ab:5 b8:8 120:32 ");
}

TEST(PrmField, fields_of_addresses_lie_where_linux_has_them) {
  using namespace roce_address;
  EXPECT_EQ(places_of(std::array{kIndex, kSourceMacHigh, kSourceMacLow, kL3Type, kVersion}),
            "40:16 110:16 120:32 154:4 158:8 ");
}

}  // namespace prm_test
}  // namespace gdx::mlx5::prm
