// Places of a symmetric heap's pieces. Offsets only: no memory, no ranks. Ranks that make equal calls in
// equal order get equal offsets. Ranks of several teams do not, and agree by TeamState::allocate.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "base/result.h"

namespace gdx {

inline constexpr std::uint64_t kHeapAlignment = 128;  // alignment of every piece, and the unit of its size
inline constexpr std::uint64_t kMaxHeapAlignment = 4096;  // that a page of every machine has

// Allocates offsets in the heap by first fit. Threads: one at a time.
class SymmetricHeap {
 public:
  // Has `bytes`, rounded down to whole units of kHeapAlignment.
  explicit SymmetricHeap(std::uint64_t bytes);

  // Returns the offset of a new piece, the lowest from `from` on. Errors: kInvalidArgument (no bytes; an
  // alignment that is no power of two, or beyond kMaxHeapAlignment); kNoMemory with the free bytes and the
  // largest piece.
  [[nodiscard]] Result<std::uint64_t> allocate(std::uint64_t bytes, std::uint64_t alignment,
                                               std::uint64_t from = 0);
  // Frees the piece at `offset` and returns its bytes; nullopt if no piece begins there.
  [[nodiscard]] std::optional<std::uint64_t> free(std::uint64_t offset);

  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] std::uint64_t bytes_free() const { return bytes_free_; }
  // Returns the bytes of the piece at `offset`; nullopt if no piece begins there.
  [[nodiscard]] std::optional<std::uint64_t> piece(std::uint64_t offset) const;
  // Returns whether pieces and gaps cover the heap without overlap, and no two gaps adjoin. The sum of free
  // bytes must be right too.
  [[nodiscard]] bool invariant_holds() const;

 private:
  using Ranges = std::map<std::uint64_t, std::uint64_t>;  // bytes by offset

  [[nodiscard]] std::uint64_t largest_gap() const;

  std::uint64_t bytes_;
  std::uint64_t bytes_free_;
  Ranges gaps_;
  Ranges pieces_;
};

}  // namespace gdx
