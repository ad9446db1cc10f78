// Accesses of the HCA to the memory of the process: concurrent with polling threads, as DMA is.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "proto/byte_order.h"
#include "proto/mapping_order.h"

namespace gdx::softhca {

inline bool is_aligned(const void* at, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(at) % bytes == 0;
}

// Stores a range. Ordering: its last aligned 8 B, if it has any, are stored last, at once and with release.
// So a thread that acquires them reads the rest.
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

// Loads a range. An aligned 8 B word is read at once, because a thread may update it atomically.
inline void dma_load(std::byte* to, const std::byte* from, std::size_t length_bytes) {
  if (length_bytes != 8 || !is_aligned(from, 8)) {
    std::memcpy(to, from, length_bytes);
    return;
  }
  auto* word = reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(from));
  const std::uint64_t value = std::atomic_ref(*word).load(std::memory_order_acquire);
  std::memcpy(to, &value, sizeof value);
}

// Loads a doorbell record's counter. Ordering: acquire, so the WQEs that it announces are visible.
inline std::uint32_t load_record(Be32& record) {
  const std::uint32_t raw = std::atomic_ref(record.raw).load(std::memory_order_acquire);
  acquire_from_mappings(Toward::kHca);
  return byte_swap(raw);
}

}  // namespace gdx::softhca
