#include "driver-shim/softhca/engine/wqe_parser.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "driver-shim/softhca/engine/dma.h"
#include "driver-shim/softhca/engine/hca.h"
#include "driver-shim/softhca/wire/addressing.h"
#include "proto/mlx5/umr.h"
#include "proto/mlx5/wqe.h"

namespace gdx::softhca {
namespace {

using mlx5::Syndrome;
using mlx5::WqeOpcode;

constexpr std::uint32_t kMaxSegments = mlx5::kSegmentCountMask;
constexpr std::uint32_t kSegmentsPerBlock = mlx5::kWqeBasicBlockBytes / mlx5::kSegmentBytes;

// Reader of the WQE's bytes in one piece, because the WQE may wrap in the ring.
class SegmentReader {
 public:
  explicit SegmentReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename Segment>
  bool take(Segment& out) {
    if (rest_.size() < sizeof out) return false;
    std::memcpy(&out, rest_.data(), sizeof out);
    rest_ = rest_.subspan(sizeof out);
    return true;
  }
  [[nodiscard]] bool empty() const { return rest_.empty(); }
  [[nodiscard]] std::span<const std::byte> rest() const { return rest_; }
  void skip(std::size_t bytes) { rest_ = rest_.subspan(std::min(bytes, rest_.size())); }

