#include "host/queue/queue_memory.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <new>

namespace gdx {
namespace {

constexpr std::size_t round_to_page(std::size_t bytes) {
  return (bytes + kQueuePageBytes - 1) / kQueuePageBytes * kQueuePageBytes;
}

// Invalid, and with the owner bit that the first pass of the ring does not have: nobody takes such an
// entry for a completion, whichever of the two is looked at.
constexpr std::uint8_t kUnwrittenCqe =
    static_cast<std::uint8_t>(static_cast<unsigned>(mlx5::CqeOpcode::kInvalid) << mlx5::kCqeOpcodeShift) |
    mlx5::kCqeOwnerMask;

}  // namespace

void QueueMemory::FreePages::operator()(std::byte* pages) const { std::free(pages); }

Result<QueueMemory> QueueMemory::allocate(std::uint32_t send_queue_blocks, std::uint32_t slot_count,
                                          std::uint32_t bounce_slot_count) {
  QueueMemory memory;
  const std::size_t ring_bytes = round_to_page(std::size_t{send_queue_blocks} * mlx5::kWqeBasicBlockBytes);
  memory.completion_queue_offset_ = ring_bytes;
  memory.control_offset_ = 2 * ring_bytes;
  memory.credits_offset_ = memory.control_offset_ + kQueuePageBytes;
  const std::size_t bounce_offset = memory.credits_offset_ + CreditArea::bytes(slot_count);
  const std::size_t total = bounce_offset + CreditArea::bytes(bounce_slot_count);
  memory.pages_.reset(static_cast<std::byte*>(std::aligned_alloc(kQueuePageBytes, total)));
  if (!memory.pages_) {
    return fail(Status::kNoMemory, fmt::format("no memory for an endpoint's queues ({} bytes)", total));
  }
  memory.bytes_ = total;
  std::memset(memory.pages_.get(), 0, total);
  new (memory.pages_.get() + memory.control_offset_) ControlPage{};
  memory.staging_credits_ = CreditArea(memory.pages_.get() + memory.credits_offset_, slot_count);
  memory.bounce_credits_ = CreditArea(memory.pages_.get() + bounce_offset, bounce_slot_count);
  for (std::uint32_t i = 0; i < send_queue_blocks; ++i) memory.completion_queue()[i].op_own = kUnwrittenCqe;
  return memory;
}

std::size_t QueueMemory::queue_pair_record_offset() const {
  return control_offset_ + offsetof(ControlPage, queue_pair_record);
}
std::size_t QueueMemory::completion_record_offset() const {
  return control_offset_ + offsetof(ControlPage, completion_record);
}

mlx5::WqeBasicBlock* QueueMemory::send_queue() const {
  return reinterpret_cast<mlx5::WqeBasicBlock*>(pages_.get());
}
mlx5::Cqe64* QueueMemory::completion_queue() const {
  return reinterpret_cast<mlx5::Cqe64*>(pages_.get() + completion_queue_offset_);
}
ControlPage& QueueMemory::control() const {
  return *reinterpret_cast<ControlPage*>(pages_.get() + control_offset_);
}

std::size_t CreditArea::bytes(std::uint32_t slot_count) {
  if (slot_count == 0) return 0;
  return round_to_page(sizeof(CreditWords) +
                       std::size_t{slot_count} * (2 * sizeof(std::uint32_t) + sizeof(HeldSlot)));
}

CreditArea::CreditArea(std::byte* base, std::uint32_t slot_count) : base_(base), slot_count_(slot_count) {
  if (slot_count != 0) new (base) CreditWords{};
}

CreditWords& CreditArea::words() const { return *reinterpret_cast<CreditWords*>(base_); }
HeldSlot* CreditArea::held_slots() const { return reinterpret_cast<HeldSlot*>(base_ + sizeof(CreditWords)); }
std::uint32_t* CreditArea::granted_slots() const {
  return reinterpret_cast<std::uint32_t*>(held_slots() + slot_count_);
}
std::uint32_t* CreditArea::returned_slots() const { return granted_slots() + slot_count_; }

CreditChannel CreditArea::channel() const {
  return {&words().grants, granted_slots(), &words().requests, returned_slots()};
}

void CreditArea::describe(StagingHandle& staging) const {
  if (slot_count_ == 0) return;
  staging.grants = &words().grants;
  staging.granted_slots = granted_slots();
  staging.requests = &words().requests;
  staging.returned_slots = returned_slots();
  staging.held = held_slots();
}

}  // namespace gdx
