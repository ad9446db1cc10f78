#include "driver-shim/softhca/wire/loop.h"

#include <utility>

namespace gdx::softhca::wire {
namespace {

constexpr std::size_t kLongBytes = 4096;
constexpr std::size_t kSpares = 64;  // spare buffers that are kept, of 64 KiB each at most

}  // namespace

std::size_t Loop::charge_bytes(std::size_t length_bytes, std::size_t segment_bytes) {
  return length_bytes + (length_bytes + segment_bytes - 1) / segment_bytes * kPacketBytes;
}

bool Loop::push(std::span<const std::byte> bytes, const LoopedRun& like) {
  const std::size_t charge = charge_bytes(bytes.size(), like.segment_bytes);
  if (charge > bound_bytes_ - charged_bytes_) return false;
  LoopedRun& run = runs_.emplace_back(like);
  if (bytes.size() >= kLongBytes && !spare_.empty()) {
    run.bytes = std::move(spare_.back());
    spare_.pop_back();
  }
  run.bytes.assign(bytes.begin(), bytes.end());
  charged_bytes_ += charge;
  return true;
}

LoopedRun& Loop::take() {
  if (taken_.bytes.size() >= kLongBytes && spare_.size() < kSpares) {
    spare_.push_back(std::move(taken_.bytes));
  }
  taken_ = std::move(runs_.front());
  runs_.pop_front();
  charged_bytes_ -= charge_bytes(taken_.bytes.size(), taken_.segment_bytes);
  return taken_;
}

}  // namespace gdx::softhca::wire
