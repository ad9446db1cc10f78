// Builds mlx5 send WQEs as 16 B segments in registers. Every WQE but a long inline one is one WQEBB.
// Source: proto/mlx5/wqe.h.
#pragma once

#include <cstdint>

#include "device/exec/exec.h"
#include "proto/byte_order.h"
#include "proto/mlx5/wqe.h"

namespace gdx::device::impl {

using exec::Segment;

// Bytes that fit inline behind the control and address segments of one WQEBB, and of the largest
// inline WQE that device code builds.
inline constexpr std::uint32_t kInlineHeaderBytes = 4;
inline constexpr std::uint32_t kShortInlineBytes = 28;
inline constexpr std::uint32_t kMaxInlineBlocks = 4;
inline constexpr std::uint32_t kMaxInlineBytes =
    kMaxInlineBlocks * static_cast<std::uint32_t>(mlx5::kWqeBasicBlockBytes) - 2 * 16 - kInlineHeaderBytes;

GDX_DEVICE std::uint32_t low(std::uint64_t v) { return static_cast<std::uint32_t>(v); }
GDX_DEVICE std::uint32_t high(std::uint64_t v) { return static_cast<std::uint32_t>(v >> 32); }

GDX_DEVICE Segment control_segment(mlx5::WqeOpcode opcode, std::uint32_t wqe_index, std::uint32_t qpn,
                                   std::uint32_t segments, std::uint32_t fm_ce_se) {
  // The 16-bit WQE index sits between an opmod of 0 and the opcode.
  const std::uint32_t index_opcode = (wqe_index & 0xffff) << 8 | static_cast<std::uint32_t>(opcode);
  return {{byte_swap(index_opcode), byte_swap(qpn << 8 | segments), fm_ce_se << 24, 0}};
}

GDX_DEVICE Segment address_segment(std::uint64_t address, std::uint32_t rkey) {
  return {{byte_swap(high(address)), byte_swap(low(address)), byte_swap(rkey), 0}};
}

GDX_DEVICE Segment data_segment(std::uint32_t bytes, std::uint32_t lkey, std::uint64_t address) {
  return {{byte_swap(bytes), byte_swap(lkey), byte_swap(high(address)), byte_swap(low(address))}};
}

GDX_DEVICE Segment atomic_segment(std::uint64_t swap_or_add, std::uint64_t compare) {
  return {{byte_swap(high(swap_or_add)), byte_swap(low(swap_or_add)), byte_swap(high(compare)),
           byte_swap(low(compare))}};
}

// 8 B of inline data with its header; the value travels in memory order, that is little-endian.
GDX_DEVICE Segment inline_value_segment(std::uint64_t value, std::uint32_t bytes) {
  return {{byte_swap(mlx5::kInlineFlag | bytes), low(value), high(value), 0}};
}

// 16 B segments of an inline WQE, and the WQEBBs that they take.
GDX_DEVICE std::uint32_t inline_segments(std::uint32_t bytes) {
  return 2 + (kInlineHeaderBytes + bytes + 15) / 16;
}
GDX_DEVICE std::uint32_t blocks_of(std::uint32_t segments) { return (segments + 3) / 4; }

}  // namespace gdx::device::impl
