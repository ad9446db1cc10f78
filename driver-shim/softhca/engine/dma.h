// How the HCA touches the memory of the process: like DMA, concurrently with threads that poll it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "proto/byte_order.h"

namespace gdx::softhca {

inline bool is_aligned(const void* at, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(at) % bytes == 0;
}

// Ordering: the aligned 8 B that end the range, where there are such, are stored last, at once and with
// release: whoever acquires them sees the rest.
inline void dma_store(std::byte* to, const std::byte* from, std::size_t length_bytes) {
  if (length_bytes < 8 || !is_aligned(to + length_bytes, 8)) {
    std::memcpy(to, from, length_bytes);
    return;
  }
  const std::size_t head_bytes = length_bytes - 8;
  std::memcpy(to, from, head_bytes);
  std::uint64_t tail = 0;
  std::memcpy(&tail, from + head_bytes, sizeof tail);
  std::atomic_ref(*reinterpret_cast<std::uint64_t*>(to + head_bytes)).store(tail, std::memory_order_release);
}

// An aligned 8 B word is read at once: it may be a counter that a thread updates atomically.
inline void dma_load(std::byte* to, const std::byte* from, std::size_t length_bytes) {
  if (length_bytes != 8 || !is_aligned(from, 8)) {
    std::memcpy(to, from, length_bytes);
    return;
  }
  auto* word = reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(from));
  const std::uint64_t value = std::atomic_ref(*word).load(std::memory_order_acquire);
  std::memcpy(to, &value, sizeof value);
}

// A doorbell record's counter. Ordering: acquire, so the WQEs that it announces are visible.
inline std::uint32_t load_record(Be32& record) {
  return byte_swap(std::atomic_ref(record.raw).load(std::memory_order_acquire));
}

}  // namespace gdx::softhca
