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

Result<QueueMemory> QueueMemory::allocate(std::uint32_t send_queue_blocks, std::uint32_t slot_count) {
  QueueMemory memory;
  const std::size_t ring_bytes = round_to_page(std::size_t{send_queue_blocks} * mlx5::kWqeBasicBlockBytes);
  memory.completion_queue_offset_ = ring_bytes;
  memory.control_offset_ = 2 * ring_bytes;
  memory.credits_offset_ = memory.control_offset_ + kQueuePageBytes;
  memory.slot_count_ = slot_count;
  const std::size_t credit_bytes =
      sizeof(CreditWords) + std::size_t{slot_count} * (2 * sizeof(std::uint32_t) + sizeof(HeldSlot));
  const std::size_t total = memory.credits_offset_ + (slot_count == 0 ? 0 : round_to_page(credit_bytes));
  memory.pages_.reset(static_cast<std::byte*>(std::aligned_alloc(kQueuePageBytes, total)));
  if (!memory.pages_) {
    return fail(Status::kNoMemory, fmt::format("no memory for an endpoint's queues ({} bytes)", total));
  }
  memory.bytes_ = total;
  std::memset(memory.pages_.get(), 0, total);
  new (memory.pages_.get() + memory.control_offset_) ControlPage{};
  if (slot_count != 0) new (memory.pages_.get() + memory.credits_offset_) CreditWords{};
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

CreditWords& QueueMemory::credit_words() const {
  return *reinterpret_cast<CreditWords*>(pages_.get() + credits_offset_);
}
HeldSlot* QueueMemory::held_slots() const {
  return reinterpret_cast<HeldSlot*>(pages_.get() + credits_offset_ + sizeof(CreditWords));
}
std::uint32_t* QueueMemory::granted_slots() const {
  return reinterpret_cast<std::uint32_t*>(held_slots() + slot_count_);
}
std::uint32_t* QueueMemory::returned_slots() const { return granted_slots() + slot_count_; }

CreditChannel QueueMemory::credit_channel() const {
  return {&credit_words().grants, granted_slots(), &credit_words().requests, returned_slots()};
}

void QueueMemory::describe_credits(StagingHandle& staging) const {
  staging.grants = &credit_words().grants;
  staging.granted_slots = granted_slots();
  staging.requests = &credit_words().requests;
  staging.returned_slots = returned_slots();
  staging.held = held_slots();
}

}  // namespace gdx
