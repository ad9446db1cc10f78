// The segments of a UMR WQE, which gives an existing memory key another range, other rights or another
// state. Binding a memory window and invalidating a key are UMR WQEs.
// Source: rdma-core providers/mlx5/mlx5dv.h (mlx5_wqe_umr_ctrl_seg, mlx5_wqe_mkey_context_seg,
// mlx5_wqe_umr_*) and qp.c (set_bind_wr, umr_strided_seg_create).
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/byte_order.h"

namespace gdx::mlx5 {

// Control of a UMR; the control segment's `immediate` names the key.
struct UmrControlSegment {
  std::uint8_t flags;  // kUmr*
  std::uint8_t reserved0[3];
  Be16 translation_octowords;  // 16 B each, the size of a translation entry
  Be16 translation_offset;
  Be64 mkey_mask;  // kMkeyMask*: the fields of the context segment to apply
  std::uint8_t reserved1[32];
};

inline constexpr std::uint8_t kUmrInline = 1u
                                           << 7;  // the translation is in the WQE, else behind a DataSegment
inline constexpr std::uint8_t kUmrCheckFree = 1u << 5;
inline constexpr std::uint8_t kUmrTranslationOffset = 1u << 4;
inline constexpr std::uint8_t kUmrCheckQpn = 1u << 3;

inline constexpr std::uint64_t kMkeyMaskLength = 1u << 0;
inline constexpr std::uint64_t kMkeyMaskStartAddress = 1u << 6;
inline constexpr std::uint64_t kMkeyMaskTag = 1u << 13;
inline constexpr std::uint64_t kMkeyMaskQpn = 1u << 14;
inline constexpr std::uint64_t kMkeyMaskLocalWrite = 1u << 18;
inline constexpr std::uint64_t kMkeyMaskRemoteRead = 1u << 19;
inline constexpr std::uint64_t kMkeyMaskRemoteWrite = 1u << 20;
inline constexpr std::uint64_t kMkeyMaskAtomic = 1u << 21;
inline constexpr std::uint64_t kMkeyMaskFree = 1u << 29;

struct MkeyContextSegment {
  std::uint8_t free;  // kMkeyFree
  std::uint8_t reserved0;
  std::uint8_t access_flags;  // kMkey*
  std::uint8_t reserved1;
  Be32 qpn_tag;  // qpn << 8 | the key's low byte; the queue pair that may use the key
  std::uint8_t reserved2[4];
  Be32 flags_pd;
  Be64 start_address;
  Be64 length_bytes;
  std::uint8_t reserved3[32];
};

inline constexpr std::uint8_t kMkeyFree = 1u << 6;
inline constexpr std::uint8_t kMkeyAtomic = 1u << 6;
inline constexpr std::uint8_t kMkeyRemoteWrite = 1u << 5;
inline constexpr std::uint8_t kMkeyRemoteRead = 1u << 4;
inline constexpr std::uint8_t kMkeyLocalWrite = 1u << 3;
inline constexpr std::uint32_t kMkeyAnyQpn = 0xffffff;
inline constexpr std::uint32_t kMkeyTagBits = 8;  // a key is its object's number and then the tag

// A translation entry (KLM) has a DataSegment's layout: byte count, key, address under it. The first entry's
// key may be kRepeatBlockOperation, which announces a pattern.
inline constexpr std::uint32_t kRepeatBlockOperation = 0x400;

struct RepeatBlockSegment {
  Be32 byte_count;  // of one round over all its entries
  Be32 operation;
  Be32 repeat_count;
  Be16 reserved;
  Be16 entries;
};

struct RepeatEntrySegment {
  Be16 stride;
  Be16 byte_count;
  Be32 mkey;
  Be64 address;
};

static_assert(sizeof(UmrControlSegment) == 48 && sizeof(MkeyContextSegment) == 64);
static_assert(sizeof(RepeatBlockSegment) == 16 && sizeof(RepeatEntrySegment) == 16);
static_assert(offsetof(UmrControlSegment, mkey_mask) == 8 &&
              offsetof(MkeyContextSegment, start_address) == 16);

}  // namespace gdx::mlx5