 private:
  std::span<const std::byte> rest_;
};

void reject(SendWqe& wqe, Syndrome fault, const char* reason) {
  if (wqe.fault != Syndrome::kNone) return;
  wqe.fault = fault;
  wqe.reason = reason;
}

std::uint32_t length_of(const mlx5::DataSegment& segment) {
  return segment.byte_count == 0 ? mlx5::kZeroByteCount : std::uint32_t{segment.byte_count};
}

bool take_inline(SegmentReader& reader, std::uint32_t length_bytes, SendWqe& wqe) {
  const std::span<const std::byte> rest = reader.rest();
  if (length_bytes > rest.size() - sizeof(Be32)) return false;
  const auto start = static_cast<std::uint64_t>(wqe.inline_bytes.size());
  const std::span<const std::byte> data = rest.subspan(sizeof(Be32), length_bytes);
  wqe.inline_bytes.insert(wqe.inline_bytes.end(), data.begin(), data.end());
  if (length_bytes > 0) {
    wqe.pieces.push_back({.lkey = 0, .length_bytes = length_bytes, .address = start, .is_inline = true});
  }
  const std::size_t used = sizeof(Be32) + length_bytes;
  reader.skip((used + mlx5::kSegmentBytes - 1) / mlx5::kSegmentBytes * mlx5::kSegmentBytes);
  return true;
}

void parse_data(SegmentReader& reader, bool inline_allowed, SendWqe& wqe) {
  std::uint64_t total_bytes = 0;
  while (!reader.empty()) {
    Be32 byte_count;
    std::memcpy(&byte_count, reader.rest().data(), sizeof byte_count);
    if (byte_count & mlx5::kInlineFlag) {
      const std::uint32_t length_bytes = byte_count & ~mlx5::kInlineFlag;
      if (!inline_allowed) return reject(wqe, Syndrome::kLocalQpOperation, "inline data to scatter into");
      if (!take_inline(reader, length_bytes, wqe)) {
        return reject(wqe, Syndrome::kLocalLength, "inline data runs past the WQE");
      }
      total_bytes += length_bytes;
      continue;
    }
    mlx5::DataSegment segment;
    if (!reader.take(segment)) return reject(wqe, Syndrome::kLocalQpOperation, "a data segment is cut off");
    const std::uint32_t length_bytes = length_of(segment);
    total_bytes += length_bytes;
    wqe.pieces.push_back({.lkey = segment.lkey, .length_bytes = length_bytes, .address = segment.address});
  }
  if (total_bytes > mlx5::kMaxMessageBytes) {
    return reject(wqe, Syndrome::kLocalLength, "longer than a message may be");
  }
  wqe.request.length_bytes = static_cast<std::uint32_t>(total_bytes);
}

void parse_remote(SegmentReader& reader, SendWqe& wqe) {
  mlx5::RemoteAddressSegment remote;
  if (!reader.take(remote)) return reject(wqe, Syndrome::kLocalQpOperation, "no remote address segment");
  wqe.request.remote_address = remote.address;
  wqe.request.rkey = remote.rkey;
}

void parse_atomic_result(SegmentReader& reader, std::size_t operand_bytes, SendWqe& wqe) {
  parse_data(reader, false, wqe);
  if (wqe.request.length_bytes != operand_bytes) {
    reject(wqe, Syndrome::kLocalLength, "an atomic's result takes as many bytes as its operands");
  }
}

void parse_atomic(SegmentReader& reader, std::uint32_t opmod, SendWqe& wqe) {
  mlx5::AtomicSegment atomic;
  if (opmod != 0) return reject(wqe, Syndrome::kLocalQpOperation, "a plain atomic with an extended opmod");
  if (!reader.take(atomic)) return reject(wqe, Syndrome::kLocalQpOperation, "no atomic segment");
  wqe.request.swap_or_add = atomic.swap_or_add;
  wqe.request.compare = atomic.compare;
  parse_atomic_result(reader, sizeof(std::uint64_t), wqe);
}

void parse_masked_atomic64(SegmentReader& reader, SendWqe& wqe) {
  mlx5::AtomicSegment atomic;
  if (!reader.take(atomic)) return reject(wqe, Syndrome::kLocalQpOperation, "no atomic segment");
  wqe.request.swap_or_add = atomic.swap_or_add;
  if (wqe.request.opcode == WqeOpcode::kAtomicMaskedFetchAdd) {
    wqe.request.swap_mask_or_boundaries = atomic.compare;
  } else {
    mlx5::AtomicMaskSegment masks;
    if (!reader.take(masks)) return reject(wqe, Syndrome::kLocalQpOperation, "no atomic mask segment");
    wqe.request.compare = atomic.compare;
    wqe.request.swap_mask_or_boundaries = masks.swap_mask;
    wqe.request.compare_mask = masks.compare_mask;
  }
  parse_atomic_result(reader, sizeof(std::uint64_t), wqe);
}

// Parses a 4 B atomic as an operation on the aligned 8 B around the operand. The other 4 B
// stay unchanged.
// The responder refuses an address that is no multiple of 4.
void parse_masked_atomic32(SegmentReader& reader, SendWqe& wqe) {
  mlx5::AtomicSegment32 atomic;
  if (!reader.take(atomic)) return reject(wqe, Syndrome::kLocalQpOperation, "no atomic segment");
  transport::WorkRequest& request = wqe.request;
  const bool high = request.remote_address % sizeof(std::uint64_t) == sizeof(std::uint32_t);
  if (high) request.remote_address -= sizeof(std::uint32_t);
  wqe.atomic_part = high ? SendWqe::AtomicPart::kHighHalf : SendWqe::AtomicPart::kLowHalf;
  const auto in_place = [high](std::uint32_t value) { return std::uint64_t{value} << (high ? 32 : 0); };
  request.swap_or_add = in_place(atomic.swap_or_add);
  if (request.opcode == WqeOpcode::kAtomicMaskedFetchAdd) {
    constexpr std::uint32_t kTop = 1u << 31;  // no carry leaves the operand
    request.swap_mask_or_boundaries = in_place(atomic.compare_or_boundaries | kTop);
  } else {
    request.compare = in_place(atomic.compare_or_boundaries);
    request.swap_mask_or_boundaries = in_place(atomic.swap_mask);
    request.compare_mask = in_place(atomic.compare_mask);
  }
  parse_atomic_result(reader, sizeof(std::uint32_t), wqe);
}

void parse_masked_atomic(SegmentReader& reader, std::uint32_t opmod, SendWqe& wqe) {
  switch (opmod) {
    case mlx5::kExtendedAtomic: return parse_masked_atomic32(reader, wqe);
    case mlx5::kExtendedAtomic + 1: return parse_masked_atomic64(reader, wqe);
    default: reject(wqe, Syndrome::kLocalQpOperation, "an atomic on neither 4 nor 8 bytes");
  }
}

// The short form of an address vector, which leads by LID: one segment.
constexpr std::size_t kShortAddressVectorBytes = offsetof(mlx5::AddressVector, reserved1);
static_assert(kShortAddressVectorBytes == mlx5::kSegmentBytes);

// Requires the long form on Ethernet, as a ConnectX port there does, because the short one has no GID.
void parse_address_vector(SegmentReader& reader, AddressVectorUse use, SendWqe& wqe) {
  mlx5::AddressVector vector{};
  const std::size_t given_bytes = std::min(reader.rest().size(), sizeof vector);
  std::memcpy(&vector, reader.rest().data(), given_bytes);
  const bool extended = (vector.destination_qpn & mlx5::kExtendedAddressVector) != 0;
  const std::size_t own_bytes = extended ? sizeof vector : kShortAddressVectorBytes;
  if (given_bytes < own_bytes || (!extended && use == AddressVectorUse::kByGid)) {
    return reject(wqe, Syndrome::kLocalQpOperation, "no whole address vector of its port");
  }
  reader.skip(own_bytes);
  wqe.request.qkey = vector.qkey;
  wqe.request.destination_qpn = vector.destination_qpn & roce::kQpnMask;
  wqe.destination = use == AddressVectorUse::kByLid
                        ? wire::address_of_lid(vector.remote_lid_or_udp_source_port)
                        : wire::address_of(std::to_array(vector.remote_gid));
  wqe.global = use == AddressVectorUse::kByGid ||
               (extended && (vector.grh_gid_flow & mlx5::kAddressVectorHasGrh) != 0);
}

std::uint32_t access_of(std::uint8_t flags) {
  return ((flags & mlx5::kMkeyLocalWrite) ? kLocalWrite : 0u) |
         ((flags & mlx5::kMkeyRemoteRead) ? kRemoteRead : 0u) |
         ((flags & mlx5::kMkeyRemoteWrite) ? kRemoteWrite : 0u) |
         ((flags & mlx5::kMkeyAtomic) ? kRemoteAtomic : 0u);
}

// Leaves the entries in place; they are read at the WQE's turn.
void parse_translation(SegmentReader& reader, bool is_inline, std::uint32_t entries, SendWqe& wqe) {
  const std::uint32_t length_bytes = entries * static_cast<std::uint32_t>(sizeof(mlx5::DataSegment));
  if (length_bytes == 0) return;
  if (is_inline) {
    const std::span<const std::byte> rest = reader.rest();
    if (rest.size() < length_bytes) {
      return reject(wqe, Syndrome::kLocalLength, "translation entries run past the WQE");
    }
    wqe.inline_bytes.assign(rest.begin(), rest.begin() + length_bytes);
    wqe.pieces.push_back({.lkey = 0, .length_bytes = length_bytes, .address = 0, .is_inline = true});
    return;
  }
  mlx5::DataSegment segment;
  if (!reader.take(segment)) return reject(wqe, Syndrome::kLocalQpOperation, "no translation");
  if (length_of(segment) < length_bytes) {
    return reject(wqe, Syndrome::kLocalLength, "translation entries run past their data segment");
  }
  wqe.pieces.push_back({.lkey = segment.lkey, .length_bytes = length_bytes, .address = segment.address});
}

void parse_umr(SegmentReader& reader, SendWqe& wqe) {
  constexpr std::uint8_t kFlags =
      mlx5::kUmrInline | mlx5::kUmrCheckFree | mlx5::kUmrTranslationOffset | mlx5::kUmrCheckQpn;
  constexpr std::uint64_t kMask = mlx5::kMkeyMaskLength | mlx5::kMkeyMaskStartAddress | mlx5::kMkeyMaskTag |
                                  mlx5::kMkeyMaskQpn | mlx5::kMkeyMaskLocalWrite | mlx5::kMkeyMaskRemoteRead |
                                  mlx5::kMkeyMaskRemoteWrite | mlx5::kMkeyMaskAtomic | mlx5::kMkeyMaskFree;
  mlx5::UmrControlSegment control;
  mlx5::MkeyContextSegment context;
  if (!reader.take(control) || !reader.take(context)) {
    return reject(wqe, Syndrome::kLocalQpOperation, "no UMR control or memory key segment");
  }
  if ((control.flags & ~kFlags) != 0 || (control.mkey_mask & ~kMask) != 0 ||
      control.translation_offset != 0) {
    return reject(wqe, Syndrome::kMemoryWindowBind, "it changes what keys here do not have");
  }
  const std::uint32_t entries = control.translation_octowords;
  parse_translation(reader, (control.flags & mlx5::kUmrInline) != 0, entries, wqe);
  if (wqe.fault != Syndrome::kNone) return;
  wqe.umr = std::make_unique<UmrRequest>();
  UmrRequest& umr = *wqe.umr;
  umr.check_free = (control.flags & mlx5::kUmrCheckFree) != 0;
  umr.check_qpn = (control.flags & mlx5::kUmrCheckQpn) != 0;
  umr.mask = control.mkey_mask;
  umr.free = (context.free & mlx5::kMkeyFree) != 0;
  umr.tag = static_cast<std::uint8_t>(context.qpn_tag & 0xff);
  umr.qpn = context.qpn_tag >> mlx5::kMkeyTagBits;
  umr.access = access_of(context.access_flags);
  umr.start_address = context.start_address;
  umr.length_bytes = context.length_bytes;
  umr.translation_entries = entries;
}

void parse_body(SegmentReader& reader, std::uint32_t opmod, SendWqe& wqe) {
  switch (wqe.request.opcode) {
    case WqeOpcode::kNop: return;
    case WqeOpcode::kSend:
    case WqeOpcode::kSendImmediate:
    case WqeOpcode::kSendInvalidate: return parse_data(reader, true, wqe);
    case WqeOpcode::kRdmaWrite:
    case WqeOpcode::kRdmaWriteImmediate: parse_remote(reader, wqe); return parse_data(reader, true, wqe);
    case WqeOpcode::kRdmaRead: parse_remote(reader, wqe); return parse_data(reader, false, wqe);
    case WqeOpcode::kAtomicCompareSwap:
    case WqeOpcode::kAtomicFetchAdd: parse_remote(reader, wqe); return parse_atomic(reader, opmod, wqe);
    case WqeOpcode::kAtomicMaskedCompareSwap:
    case WqeOpcode::kAtomicMaskedFetchAdd:
      parse_remote(reader, wqe);
      return parse_masked_atomic(reader, opmod, wqe);
    case WqeOpcode::kUmr: return parse_umr(reader, wqe);
  }
  reject(wqe, Syndrome::kLocalQpOperation, "an opcode that this HCA does not execute");
}

}  // namespace

void parse_linear_wqe(std::span<const std::byte> wqe, std::uint16_t index, std::uint32_t available_blocks,
                      std::uint32_t qpn, AddressVectorUse vectors, SendWqe& out) {
  out.request = {};
  out.request.wqe_counter = index;
  out.blocks = 1;
  out.fault = Syndrome::kNone;
  out.reason = nullptr;
  out.pieces.clear();
  out.inline_bytes.clear();
  out.global = true;
  out.umr.reset();
  out.atomic_part = SendWqe::AtomicPart::kWhole;

  mlx5::ControlSegment control;
  std::memcpy(&control, wqe.data(), sizeof control);
  const std::uint32_t segments = mlx5::wqe_segments(control);
  out.request.opcode = mlx5::wqe_opcode(control);
  out.request.fm_ce_se = control.fm_ce_se;
  out.request.immediate = control.immediate;
  // Detects a WQE that was never written, or belongs to an earlier pass of the ring.
  if (mlx5::wqe_index(control) != index || mlx5::wqe_qpn(control) != qpn) {
    return reject(out, Syndrome::kLocalQpOperation, "its control segment is another WQE's");
  }
  const std::uint32_t blocks = (segments + kSegmentsPerBlock - 1) / kSegmentsPerBlock;
  const std::size_t length_bytes = segments * mlx5::kSegmentBytes;
  if (segments == 0 || blocks > available_blocks || length_bytes > wqe.size()) {
    return reject(out, Syndrome::kLocalQpOperation, "its size goes past what is posted");
  }
  out.blocks = blocks;

  SegmentReader reader(wqe.first(length_bytes));
  reader.skip(sizeof control);
  if (vectors != AddressVectorUse::kNone && out.request.opcode != WqeOpcode::kNop) {
    parse_address_vector(reader, vectors, out);
  }
  parse_body(reader, control.opmod_index_opcode >> 24, out);
}

void parse_send_wqe(std::span<const std::byte> ring, std::uint16_t index, std::uint32_t available_blocks,
                    std::uint32_t qpn, AddressVectorUse vectors, SendWqe& out) {
  // Reads the first block, which tells of the others.
  alignas(std::uint64_t) std::array<std::byte, kMaxSegments * mlx5::kSegmentBytes> linear;
  const std::size_t start = index * mlx5::kWqeBasicBlockBytes % ring.size();
  std::size_t length_bytes = mlx5::kWqeBasicBlockBytes;
  bool there = dma_load(linear.data(), ring.data() + start, length_bytes);
  mlx5::ControlSegment control;
  std::memcpy(&control, linear.data(), sizeof control);
  const std::size_t wanted_bytes =
      std::min<std::size_t>(mlx5::wqe_segments(control) * mlx5::kSegmentBytes, ring.size());
  if (there && wanted_bytes > length_bytes) {
    const std::size_t before_wrap = std::min(wanted_bytes, ring.size() - start);
    const std::byte* const more = ring.data() + start + length_bytes;
    there = before_wrap == length_bytes ||
            dma_load(linear.data() + length_bytes, more, before_wrap - length_bytes);
    if (wanted_bytes > before_wrap)
      there = there && dma_load(linear.data() + before_wrap, ring.data(), wanted_bytes - before_wrap);
    length_bytes = wanted_bytes;
  }
  if (!there) {  // as a WQE that was never written
    length_bytes = mlx5::kWqeBasicBlockBytes;
    std::fill_n(linear.begin(), length_bytes, std::byte{});
  }
  parse_linear_wqe(std::span<const std::byte>(linear).first(length_bytes), index, available_blocks, qpn,
                   vectors, out);
}

std::uint64_t parse_scatter_list(std::span<const std::byte> segments, std::vector<DataPiece>& out) {
  out.clear();
  std::uint64_t capacity_bytes = 0;
  SegmentReader reader(segments);
  mlx5::DataSegment segment;
  while (reader.take(segment)) {
    if (segment.lkey == mlx5::kInvalidLkey) break;
    out.push_back({.lkey = segment.lkey, .length_bytes = length_of(segment), .address = segment.address});
    capacity_bytes += out.back().length_bytes;
  }
  return capacity_bytes;
}

}  // namespace gdx::softhca
