// mlx5 doorbells: the user access region (UAR) page and the doorbell records in memory.
// Source: rdma-core providers/mlx5/{mlx5.h,qp.c,cq.c}; PRM "UAR Page Format".
#pragma once

#include <cstddef>
#include <cstdint>

namespace gdx::mlx5 {

inline constexpr std::size_t kUarPageBytes = 4096;
inline constexpr std::size_t kUarCqDoorbell = 0x20;          // 8 B: arm word << 32 | cqn
inline constexpr std::size_t kUarBlueFlame = 0x800;          // the first BlueFlame register
inline constexpr std::size_t kBlueFlameRegisterBytes = 512;  // log_bf_reg_size 9: two registers a page
inline constexpr std::size_t kBlueFlameBufferBytes = kBlueFlameRegisterBytes / 2;  // halves alternate
inline constexpr std::size_t kBlueFlameRegisters = 2;

// Indices into a queue pair's doorbell record, Be32[2], each a counter modulo 2^16.
inline constexpr std::size_t kReceiveRecord = 0;  // in receive WQEs
inline constexpr std::size_t kSendRecord = 1;     // in WQEBBs

// Indices into a completion queue's doorbell record, Be32[2].
inline constexpr std::size_t kConsumerRecord = 0;
inline constexpr std::size_t kArmRecord = 1;  // arm sequence << 28 | command << 24 | consumer index

inline constexpr std::uint32_t kArmSolicitedOnly = 1u << 24;
inline constexpr std::uint32_t kArmSequenceShift = 28;

}  // namespace gdx::mlx5
