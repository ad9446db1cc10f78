// mlx5 send work queue entries. Source: rdma-core providers/mlx5/mlx5dv.h (mlx5_wqe_*), and for the
// fence and completion modes the ConnectX Programmer's Reference Manual, "Control Segment".
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "proto/byte_order.h"

namespace gdx::mlx5 {

inline constexpr std::size_t kWqeBasicBlockBytes = 64;     // WQEBB: the unit of the send queue
inline constexpr std::size_t kSegmentBytes = 16;           // the unit of ControlSegment's ds
inline constexpr std::uint32_t kInlineFlag = 0x80000000u;  // in a data segment's byte count
inline constexpr std::uint32_t kInvalidLkey = 0x100;       // ends a receive WQE's scatter list
// Meaning of a data segment's byte count of 0, so clients leave out empty pieces: rdma-core
// providers/mlx5/qp.c skips them, providers/mlx4/qp.c gives the reason.
inline constexpr std::uint32_t kZeroByteCount = 1u << 31;
inline constexpr std::uint32_t kMaxMessageBytes = 1u << 30;  // log_msg_max of ports and queue pairs

enum class WqeOpcode : std::uint8_t {
  kNop = 0x00,
  kSendInvalidate = 0x01,
  kRdmaWrite = 0x08,
  kRdmaWriteImmediate = 0x09,
  kSend = 0x0a,
  kSendImmediate = 0x0b,
  kRdmaRead = 0x10,
  kAtomicCompareSwap = 0x11,
  kAtomicFetchAdd = 0x12,
  kAtomicMaskedCompareSwap = 0x14,
  kAtomicMaskedFetchAdd = 0x15,
  kUmr = 0x25,
};

// opmod of ControlSegment: the operands of a masked atomic have 4 << (opmod - kExtendedAtomic) bytes.
// Source: UCX, src/uct/ib/mlx5/ib_mlx5.h.
inline constexpr std::uint32_t kExtendedAtomic = 8;

// fm_ce_se of ControlSegment.
inline constexpr std::uint8_t kSolicited = 1u << 1;
inline constexpr std::uint8_t kCompletionOnError = 0u << 2;
inline constexpr std::uint8_t kCompletionAlways = 2u << 2;
inline constexpr std::uint8_t kCompletionMask = 3u << 2;
inline constexpr std::uint8_t kFenceShift = 5;
inline constexpr std::uint8_t kFenceInitiatorSmall = 1u << kFenceShift;  // after local invalidations
inline constexpr std::uint8_t kFenceReads = 2u << kFenceShift;           // after READs and atomics
inline constexpr std::uint8_t kFenceStrongOrdering = 3u << kFenceShift;  // after everything before it
inline constexpr std::uint8_t kFence = 4u << kFenceShift;                // small and reads: IBV_SEND_FENCE

inline constexpr std::uint8_t kQpnShift = 8;              // in qpn_ds
inline constexpr std::uint32_t kPutSegments = 3;          // of 16 B: control, address, data
inline constexpr std::uint32_t kSegmentCountMask = 0x3f;  // in qpn_ds

struct ControlSegment {
  Be32 opmod_index_opcode;  // opmod << 24 | WQEBB index << 8 | opcode
  Be32 qpn_ds;              // qpn << 8 | WQE size in 16 B segments (6 bits)
  std::uint8_t signature;
  std::uint8_t reserved[2];
  std::uint8_t fm_ce_se;
  Be32 immediate;  // immediate data, or the rkey to invalidate
};

struct RemoteAddressSegment {
  Be64 address;
  Be32 rkey;
  Be32 reserved;
};

// Returns the opcode of a control segment.
constexpr WqeOpcode wqe_opcode(const ControlSegment& control) {
  return static_cast<WqeOpcode>(static_cast<std::uint8_t>(control.opmod_index_opcode));
}
constexpr std::uint16_t wqe_index(const ControlSegment& control) {
  return static_cast<std::uint16_t>(control.opmod_index_opcode >> 8);
}
constexpr std::uint32_t wqe_qpn(const ControlSegment& control) { return control.qpn_ds >> kQpnShift; }
constexpr std::uint32_t wqe_segments(const ControlSegment& control) {
  return control.qpn_ds & kSegmentCountMask;
}

struct AtomicSegment {
  Be64 swap_or_add;
  Be64 compare;
};

// Second segment of a masked compare-and-swap on 8 B, after its AtomicSegment. A masked fetch-and-add has its
// field boundaries in the plain one's `compare`.
struct AtomicMaskSegment {
  Be64 swap_mask;
  Be64 compare_mask;
};

struct AtomicSegment32 {
  Be32 swap_or_add;
  Be32 compare_or_boundaries;
  Be32 swap_mask;  // both masks: compare-and-swap only
  Be32 compare_mask;
};

struct DataSegment {
  Be32 byte_count;
  Be32 lkey;
  Be64 address;
};

// A WRITE or READ of one piece of memory. If inline, `data` holds the byte count, then payload.
struct PutWqe {
  ControlSegment control;
  RemoteAddressSegment remote;
  DataSegment data;
};

// Copies as bytes, because the writer of the ring stored other types there.
inline PutWqe read_put_wqe(const std::byte* at) {
  PutWqe wqe;
  std::memcpy(&wqe, at, sizeof wqe);
  return wqe;
}

inline constexpr std::uint32_t kExtendedAddressVector = 0x80000000u;  // in its destination QPN
inline constexpr std::uint32_t kAddressVectorHasGrh = 1u << 30;       // in its grh_gid_flow

// struct mlx5_wqe_av, the UD address vector.
struct AddressVector {
  Be32 qkey;
  Be32 reserved0;
  Be32 destination_qpn;  // with kExtendedAddressVector
  std::uint8_t stat_rate_sl;
  std::uint8_t fl_mlid;
  Be16 remote_lid_or_udp_source_port;
  std::uint8_t reserved1[4];
  std::uint8_t remote_mac[6];
  std::uint8_t traffic_class;
  std::uint8_t hop_limit;
  Be32 grh_gid_flow;
  std::uint8_t remote_gid[16];
};

// struct mlx5_wqe_srq_next_seg, which begins every SRQ WQE.
struct SrqNextSegment {
  std::uint8_t reserved0[2];
  Be16 next_wqe_index;
  std::uint8_t signature;
  std::uint8_t reserved1[11];
};

struct alignas(kWqeBasicBlockBytes) WqeBasicBlock {
  std::byte bytes[kWqeBasicBlockBytes];
};

static_assert(sizeof(ControlSegment) == 16 && sizeof(RemoteAddressSegment) == 16);
static_assert(sizeof(AtomicSegment) == 16 && sizeof(DataSegment) == 16);
static_assert(sizeof(PutWqe) == 3 * kSegmentBytes);
static_assert(sizeof(AtomicMaskSegment) == 16 && sizeof(AtomicSegment32) == 16);
static_assert(sizeof(AddressVector) == 48 && sizeof(SrqNextSegment) == 16);

}  // namespace gdx::mlx5
