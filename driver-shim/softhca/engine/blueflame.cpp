#include "driver-shim/softhca/engine/blueflame.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "driver-shim/softhca/engine/guarded_access.h"
#include "driver-shim/softhca/engine/planted_fault.h"
#include "proto/byte_order.h"
#include "proto/mlx5/wqe.h"

namespace gdx::softhca {
namespace {

constexpr std::size_t kBlockWords = mlx5::kWqeBasicBlockBytes / sizeof(std::uint64_t);

std::atomic_ref<std::uint64_t> word_at(std::byte* at, std::size_t index) {
  return std::atomic_ref(reinterpret_cast<std::uint64_t*>(at)[index]);
}

std::uint32_t first_dword(std::uint64_t value) { return byte_swap(static_cast<std::uint32_t>(value)); }

}  // namespace

std::uint32_t second_dword(std::uint64_t doorbell) {
  return byte_swap(static_cast<std::uint32_t>(doorbell >> 32));
}

std::optional<DoorbellWrite> DoorbellWrite::take(std::byte* page, std::size_t offset) {
  static_assert(std::endian::native == std::endian::little);
  std::byte* const at = page + offset;
  if (word_at(at, 0).load(std::memory_order_relaxed) == 0) return std::nullopt;
  DoorbellWrite write;
  write.register_bit_ = 1u << (offset - mlx5::kUarBlueFlame) / mlx5::kBlueFlameRegisterBytes;
  write.words_[0] = word_at(at, 0).exchange(0, std::memory_order_acquire);
  // Empties the register, because remaining words would count as the next doorbell's copy. A client that
  // already writes again merely gets a torn copy.
  const std::size_t words = std::max(kBlockWords, write.wqe_bytes() / sizeof(std::uint64_t));
  for (std::size_t i = 1; i < words; ++i) {
    write.words_[i] = word_at(at, i).load(std::memory_order_relaxed);
    if (write.words_[i] == 0) continue;
    write.has_copy_ = true;
    word_at(at, i).store(0, std::memory_order_relaxed);
  }
  return write;
}

std::uint32_t DoorbellWrite::qpn() const { return second_dword(value()) >> mlx5::kQpnShift; }

std::uint16_t DoorbellWrite::end() const {
  constexpr std::uint32_t kBlockSegments = mlx5::kWqeBasicBlockBytes / mlx5::kSegmentBytes;
  std::uint32_t segments = second_dword(value()) & mlx5::kSegmentCountMask;
  if (planted_fault == PlantedFault::kNextIsLast) segments = std::max(segments, 1u);
  return static_cast<std::uint16_t>((first_dword(value()) >> 8) +
                                    (segments + kBlockSegments - 1) / kBlockSegments);
}

std::size_t DoorbellWrite::wqe_bytes() const {
  const std::size_t bytes = (second_dword(value()) & mlx5::kSegmentCountMask) * mlx5::kSegmentBytes;
  return bytes <= mlx5::kBlueFlameBufferBytes ? bytes : 0;
}

std::span<const std::byte> DoorbellWrite::wqe() const {
  return std::as_bytes(std::span(words_)).first(has_copy_ ? wqe_bytes() : 0);
}

bool DoorbellWrite::is_copy_of(std::span<const std::byte> ring, std::uint16_t index) const {
  const std::span<const std::byte> copy = wqe();
  if (torn_ || copy.empty() || copy.size() > ring.size()) return false;
  if ((first_dword(value()) >> 8 & 0xffff) != index) return false;
  // A NOP has no payload that could be stale. Probes of BlueFlame ask for its completion in the copy alone.
  const bool is_nop = (first_dword(value()) & 0xff) == static_cast<std::uint32_t>(mlx5::WqeOpcode::kNop);
  const std::size_t start = index * mlx5::kWqeBasicBlockBytes % ring.size();
  const std::size_t before_wrap = std::min(copy.size(), ring.size() - start);
  bool same = false;
  const bool there = guarded(ring.data(), ring.size(), [&] {
    same = std::memcmp(copy.data(), ring.data() + start, is_nop ? sizeof value() : before_wrap) == 0 &&
           (is_nop || std::memcmp(copy.data() + before_wrap, ring.data(), copy.size() - before_wrap) == 0);
  });
  return there && same;
}

}  // namespace gdx::softhca
