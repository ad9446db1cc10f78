// Accesses of the HCA to the memory of the process: concurrent with polling threads, as DMA is.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "driver-shim/softhca/engine/guarded_access.h"
#include "proto/byte_order.h"
#include "proto/mapping_order.h"

namespace gdx::softhca {

inline bool is_aligned(const void* at, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(at) % bytes == 0;
}

// Returns whether a range of the program's is a few words, which are copied one by one.
inline bool is_few_words(const void* at, std::size_t length_bytes) {
  constexpr std::size_t kMostBytes = 128;
  return length_bytes % 8 == 0 && length_bytes - 8 <= kMostBytes - 8 && is_aligned(at, 8);
}

inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t length_bytes) {
  std::memcpy(to, from, length_bytes);
}

// Stores a range. Ordering: its last aligned 8 B, if it has any, are stored last, at once and with release.
// So a thread that acquires them reads the rest. False: the program has unmapped or protected a part.
[[nodiscard]] inline bool dma_store(std::byte* to, const std::byte* from, std::size_t length_bytes) {
  if (is_few_words(to, length_bytes)) return store_words(to, from, length_bytes / 8);
  const bool has_tail = length_bytes >= 8 && is_aligned(to + length_bytes, 8);
  const std::size_t head_bytes = has_tail ? length_bytes - 8 : length_bytes;
  return guarded_copy(copy_bytes, to, from, head_bytes, to) &&
         (!has_tail || store_words(to + head_bytes, from + head_bytes, 1));
}

// Loads a range. An aligned 8 B word is read at once, because a thread may update it atomically. False: as
// above.
[[nodiscard]] inline bool dma_load(std::byte* to, const std::byte* from, std::size_t length_bytes) {
  if (is_few_words(from, length_bytes)) return load_words(to, from, length_bytes / 8);
  return guarded_copy(copy_bytes, to, from, length_bytes, from);
}

// Loads a doorbell record's counter; `absent` where the record is not there any more. Ordering: acquire, so
// the WQEs that it announces are visible.
inline std::uint32_t load_record(Be32& record, std::uint32_t absent) {
  std::uint32_t raw = 0;
  if (!load_half_word(raw, record.raw)) return absent;
  acquire_from_mappings(Toward::kHca);
  return byte_swap(raw);
}

}  // namespace gdx::softhca
