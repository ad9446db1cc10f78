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
  memory.slot_owner_offset_ = memory.control_offset_ + kQueuePageBytes;
  const std::size_t total =
      memory.slot_owner_offset_ + round_to_page(std::size_t{slot_count} * sizeof(std::uint32_t));
  memory.pages_.reset(static_cast<std::byte*>(std::aligned_alloc(kQueuePageBytes, total)));
  if (!memory.pages_) {
    return fail(Status::kNoMemory, fmt::format("no memory for an endpoint's queues ({} bytes)", total));
  }
  std::memset(memory.pages_.get(), 0, total);
  new (memory.pages_.get() + memory.control_offset_) ControlPage{};
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
std::uint32_t* QueueMemory::slot_owner() const {
  return reinterpret_cast<std::uint32_t*>(pages_.get() + slot_owner_offset_);
}

}  // namespace gdx
