// Commands of the mlx5 device in their DevX form: big-endian buffers whose fields are named by bit offset.
// Bit 0 is the most significant bit of the first dword. Parties: the creator of queues through mlx5dv_devx_*
// and the device that executes the commands.
// Source: rdma-core providers/mlx5/mlx5_ifc.h; Linux include/linux/mlx5/mlx5_ifc.h for the CQ context, RoCE
// capabilities and umem offsets, which rdma-core's copy leaves out; PRM "Command Reference".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "proto/byte_order.h"

namespace gdx::mlx5::prm {

// A field of 1 to 32 bits inside one dword, or of 64 bits on a dword boundary.
struct PrmField {
  std::uint32_t bit_offset;
  std::uint32_t bit_width;
};

constexpr std::size_t end_byte(PrmField field) { return (field.bit_offset + field.bit_width + 7) / 8; }

constexpr std::uint32_t load_dword(std::span<const std::uint8_t> bytes, std::size_t at) {
  return std::uint32_t{bytes[at]} << 24 | std::uint32_t{bytes[at + 1]} << 16 |
         std::uint32_t{bytes[at + 2]} << 8 | std::uint32_t{bytes[at + 3]};
}

constexpr void store_dword(std::span<std::uint8_t> bytes, std::size_t at, std::uint32_t value) {
  for (std::size_t i = 0; i < 4; ++i) bytes[at + i] = static_cast<std::uint8_t>(value >> (24 - 8 * i));
}

constexpr std::uint32_t field_shift(PrmField field) { return 32 - field.bit_width - field.bit_offset % 32; }
constexpr std::uint32_t field_mask(PrmField field) {
  return field.bit_width == 32 ? ~0u : (1u << field.bit_width) - 1;
}
constexpr std::size_t dword_at(PrmField field) { return field.bit_offset / 32 * 4; }

// Returns the field's value; 0 beyond the buffer's end, as a device reads a short mailbox.
constexpr std::uint64_t get(std::span<const std::uint8_t> bytes, PrmField field) {
  const std::size_t at = dword_at(field);
  if (field.bit_width == 64) {
    if (at + 8 > bytes.size()) return 0;
    return std::uint64_t{load_dword(bytes, at)} << 32 | load_dword(bytes, at + 4);
  }
  if (at + 4 > bytes.size()) return 0;
  return (load_dword(bytes, at) >> field_shift(field)) & field_mask(field);
}

constexpr std::uint32_t get32(std::span<const std::uint8_t> bytes, PrmField field) {
  return static_cast<std::uint32_t>(get(bytes, field));
}

// Stores the low bits of `value`; stores nothing beyond the buffer's end.
constexpr void set(std::span<std::uint8_t> bytes, PrmField field, std::uint64_t value) {
  const std::size_t at = dword_at(field);
  if (field.bit_width == 64) {
    if (at + 8 > bytes.size()) return;
    store_dword(bytes, at, static_cast<std::uint32_t>(value >> 32));
    store_dword(bytes, at + 4, static_cast<std::uint32_t>(value));
    return;
  }
  if (at + 4 > bytes.size()) return;
  const std::uint32_t mask = field_mask(field) << field_shift(field);
  const std::uint32_t bits = (static_cast<std::uint32_t>(value) << field_shift(field)) & mask;
  store_dword(bytes, at, (load_dword(bytes, at) & ~mask) | bits);
}

// Opcodes that code here sends, or executes instead of refusing.
enum class Opcode : std::uint16_t {
  kQueryHcaCap = 0x100,
  kCreateMkey = 0x200,
  kQueryMkey = 0x201,
  kCreateCq = 0x400,
  kQueryCq = 0x402,
  kCreateQp = 0x500,
  kDestroyQp = 0x501,
  kRst2Init = 0x502,
  kInit2Rtr = 0x503,
  kRtr2Rts = 0x504,
  kRts2Rts = 0x505,
  k2Err = 0x507,
  k2Rst = 0x50a,
  kQueryQp = 0x50b,
  kInit2Init = 0x50e,
  kQueryNicVportContext = 0x754,
  kQueryRoceAddress = 0x760,
  kQueryHcaVportContext = 0x762,
  kQueryLag = 0x842,
  kCreateRmp = 0x90c,
  kQueryRmp = 0x90f,
};

// Byte 0 of every output.
enum class CommandStatus : std::uint8_t {
  kOk = 0x00,
  kInternalError = 0x01,
  kBadOperation = 0x02,
  kBadParameter = 0x03,
  kBadSystemState = 0x04,
  kBadResource = 0x05,
  kResourceBusy = 0x06,
  kLimitExceeded = 0x08,
  kBadResourceState = 0x09,
  kBadIndex = 0x0a,
  kNoResources = 0x0f,
  kBadQpState = 0x10,
  kBadInputLength = 0x50,
  kBadOutputLength = 0x51,
};

// Common to all commands.
inline constexpr PrmField kOpcode{0x00, 16};
inline constexpr PrmField kUid{0x10, 16};
inline constexpr PrmField kOpMod{0x30, 16};
inline constexpr PrmField kStatus{0x00, 8};
inline constexpr PrmField kSyndrome{0x20, 32};
// Number of the object: input of every command on an existing object, output of every create.
inline constexpr PrmField kObjectId{0x48, 24};
inline constexpr PrmField kOptParamMask{0x80, 32};
inline constexpr std::uint32_t kOptLagPortAffinity = 1 << 15;  // Linux enum mlx5_qp_optpar

inline constexpr std::size_t kShortCommandBytes = 0x80 / 8;  // in and out of commands with no context
inline constexpr std::size_t kCreateCqInBytes = 0x880 / 8;
inline constexpr std::size_t kCreateQpInBytes = 0x880 / 8;
inline constexpr std::size_t kCreateRmpInBytes = 0x880 / 8;
inline constexpr std::size_t kModifyQpInBytes = 0x880 / 8;
inline constexpr std::size_t kInit2InitInBytes = 0xe80 / 8;
inline constexpr std::size_t kQueryQpOutBytes = 0x880 / 8;
inline constexpr std::size_t kQueryHcaCapOutBytes = 0x8080 / 8;
inline constexpr std::size_t kQueryNicVportContextOutBytes = 0x880 / 8;
inline constexpr std::size_t kQueryRoceAddressOutBytes = 0x180 / 8;

// CREATE_CQ; the CQ context begins at bit 0x80.
namespace cq {
inline constexpr std::uint32_t kContext = 0x80;
inline constexpr PrmField kDbrUmemValid{kContext + 0x06, 1};
inline constexpr PrmField kCqeSize{kContext + 0x08, 3};  // 0: 64 B, 1: 128 B
inline constexpr PrmField kCollapsed{kContext + 0x0b, 1};
inline constexpr PrmField kOverrunIgnore{kContext + 0x0e, 1};
inline constexpr PrmField kDbrUmemId{kContext + 0x20, 32};
inline constexpr PrmField kLogSize{kContext + 0x63, 5};
inline constexpr PrmField kUarPage{kContext + 0x68, 24};
inline constexpr PrmField kEqn{kContext + 0xa0, 32};
inline constexpr PrmField kLogPageSize{kContext + 0xc3, 5};
inline constexpr PrmField kDbrAddress{kContext + 0x1c0, 64};  // an offset if a umem is given
inline constexpr PrmField kUmemOffset{0x280, 64};
inline constexpr PrmField kUmemId{0x2c0, 32};
inline constexpr PrmField kUmemValid{0x2e0, 1};
}  // namespace cq

// CREATE_QP, the transitions and QUERY_QP's output: the QP context begins at bit 0xc0 in all of them.
namespace qp {
inline constexpr std::uint32_t kContext = 0xc0;
inline constexpr PrmField kState{kContext + 0x00, 4};
inline constexpr PrmField kLagPortAffinity{kContext + 0x04,
                                           4};  // the bond's port that sends; 0: the HCA chooses
inline constexpr PrmField kServiceType{kContext + 0x08, 8};
inline constexpr PrmField kPathMigrationState{kContext + 0x13, 2};
// Tier of the order in which data lands, of two bits. With kOrderingForce that which the queue pair asks for
// holds, whatever the administrator or the network's routing make of it; without, the tier is ignored. A
// ConnectX-8 was seen to tell by QUERY_QP what its firmware chose; of other HCAs that is not known.
// Source: UCX ib_mlx5_ifc.h; Linux mlx5_ifc.h, dp_ordering_1; torchcomms pull request 3881 and
// MultipeerIbgdaTransport.
inline constexpr PrmField kOrderingLow{kContext + 0x26, 1};  // READs and WRITEs may land in any order
inline constexpr PrmField kOrderingForce{kContext + 0x27, 1};
inline constexpr PrmField kPd{kContext + 0x28, 24};
inline constexpr PrmField kMtu{kContext + 0x40, 3};  // enum ibv_mtu: 1 is 256 B, 5 is 4096 B
inline constexpr PrmField kLogMaxMessage{kContext + 0x43, 5};
inline constexpr PrmField kLogRqSize{kContext + 0x49, 4};    // receive WQEs
inline constexpr PrmField kLogRqStride{kContext + 0x4d, 3};  // 16 B << n
inline constexpr PrmField kNoSq{kContext + 0x50, 1};
inline constexpr PrmField kLogSqSize{kContext + 0x51, 4};  // WQEBBs
inline constexpr PrmField kTimestampFormat{kContext + 0x58, 2};
// 0: none, and the port's counters do not count it
inline constexpr PrmField kCounterSet{kContext + 0x60, 8};
inline constexpr PrmField kUarPage{kContext + 0x68, 24};
inline constexpr PrmField kUserIndex{kContext + 0x88, 24};
inline constexpr PrmField kLogPageSize{kContext + 0xa3, 5};
inline constexpr PrmField kRemoteQpn{kContext + 0xa8, 24};
inline constexpr PrmField kLogAckRequestFrequency{kContext + 0x380, 4};
inline constexpr PrmField kLogSraMax{kContext + 0x388, 3};  // READs and atomics in flight, requester
inline constexpr PrmField kRetryCount{kContext + 0x38d, 3};
inline constexpr PrmField kRnrRetry{kContext + 0x390, 3};
inline constexpr PrmField kNextSendPsn{kContext + 0x3c8, 24};
inline constexpr PrmField kSendCqn{kContext + 0x3e8, 24};
inline constexpr PrmField kLogRraMax{kContext + 0x488, 3};  // READs and atomics in flight, responder
inline constexpr PrmField kAtomicMode{kContext + 0x48c, 4};
inline constexpr PrmField kRemoteRead{kContext + 0x490, 1};
inline constexpr PrmField kRemoteWrite{kContext + 0x491, 1};
inline constexpr PrmField kRemoteAtomic{kContext + 0x492, 1};
inline constexpr PrmField kPageOffset{kContext + 0x494, 6};
inline constexpr PrmField kOrderingHigh{kContext + 0x49c, 1};  // SENDs and atomics may, too
inline constexpr PrmField kMinRnrNak{kContext + 0x4a3, 5};
inline constexpr PrmField kNextReceivePsn{kContext + 0x4a8, 24};
inline constexpr PrmField kReceiveCqn{kContext + 0x4e8, 24};
inline constexpr PrmField kDbrAddress{kContext + 0x500, 64};
inline constexpr PrmField kQkey{kContext + 0x540, 32};
inline constexpr PrmField kRqType{kContext + 0x565, 3};
inline constexpr PrmField kSrqn{kContext + 0x568, 24};
inline constexpr PrmField kHwSqCounter{kContext + 0x5a0, 16};
inline constexpr PrmField kSwSqCounter{kContext + 0x5b0, 16};
inline constexpr PrmField kDbrUmemValid{kContext + 0x683, 1};
inline constexpr PrmField kDbrUmemId{kContext + 0x720, 32};
inline constexpr PrmField kUmemOffset{0x800, 64};  // CREATE_QP only
inline constexpr PrmField kUmemId{0x840, 32};
inline constexpr PrmField kUmemValid{0x860, 1};

// The primary address path (struct ads).
inline constexpr std::uint32_t kPath = kContext + 0xc0;
inline constexpr PrmField kPathPkeyIndex{kPath + 0x10, 16};
inline constexpr PrmField kPathGrh{kPath + 0x28, 1};
inline constexpr PrmField kPathRemoteLid{kPath + 0x30, 16};
inline constexpr PrmField kPathAckTimeout{kPath + 0x40, 5};
inline constexpr PrmField kPathSourceGidIndex{kPath + 0x48, 8};
inline constexpr PrmField kPathHopLimit{kPath + 0x58, 8};
inline constexpr PrmField kPathTrafficClass{kPath + 0x64, 8};
inline constexpr PrmField kPathFlowLabel{kPath + 0x6c, 20};
inline constexpr std::size_t kPathRemoteGidByte = (kPath + 0x80) / 8;  // 16 bytes
inline constexpr PrmField kPathDscp{kPath + 0x10a, 6};
inline constexpr PrmField kPathUdpSourcePort{kPath + 0x110, 16};
inline constexpr PrmField kPathEthernetPriority{kPath + 0x121, 3};
inline constexpr PrmField kPathServiceLevel{kPath + 0x124, 4};  // of InfiniBand
inline constexpr PrmField kPathPort{kPath + 0x128, 8};
inline constexpr PrmField kPathRemoteMacHigh{kPath + 0x130, 16};
inline constexpr PrmField kPathRemoteMacLow{kPath + 0x140, 32};

enum TimestampFormat : std::uint32_t { kFreeRunning = 0, kDefaultTimestamps = 1, kRealTime = 2 };
enum ServiceType : std::uint32_t { kRc = 0, kUc = 1, kUd = 2 };
enum ReceiveQueueType : std::uint32_t { kOwnReceiveQueue = 0, kSharedReceiveQueue = 1, kNoReceiveQueue = 3 };
enum State : std::uint32_t {
  kReset = 0,
  kInit = 1,
  kRtr = 2,
  kRts = 3,
  kSqError = 4,
  kSqDrained = 5,
  kError = 6
};
// States of the path migration state machine.
inline constexpr std::uint32_t kArmed = 0;
inline constexpr std::uint32_t kMigrated = 3;
inline constexpr std::uint32_t kAtomicModeIbSpec = 1;
}  // namespace qp

// CREATE_RMP creates a receive memory pool, the SRQ of verbs. Its context begins at bit 0x100, the work
// queue's own at 0x280. Source: Linux include/linux/mlx5/mlx5_ifc.h, struct create_rmp_in, rmpc, wq.
namespace rmp {
inline constexpr std::uint32_t kContext = 0x100;
inline constexpr PrmField kState{kContext + 0x08, 4};
inline constexpr PrmField kBasicCyclicWqe{kContext + 0x20, 1};  // WQEs without a next segment
inline constexpr std::uint32_t kQueue = kContext + 0x180;
inline constexpr PrmField kQueueType{kQueue + 0x00, 4};
inline constexpr PrmField kPd{kQueue + 0x48, 24};
inline constexpr PrmField kDbrAddress{kQueue + 0x80, 64};
inline constexpr PrmField kLogStride{kQueue + 0x10c, 4};  // bytes
inline constexpr PrmField kLogSize{kQueue + 0x11b, 5};    // WQEs
inline constexpr PrmField kDbrUmemId{kQueue + 0x140, 32};
inline constexpr PrmField kUmemId{kQueue + 0x160, 32};
inline constexpr PrmField kUmemOffset{kQueue + 0x180, 64};

enum QueueType : std::uint32_t { kLinkedList = 0, kCyclic = 1 };
inline constexpr std::uint32_t kReady = 1;
}  // namespace rmp

// CREATE_MKEY; the key's context begins at bit 0x80, its translation entries at 0x880.
// Source: Linux include/linux/mlx5/mlx5_ifc.h, struct create_mkey_in, mkc, klm.
namespace mkey {
inline constexpr std::uint32_t kContext = 0x80;
inline constexpr PrmField kFree{kContext + 0x01, 1};
inline constexpr PrmField kAccessModeHigh{kContext + 0x03, 3};
inline constexpr PrmField kUmrEnabled{kContext + 0x10, 1};
inline constexpr PrmField kAtomic{kContext + 0x11, 1};
inline constexpr PrmField kRemoteWrite{kContext + 0x12, 1};
inline constexpr PrmField kRemoteRead{kContext + 0x13, 1};
inline constexpr PrmField kLocalWrite{kContext + 0x14, 1};
inline constexpr PrmField kAccessMode{kContext + 0x16, 2};
inline constexpr PrmField kTag{kContext + 0x38, 8};
inline constexpr PrmField kLength64{kContext + 0x60, 1};  // all of memory
inline constexpr PrmField kSignature{kContext + 0x61, 1};
inline constexpr PrmField kRemoteInvalidate{kContext + 0x67, 1};
inline constexpr PrmField kPd{kContext + 0x68, 24};
inline constexpr PrmField kStartAddress{kContext + 0x80, 64};
inline constexpr PrmField kLengthBytes{kContext + 0xc0, 64};
inline constexpr PrmField kMaxEntries{kContext + 0x1a0, 32};
inline constexpr PrmField kLogEntityBytes{kContext + 0x1db, 5};
inline constexpr PrmField kCrypto{kContext + 0x1e3, 2};
inline constexpr PrmField kEntries{0x300, 32};

inline constexpr std::size_t kEntriesByte = 0x880 / 8;
inline constexpr std::size_t kEntryBytes = 16;
inline constexpr PrmField kEntryMkey{0x20, 32};  // within an entry
inline constexpr PrmField kEntryAddress{0x40, 64};

inline constexpr std::uint32_t kModeAnySize = 2;    // KLM: every entry holds its length in bytes
inline constexpr std::uint32_t kModeFixedSize = 3;  // KSM: every entry covers 1 << kLogEntityBytes bytes
}  // namespace mkey

// Events that mlx5dv_devx_subscribe_devx_event names, by event queue entry.
// Source: Linux include/linux/mlx5/device.h, enum mlx5_event.
enum class Event : std::uint16_t {
  kCompletion = 0x00,
  kCommunicationEstablished = 0x02,
  kSqDrained = 0x03,
  kCqError = 0x04,
  kQpFatal = 0x05,
  kQpRequestError = 0x10,
  kQpAccessError = 0x11,
  kLastWqeReached = 0x13,
  kSrqLimitReached = 0x14,
};

// QUERY_HCA_CAP: op_mod is capability << 1 | 1 for the current value, | 0 for the maximum.
namespace cap {
enum Capability : std::uint32_t {
  kGeneral = 0x0,
  kAtomic = 0x3,
  kRoce = 0x4,
  kNicFlowTable = 0x7,
  kDeviceMemory = 0xf,
  kGeneral2 = 0x20,
};
constexpr std::uint32_t op_mod_current(Capability capability) { return capability << 1 | 1; }

inline constexpr std::uint32_t kBase = 0x80;  // the capability in the output
inline constexpr PrmField kHcaCap2{kBase + 0x20, 1};
inline constexpr PrmField kVhcaId{kBase + 0x30, 16};
inline constexpr PrmField kLogMaxSrqSize{kBase + 0x80, 8};
inline constexpr PrmField kLogMaxQpSize{kBase + 0x88, 8};
inline constexpr PrmField kLogMaxQp{kBase + 0x9b, 5};
inline constexpr PrmField kLogMaxSrq{kBase + 0xab, 5};
inline constexpr PrmField kLogMaxCqSize{kBase + 0xc8, 8};
inline constexpr PrmField kLogMaxCq{kBase + 0xdb, 5};
inline constexpr PrmField kLogMaxMkey{kBase + 0xea, 6};
inline constexpr PrmField kMaxIndirection{kBase + 0x100, 8};
inline constexpr PrmField kFixedBufferSize{kBase + 0x108, 1};
inline constexpr PrmField kLogMaxTranslations{kBase + 0x11a, 6};
inline constexpr PrmField kLogMaxRequesterReads{kBase + 0x14a, 6};
inline constexpr PrmField kLogMaxResponderReads{kBase + 0x15a, 6};
inline constexpr PrmField kRts2RtsUdpSourcePort{kBase + 0x151, 1};
inline constexpr PrmField kRts2RtsDscp{kBase + 0x16a, 1};
inline constexpr PrmField kGidTableSize{kBase + 0x170, 16};
inline constexpr PrmField kPkeyTableSize{kBase + 0x190, 16};
inline constexpr PrmField kDeviceMemorySupported{kBase + 0x1a8, 1};
inline constexpr PrmField kPortType{kBase + 0x1b6, 2};  // 1: Ethernet
inline constexpr PrmField kNumPorts{kBase + 0x1b8, 8};
inline constexpr PrmField kLogMaxMessage{kBase + 0x1c3, 5};
// READs and WRITEs of RC queue pairs on Ethernet may land in any order (dp_ordering_ooo_rw_rc), or all may,
// atomics among them (dp_ordering_ooo_all_rc).
inline constexpr PrmField kAnyOrderRc{kBase + 0x1ca, 1};
inline constexpr PrmField kAnyOrderOfAllRc{kBase + 0x334, 1};
inline constexpr PrmField kLagPortAffinityInit{kBase + 0x1f8, 1};  // init2_lag_tx_port_affinity
inline constexpr PrmField kCqeVersion{kBase + 0x1fc, 4};
inline constexpr PrmField kCompactAddressVector{kBase + 0x200, 1};
inline constexpr PrmField kRoceSupported{kBase + 0x21d, 1};
inline constexpr PrmField kAtomicSupported{kBase + 0x21e, 1};
inline constexpr PrmField kCqOverrunIgnore{kBase + 0x220, 1};
inline constexpr PrmField kMemoryWindows{kBase + 0x231, 1};  // imaicl
inline constexpr PrmField kUd{kBase + 0x23d, 1};
inline constexpr PrmField kUc{kBase + 0x23e, 1};
inline constexpr PrmField kRc{kBase + 0x23f, 1};
inline constexpr PrmField kUar4k{kBase + 0x240, 1};
inline constexpr PrmField kLogPageSize{kBase + 0x258, 8};
inline constexpr PrmField kBlueFlame{kBase + 0x260, 1};
inline constexpr PrmField kLogBlueFlameRegisterSize{kBase + 0x26b, 5};
inline constexpr PrmField kLagPorts{kBase + 0x27c, 4};
inline constexpr PrmField kMaxWqeSizeSq{kBase + 0x290, 16};
inline constexpr PrmField kMaxWqeSizeRq{kBase + 0x2b0, 16};
inline constexpr PrmField kLogMaxPd{kBase + 0x32b, 5};
inline constexpr PrmField kLogMaxRmp{kBase + 0x383, 5};
inline constexpr PrmField kLogMaxRmpSize{kBase + 0x3db, 5};
inline constexpr PrmField kDeviceFrequencyMhz{kBase + 0x4c0, 32};
inline constexpr PrmField kDeviceFrequencyKhz{kBase + 0x4e0, 32};
inline constexpr PrmField kUarsPerPage{kBase + 0x520, 32};
inline constexpr PrmField kCqe128Always{kBase + 0x5bd, 1};

inline constexpr PrmField kOrderingForced{kBase + 0x88,
                                          1};  // of the second general capabilities: dp_ordering_force

inline constexpr PrmField kAtomicHostEndian{kBase + 0x40, 2};  // of results of 8 B
inline constexpr PrmField kAtomicHostEndianSupported{kBase + 0x46, 1};
inline constexpr PrmField kAtomicOperations{kBase + 0x90, 16};  // enum AtomicOperation
inline constexpr PrmField kAtomicSizeQp{kBase + 0xb0, 16};      // bit n: 2^n B
enum AtomicOperation : std::uint32_t {
  kCompareSwap = 1 << 0,
  kFetchAdd = 1 << 1,
  kMaskedCompareSwap = 1 << 2,
  kMaskedFetchAdd = 1 << 3,
};

inline constexpr PrmField kQpTimestamps{kBase + 0x1e, 2};  // of the RoCE capabilities: enum QpTimestamps
enum QpTimestamps : std::uint32_t { kFreeRunningOnly = 0, kRealTimeOnly = 1, kFreeRunningAndRealTime = 2 };
inline constexpr PrmField kRoceL3Type{kBase + 0x8c, 4};    // 1: IPv4 as well
inline constexpr PrmField kRoceVersions{kBase + 0x98, 8};  // bit 2: v2
inline constexpr PrmField kRoceDestinationUdpPort{kBase + 0xb0, 16};
inline constexpr PrmField kRoceMaxSourceUdpPort{kBase + 0xc0, 16};
inline constexpr PrmField kRoceMinSourceUdpPort{kBase + 0xd0, 16};
inline constexpr PrmField kRoceAddressTableSize{kBase + 0xf0, 16};

inline constexpr PrmField kMemic{kBase + 0x00, 1};
inline constexpr PrmField kLogMinMemicAllocation{kBase + 0x2b, 5};
inline constexpr PrmField kLogMaxMemicAlignment{kBase + 0x38, 8};
inline constexpr PrmField kMaxMemicBytes{kBase + 0xa0, 32};
}  // namespace cap

// QUERY_ROCE_ADDRESS.
namespace roce_address {
inline constexpr PrmField kIndex{0x40, 16};              // input
inline constexpr std::size_t kSourceGidByte = 0x80 / 8;  // output: 16 bytes
inline constexpr PrmField kSourceMacHigh{0x110, 16};
inline constexpr PrmField kSourceMacLow{0x120, 32};
inline constexpr PrmField kL3Type{0x154, 4};   // 0: IPv4, 1: IPv6
inline constexpr PrmField kVersion{0x158, 8};  // 0: v1, 2: v2
}  // namespace roce_address

inline constexpr PrmField kLagState{0x5d, 3};  // QUERY_LAG, output; 0: no bond

// QUERY_NIC_VPORT_CONTEXT, output.
inline constexpr PrmField kNicVportRoceEnabled{0x9f, 1};

// A command's input or output, zeroed.
template <std::size_t kBytes>
using Mailbox = std::array<std::uint8_t, kBytes>;

static_assert(get(Mailbox<4>{0x12, 0x34, 0x56, 0x78}, PrmField{8, 8}) == 0x34);
static_assert(end_byte(qp::kUmemValid) <= kCreateQpInBytes && end_byte(cq::kUmemValid) <= kCreateCqInBytes);
static_assert(qp::kContext % 32 == 0 && qp::kPathRemoteGidByte == 0x40);

}  // namespace gdx::mlx5::prm
