#include "host/team/symmetric_heap.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <iterator>

namespace gdx {
namespace {

// Returns the least multiple of `to`, a power of two, that is not below `value`.
constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t to) {
  return (value + to - 1) & ~(to - 1);
}

}  // namespace

SymmetricHeap::SymmetricHeap(std::uint64_t bytes)
    : bytes_(bytes & ~(kHeapAlignment - 1)), bytes_free_(bytes_) {
  if (bytes_ != 0) gaps_.emplace(0, bytes_);
}

std::uint64_t SymmetricHeap::largest_gap() const {
  std::uint64_t most = 0;
  for (const auto& [offset, bytes] : gaps_) most = std::max(most, bytes);
  return most;
}

Result<std::uint64_t> SymmetricHeap::allocate(std::uint64_t bytes, std::uint64_t alignment,
                                              std::uint64_t from) {
  if (bytes == 0) return fail(Status::kInvalidArgument, "cannot allocate 0 bytes of a heap: use at least 1");
  if (!std::has_single_bit(alignment) || alignment > kMaxHeapAlignment) {
    return fail(Status::kInvalidArgument,
                fmt::format("a heap has no alignment of {}: use a power of two up to {}", alignment,
                            kMaxHeapAlignment));
  }
  if (bytes <= bytes_free_) {
    const std::uint64_t size = round_up(bytes, kHeapAlignment);
    for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
      const auto [first, length] = *gap;
      const std::uint64_t at = round_up(std::max(first, from), std::max(alignment, kHeapAlignment));
      const std::uint64_t skipped = at - first;
      if (skipped > length || size > length - skipped) continue;
      gaps_.erase(gap);
      if (skipped != 0) gaps_.emplace(first, skipped);
      if (skipped + size != length) gaps_.emplace(at + size, length - skipped - size);
      pieces_.emplace(at, size);
      bytes_free_ -= size;
      return at;
    }
  }
  return fail(Status::kNoMemory,
              fmt::format("no {} bytes aligned to {} in the heap: {} of {} bytes are free, {} in one piece; "
                          "free some, or raise the team option heap_bytes",
                          bytes, alignment, bytes_free_, bytes_, largest_gap()));
}

std::optional<std::uint64_t> SymmetricHeap::piece(std::uint64_t offset) const {
  const auto found = pieces_.find(offset);
  return found == pieces_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<std::uint64_t> SymmetricHeap::free(std::uint64_t offset) {
  const auto freed = piece(offset);
  if (!freed) return freed;
  pieces_.erase(offset);
  bytes_free_ += *freed;
  auto gap = gaps_.emplace(offset, *freed).first;
  if (const auto next = std::next(gap); next != gaps_.end() && gap->first + gap->second == next->first) {
    gap->second += next->second;
    gaps_.erase(next);
  }
  if (gap == gaps_.begin()) return freed;
  if (const auto before = std::prev(gap); before->first + before->second == gap->first) {
    before->second += gap->second;
    gaps_.erase(gap);
  }
  return freed;
}

bool SymmetricHeap::invariant_holds() const {
  std::uint64_t at = 0;
  std::uint64_t sum = 0;
  auto gap = gaps_.begin();
  auto used = pieces_.begin();
  bool after_gap = false;
  while (gap != gaps_.end() || used != pieces_.end()) {
    const bool is_gap = gap != gaps_.end() && gap->first == at;
    if (is_gap && after_gap) return false;
    if (!is_gap && (used == pieces_.end() || used->first != at)) return false;
    const std::uint64_t bytes = is_gap ? (gap++)->second : (used++)->second;
    if (bytes == 0 || bytes % kHeapAlignment != 0) return false;
    at += bytes;
    sum += is_gap ? bytes : 0;
    after_gap = is_gap;
  }
  return at == bytes_ && sum == bytes_free_;
}

}  // namespace gdx
