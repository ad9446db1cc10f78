// Builds mlx5 send WQEs as 16 B segments in registers. Every WQE but a long inline one is one WQEBB.
// Source: proto/mlx5/wqe.h.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "device/exec/exec.h"
#include "proto/byte_order.h"
#include "proto/mlx5/wqe.h"

namespace gdx::device::impl {

using exec::Segment;

// A WQE of one block. The NIC does not read beyond the segments in use.
struct Wqe {
  Segment at[4];
  std::uint32_t segments;
};

// The newest WQEs of a post, in the order of the queue. Of a WQE of several blocks only the control segment
// is here.
template <std::uint32_t Count>
struct Newest {
  Wqe at[Count];
  GDX_DEVICE std::uint64_t doorbell_value() const;
  // Returns whether a BlueFlame register takes each of them.
  GDX_DEVICE bool fits_blueflame() const { return at[0].segments <= 4; }
};

// Bytes that fit inline behind the control and address segments: of one WQEBB, and of the largest inline WQE.
inline constexpr std::uint32_t kInlineHeaderBytes = 4;
inline constexpr std::uint32_t kShortInlineBytes = 28;
inline constexpr std::uint32_t kMaxInlineBlocks = 4;
inline constexpr std::uint32_t kMaxInlineBytes =
    kMaxInlineBlocks * static_cast<std::uint32_t>(mlx5::kWqeBasicBlockBytes) - 2 * 16 - kInlineHeaderBytes;

// Returns the doorbell record's value for `producer`: its low 16 bits, big-endian.
GDX_DEVICE Be32 record_value(std::uint32_t producer) {
  Be32 value;
  value.raw = exec::permute_bytes<0x0144>(producer, 0);
  return value;
}

// Returns whether a message may have `bytes` bytes. Compares word by word, because a GPU takes two steps and
// a sum for 64 bits.
GDX_DEVICE bool is_message_length(std::uint64_t bytes) {
  const exec::Halves halves = exec::split(bytes);
  static_assert((mlx5::kMaxMessageBytes & (mlx5::kMaxMessageBytes - 1)) == 0);
  return (halves.high | ((halves.low - 1) & ~(mlx5::kMaxMessageBytes - 1))) == 0;
}

// Second word of the control segment for WQEs of kPutSegments, made once an endpoint.
GDX_DEVICE std::uint32_t queue_pair_word(std::uint32_t qpn) {
  return exec::swap_bytes(qpn << mlx5::kQpnShift | mlx5::kPutSegments);
}

GDX_DEVICE Segment control_segment(mlx5::WqeOpcode opcode, std::uint32_t wqe_index, std::uint32_t qpn_word,
                                   std::uint32_t segments, std::uint32_t fm_ce_se) {
  // Big-endian: opmod 0, the index's upper and lower byte, the opcode.
  const std::uint32_t index_opcode =
      exec::permute_bytes<0x4014>(wqe_index, 0) | static_cast<std::uint32_t>(opcode) << 24;
  return {{index_opcode, qpn_word + ((segments - mlx5::kPutSegments) << 24), fm_ce_se << 24, 0}};
}

// Returns the first 8 B of a WQE, the value that libmlx5 writes to the doorbell register.
GDX_DEVICE std::uint64_t doorbell_value(const Segment& control) {
  return exec::join(control.words[0], control.words[1]);
}

template <std::uint32_t Count>
GDX_DEVICE std::uint64_t Newest<Count>::doorbell_value() const {
  return impl::doorbell_value(at[Count - 1].at[0]);
}

GDX_DEVICE Segment address_segment(std::uint64_t address, Be32 rkey) {
  const exec::Halves halves = exec::split(address);
  return {{exec::swap_bytes(halves.high), exec::swap_bytes(halves.low), rkey.raw, 0}};
}

GDX_DEVICE Segment data_segment(std::uint32_t bytes, Be32 lkey, std::uint64_t address) {
  const exec::Halves halves = exec::split(address);
  return {{exec::swap_bytes(bytes), lkey.raw, exec::swap_bytes(halves.high), exec::swap_bytes(halves.low)}};
}

GDX_DEVICE Segment atomic_segment(std::uint64_t swap_or_add, std::uint64_t compare) {
  const exec::Halves left = exec::split(swap_or_add);
  const exec::Halves right = exec::split(compare);
  return {{exec::swap_bytes(left.high), exec::swap_bytes(left.low), exec::swap_bytes(right.high),
           exec::swap_bytes(right.low)}};
}

// Builds the segment of 8 B of inline data with its header; the value travels in memory order, that is
// little-endian. Uses byte_swap for `bytes`, a constant of the caller, because a compiler folds it, unlike
// exec::swap_bytes.
GDX_DEVICE Segment inline_value_segment(std::uint64_t value, std::uint32_t bytes) {
  const exec::Halves halves = exec::split(value);
  return {{byte_swap(mlx5::kInlineFlag | bytes), halves.low, halves.high, 0}};
}

// A value that travels in a WQE, in memory order.
struct ValueBits {
  std::uint64_t low;
  std::uint64_t high;
};
template <typename T>
inline constexpr bool kIsValue = std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(ValueBits) &&
                                 (sizeof(T) & (sizeof(T) - 1)) == 0;

template <typename T>
GDX_DEVICE ValueBits bits_of(const T& value) {
  static_assert(kIsValue<T>, "a value of 1, 2, 4, 8 or 16 B that may be copied as bytes");
  ValueBits bits{};
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}

// Builds the two segments of 16 B of inline data with their header.
GDX_DEVICE void wide_value_segments(const ValueBits& bits, Segment& first, Segment& second) {
  const exec::Halves low = exec::split(bits.low);
  const exec::Halves high = exec::split(bits.high);
  first = {{byte_swap(mlx5::kInlineFlag | 16u), low.low, low.high, high.low}};
  second = {{high.high, 0, 0, 0}};
}

// The two segments of `bytes` <= kShortInlineBytes of inline data, with their header.
struct InlineData {
  GDX_DEVICE InlineData(const std::byte* from, std::uint32_t bytes)
      : at{{{exec::swap_bytes(mlx5::kInlineFlag | bytes), 0, 0, 0}}, {}} {
    exec::copy<Scope::kThread>(reinterpret_cast<std::byte*>(at) + kInlineHeaderBytes, from, bytes);
  }
  Segment at[2];
};

// Loads a WQE that this thread stored, or its scope before their barrier.
GDX_DEVICE Wqe load_wqe(const std::byte* wqe) {
  return {{exec::load_segment(wqe), exec::load_segment(wqe + 16), exec::load_segment(wqe + 32),
           exec::load_segment(wqe + 48)},
          4};
}

// Returns the 16 B segments of an inline WQE, then the WQEBBs that segments take.
GDX_DEVICE std::uint32_t inline_segments(std::uint32_t bytes) {
  return 2 + (kInlineHeaderBytes + bytes + 15) / 16;
}
GDX_DEVICE std::uint32_t blocks_of(std::uint32_t segments) { return (segments + 3) / 4; }

}  // namespace gdx::device::impl
