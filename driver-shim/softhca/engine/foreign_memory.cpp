#include "driver-shim/softhca/engine/foreign_memory.h"

#include <algorithm>
#include <functional>

namespace gdx::softhca {
namespace {

constexpr std::size_t kTailBytes = sizeof(std::uint64_t);

}  // namespace

void ForeignMemory::add(const std::byte* first, std::size_t length_bytes,
                        std::shared_ptr<CopyEngine> copies) {
  ranges_.push_back({first, length_bytes, std::move(copies)});
}

void ForeignMemory::remove(const std::byte* first, std::size_t length_bytes) {
  synchronize_all();
  const auto found = std::find_if(ranges_.begin(), ranges_.end(), [=](const Range& range) {
    return range.first == first && range.length_bytes == length_bytes;
  });
  if (found != ranges_.end()) ranges_.erase(found);
}

CopyEngine* ForeignMemory::find(const std::byte* at) const {
  const std::less<> before;
  for (const Range& range : ranges_) {
    if (!before(at, range.first) && before(at, range.first + range.length_bytes)) return range.copies.get();
  }
  return nullptr;
}

void ForeignMemory::synchronize() {
  if (pending_ && pending_->ordered()) synchronize_all();
}

void ForeignMemory::synchronize_all() {
  if (!pending_) return;
  pending_->synchronize();
  pending_.reset();
}

void ForeignMemory::give_way_to(CopyEngine* next) {
  if (pending_.get() != next) {
    if (next == nullptr)
      synchronize();
    else
      synchronize_all();
  }
  if (next == nullptr || pending_) return;
  const auto found = std::find_if(ranges_.begin(), ranges_.end(),
                                  [next](const Range& range) { return range.copies.get() == next; });
  if (found != ranges_.end()) pending_ = found->copies;
}

bool ForeignMemory::load(std::byte* to, const std::byte* from, std::size_t length_bytes) {
  CopyEngine* const copies = find(from);
  return copies != nullptr ? copies->read(to, from, length_bytes) : dma_load(to, from, length_bytes);
}

bool ForeignMemory::store(std::byte* to, const std::byte* from, std::size_t length_bytes) {
  CopyEngine* const copies = find(to);
  give_way_to(copies);
  if (copies == nullptr) return dma_store(to, from, length_bytes);
  // Copies the tail separately, because nothing is ordered within a copy.
  const bool has_tail = length_bytes > kTailBytes && is_aligned(to + length_bytes, kTailBytes);
  const std::size_t head_bytes = has_tail ? length_bytes - kTailBytes : length_bytes;
  if (!copies->write(to, from, head_bytes)) return false;
  return !has_tail || copies->write(to + head_bytes, from + head_bytes, kTailBytes);
}

}  // namespace gdx::softhca
