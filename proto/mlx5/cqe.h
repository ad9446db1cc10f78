// mlx5 completion queue entries. Source: rdma-core providers/mlx5/mlx5dv.h (mlx5_cqe64, mlx5_err_cqe).
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/byte_order.h"
#include "proto/status.h"

namespace gdx::mlx5 {

enum class CqeOpcode : std::uint8_t {
  kRequester = 0,
  kResponderWriteImmediate = 1,
  kResponderSend = 2,
  kResponderSendImmediate = 3,
  kResponderSendInvalidate = 4,
  kResize = 5,  // mark that ends a ring; later entries are in the next ring
  kRequesterError = 13,
  kResponderError = 14,
  kInvalid = 15,
};

enum class Syndrome : std::uint8_t {
  kNone = 0x00,
  kLocalLength = 0x01,
  kLocalQpOperation = 0x02,
  kLocalProtection = 0x04,
  kFlushed = 0x05,
  kMemoryWindowBind = 0x06,
  kBadResponse = 0x10,
  kLocalAccess = 0x11,
  kRemoteInvalidRequest = 0x12,
  kRemoteAccess = 0x13,
  kRemoteOperation = 0x14,
  kRetryExceeded = 0x15,
  kRnrRetryExceeded = 0x16,
  kRemoteAborted = 0x22,
};

constexpr const char* syndrome_name(Syndrome syndrome) {
  switch (syndrome) {
    case Syndrome::kNone: return "none";
    case Syndrome::kLocalLength: return "local length error";
    case Syndrome::kLocalQpOperation: return "local QP operation error";
    case Syndrome::kLocalProtection: return "local protection error";
    case Syndrome::kFlushed: return "work request flushed";
    case Syndrome::kMemoryWindowBind: return "memory window bind error";
    case Syndrome::kBadResponse: return "bad response";
    case Syndrome::kLocalAccess: return "local access error";
    case Syndrome::kRemoteInvalidRequest: return "remote invalid request";
    case Syndrome::kRemoteAccess: return "remote access error";
    case Syndrome::kRemoteOperation: return "remote operation error";
    case Syndrome::kRetryExceeded: return "transport retry counter exceeded";
    case Syndrome::kRnrRetryExceeded: return "RNR retry counter exceeded";
    case Syndrome::kRemoteAborted: return "remote aborted";
  }
  return "unknown syndrome";
}

// Maps any syndrome to a status of queue or peer, because an error CQE puts its queue pair in error.
constexpr Status status_of(Syndrome syndrome) {
  switch (syndrome) {
    case Syndrome::kLocalProtection:
    case Syndrome::kLocalAccess: return Status::kLocalProtection;
    case Syndrome::kFlushed: return Status::kFlushed;
    case Syndrome::kRemoteInvalidRequest: return Status::kRemoteInvalid;
    case Syndrome::kRemoteAccess: return Status::kRemoteAccess;
    case Syndrome::kRemoteOperation:
    case Syndrome::kRemoteAborted: return Status::kRemoteOperation;
    case Syndrome::kRetryExceeded: return Status::kPeerUnreachable;
    case Syndrome::kRnrRetryExceeded: return Status::kPeerNotReady;
    case Syndrome::kNone:
    case Syndrome::kLocalLength:
    case Syndrome::kLocalQpOperation:
    case Syndrome::kMemoryWindowBind:
    case Syndrome::kBadResponse: return Status::kQueueError;
  }
  return Status::kQueueError;
}

inline constexpr std::uint8_t kCqeOwnerMask = 0x01;  // of op_own: flips on every pass of the ring
inline constexpr std::uint8_t kCqeOpcodeShift = 4;
inline constexpr std::uint8_t kCqeSolicited = 1u << 1;     // of op_own
inline constexpr std::uint32_t kCqeHasGrh = 1u << 28;      // of flags_remote_qpn
inline constexpr std::uint32_t kCqeRoceShift = 24;         // of flags_remote_qpn: enum CqeRoceType
inline constexpr std::uint8_t kCqeInlineScatter32 = 0x04;  // of op_own: payload inside the CQE

// Network header of a UD receive's packet, in the place of InfiniBand's service level. Bit 3 is UDP, the
// lower bits the network header. Source: Linux include/linux/mlx5/device.h, MLX5_CQE_ROCE_L3_HEADER_TYPE_*;
// PRM "CQE", sl.
enum class CqeRoceType : std::uint8_t { kNone = 0, kV2Ipv6 = 8 | 1, kV2Ipv4 = 8 | 2 };

struct Cqe64 {
  std::uint8_t reserved0[2];
  Be16 wqe_id;
  std::uint8_t reserved1[13];
  std::uint8_t ml_path;
  std::uint8_t reserved2[4];
  Be16 source_lid;
  Be32 flags_remote_qpn;  // sl, grh and the remote QPN of a UD receive
  std::uint8_t hds_ip_ext;
  std::uint8_t l4_hdr_type;
  Be16 vlan_info;
  Be32 srqn_user_index;  // with cqe_version 1 bits 23:0 hold the queue's user index
  Be32 immediate_or_invalidated_rkey;
  std::uint8_t reserved3[4];
  Be32 byte_count;
  Be64 timestamp;
  Be32 send_opcode_qpn;  // send WQE opcode << 24 | local qpn
  Be16 wqe_counter;
  std::uint8_t signature;
  std::uint8_t op_own;
};

struct ErrorCqe {
  std::uint8_t reserved0[32];
  Be32 srqn_user_index;
  std::uint8_t reserved1[18];
  std::uint8_t vendor_error_syndrome;
  std::uint8_t syndrome;
  Be32 send_opcode_qpn;
  Be16 wqe_counter;
  std::uint8_t signature;
  std::uint8_t op_own;
};

// Returns whether the HCA has written the entry at cumulative index `index` of a ring of `entries`, a power
// of two: whether it is of this pass.
constexpr bool is_written(std::uint8_t op_own, std::uint32_t index, std::uint32_t entries) {
  const bool odd_pass = (index & entries) != 0;
  return op_own >> kCqeOpcodeShift != static_cast<unsigned>(CqeOpcode::kInvalid) &&
         ((op_own & kCqeOwnerMask) != 0) == odd_pass;
}
constexpr bool is_requester_error(std::uint8_t op_own) {
  return op_own >> kCqeOpcodeShift == static_cast<unsigned>(CqeOpcode::kRequesterError);
}

static_assert(sizeof(Cqe64) == 64 && sizeof(ErrorCqe) == 64);
static_assert(offsetof(Cqe64, srqn_user_index) == 32 && offsetof(Cqe64, byte_count) == 44);
static_assert(offsetof(Cqe64, wqe_counter) == 60 && offsetof(Cqe64, op_own) == 63);
static_assert(offsetof(ErrorCqe, vendor_error_syndrome) == 54 && offsetof(ErrorCqe, syndrome) == 55);

}  // namespace gdx::mlx5
