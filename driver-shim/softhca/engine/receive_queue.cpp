#include "driver-shim/softhca/engine/receive_queue.h"

#include <cstring>

#include "driver-shim/softhca/engine/dma.h"
#include "proto/mlx5/wqe.h"

namespace gdx::softhca {

// Returns the posted WQEs. A record that runs ahead of its ring counts as none, so the peer gets RNR.
std::uint16_t ReceiveQueue::posted() const {
  if (layout_.entries == 0) return 0;
  const auto ahead = static_cast<std::uint16_t>(load_record(*layout_.record, taken_) - taken_);
  return ahead > layout_.entries ? 0 : ahead;
}

void ReceiveQueue::set_limit(std::uint32_t limit) {
  limit_ = limit;
  check_limit();
}

void ReceiveQueue::check_limit() {
  if (limit_ == 0 || posted() >= limit_) return;
  limit_ = 0;
  if (layout_.on_limit) layout_.on_limit();
}

bool ReceiveQueue::take(ReceiveWqe& out) {
  if (posted() == 0) return false;
  const bool chained = layout_.shared && !layout_.cyclic;
  const std::uint16_t index = chained ? next_index_ : taken_;
  const std::byte* wqe = layout_.ring + std::size_t{index % layout_.entries} * layout_.stride_bytes;
  if (!dma_load(wqe_.data(), wqe, wqe_.size())) return false;
  std::span<const std::byte> segments(wqe_);
  if (layout_.shared) {
    mlx5::SrqNextSegment next;
    std::memcpy(&next, wqe_.data(), sizeof next);
    next_index_ = next.next_wqe_index;
    segments = segments.subspan(sizeof next);
  }
  out.wqe_counter = index;
  out.capacity_bytes = parse_scatter_list(segments, out.pieces);
  ++taken_;
  check_limit();
  return true;
}

const char* ReceiveQueue::check_invariants(const transport::Ring<std::uint16_t>& under_way) const {
  auto next = static_cast<std::uint16_t>(taken_ - under_way.size());
  for (std::uint64_t i = under_way.first(); i != under_way.end(); ++i) {
    if (under_way[i] != next++) return "the receives under way are not the newest that were taken";
  }
  return nullptr;
}

void ReceiveQueue::reset() {
  taken_ = 0;
  next_index_ = 0;
}

}  // namespace gdx::softhca
