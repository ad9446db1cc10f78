#include "driver-shim/softhca/engine/completion_queue.h"

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>

#include "driver-shim/softhca/engine/dma.h"
#include "driver-shim/softhca/engine/planted_fault.h"
#include "proto/mapping_order.h"
#include "proto/mlx5/doorbell.h"

namespace gdx::softhca {
namespace {

constexpr std::uint32_t kIndexMask = 0xffffff;
// the sequence number has two bits, so no client writes this
constexpr std::uint32_t kNeverArmed = 0xffffffff;

// Indices have 24 bits and wrap.
bool is_ahead(std::uint32_t index, std::uint32_t reference) {
  const std::uint32_t distance = (index - reference) & kIndexMask;
  return distance != 0 && distance < kIndexMask / 2;
}

mlx5::CqeOpcode wire_opcode(const Completion& completion) {
  if (completion.syndrome == mlx5::Syndrome::kNone) return completion.opcode;
  return completion.opcode == mlx5::CqeOpcode::kRequester ? mlx5::CqeOpcode::kRequesterError
                                                          : mlx5::CqeOpcode::kResponderError;
}

mlx5::Cqe64 encode(const Completion& completion, bool owner) {
  mlx5::Cqe64 cqe{};
  cqe.srqn_user_index = completion.user_index & kIndexMask;
  cqe.send_opcode_qpn = static_cast<std::uint32_t>(completion.send_opcode) << 24 | completion.qpn;
  cqe.wqe_counter = completion.wqe_counter;
  const auto opcode = static_cast<unsigned>(wire_opcode(completion));
  cqe.op_own = static_cast<std::uint8_t>(opcode << mlx5::kCqeOpcodeShift | (owner ? 1u : 0u) |
                                         (completion.solicited ? mlx5::kCqeSolicited : 0u));
  if (completion.syndrome == mlx5::Syndrome::kNone) {
    cqe.byte_count = completion.byte_count;
    cqe.immediate_or_invalidated_rkey = completion.immediate;
    cqe.flags_remote_qpn = completion.source_qpn | (completion.has_grh ? mlx5::kCqeHasGrh : 0) |
                           static_cast<std::uint32_t>(completion.roce_type) << mlx5::kCqeRoceShift;
    cqe.timestamp = completion.timestamp_ns;
    return cqe;
  }
  auto error = std::bit_cast<mlx5::ErrorCqe>(cqe);
  error.syndrome = static_cast<std::uint8_t>(completion.syndrome);
  error.vendor_error_syndrome = completion.vendor_syndrome;
  return std::bit_cast<mlx5::Cqe64>(error);
}

}  // namespace

CompletionQueue::CompletionQueue(const CompletionQueueSpec& spec, ForeignMemory* foreign)
    : spec_(spec), foreign_(foreign), arm_seen_(kNeverArmed) {
  Be32& arm = spec_.doorbell_record[mlx5::kArmRecord];
  const Be32 never = kNeverArmed;
  if (foreign_ != nullptr && !foreign_->empty()) {
    static_cast<void>(foreign_->store(reinterpret_cast<std::byte*>(&arm),
                                      reinterpret_cast<const std::byte*>(&never), sizeof never));
    foreign_->synchronize();
    return;
  }
  std::atomic_ref(arm.raw).store(never.raw, std::memory_order_release);
}

// Reads a record. An unreadable one counts as that of an empty queue.
std::uint32_t CompletionQueue::record(std::size_t which) const {
  Be32& record = spec_.doorbell_record[which];
  const auto* const at = reinterpret_cast<const std::byte*>(&record);
  if (foreign_ == nullptr || foreign_->empty() || foreign_->find(at) == nullptr) return load_record(record);
  Be32 value = which == mlx5::kArmRecord ? kNeverArmed : 0;
  static_cast<void>(foreign_->load(reinterpret_cast<std::byte*>(&value), at, sizeof value));
  return value;
}

std::uint32_t CompletionQueue::consumer() const { return record(mlx5::kConsumerRecord); }

std::uint32_t CompletionQueue::unconsumed() const { return (producer_ - consumer()) & kIndexMask; }

bool CompletionQueue::full() const {
  return !spec_.ignore_overrun && !spec_.collapsed && unconsumed() >= entries();
}

bool CompletionQueue::write(const Completion& completion) {
  if (overrun_) return false;
  if (full()) {
    overrun_ = true;
    if (spec_.on_overrun) spec_.on_overrun();
    return false;
  }
  const bool owner = planted_fault != PlantedFault::kOwnerBit && ((producer_ >> spec_.log_entries) & 1) != 0;
  store(encode(completion, owner));
  ++producer_;
  const bool urgent = completion.solicited || completion.syndrome != mlx5::Syndrome::kNone;
  if (urgent) solicited_producer_ = producer_;
  if (arm_ == Arm::kNext || (arm_ == Arm::kSolicited && urgent)) fire();
  return true;
}

// Stores word by word and atomically, because a reader of a collapsed queue reads an entry while it changes.
void CompletionQueue::store(const mlx5::Cqe64& cqe) {
  const auto words = std::bit_cast<std::array<std::uint64_t, 8>>(cqe);
  const std::uint32_t index = spec_.collapsed ? 0 : producer_ & (entries() - 1);
  const std::size_t half = spec_.entry_bytes - sizeof cqe;  // of a 128 B entry the second one
  std::byte* at = spec_.ring + std::size_t{index} * spec_.entry_bytes + half;
  release_to_mappings(Toward::kKernel);
  if (foreign_ != nullptr && !foreign_->empty()) {
    if (foreign_->find(at) != nullptr) {
      static_cast<void>(foreign_->store(at, reinterpret_cast<const std::byte*>(words.data()), sizeof words));
      return;
    }
    foreign_->synchronize();  // payload before the entry that announces it
  }
  auto* to = reinterpret_cast<std::uint64_t*>(at);
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    std::atomic_ref(to[i]).store(words[i], std::memory_order_relaxed);
  }
  std::atomic_ref(to[words.size() - 1]).store(words.back(), std::memory_order_release);
}

void CompletionQueue::check_arm() {
  const std::uint32_t arm = record(mlx5::kArmRecord);
  if (arm == arm_seen_) return;
  arm_seen_ = arm;
  const bool solicited_only = arm & mlx5::kArmSolicitedOnly;
  arm_ = solicited_only ? Arm::kSolicited : Arm::kNext;
  const std::uint32_t newest = solicited_only ? solicited_producer_ : producer_;
  // Compares the producer's counts with 32 bits. The consumer's have 24, and only they may be compared modulo
  // 2^24.
  const bool untold = static_cast<std::int32_t>(newest - announced_producer_) > 0;
  // Waits for the next completion if the consumer has advanced since it armed.
  if (is_ahead(newest, arm) && untold && is_ahead(newest, consumer())) fire();
}

Errno CompletionQueue::resize(std::byte* ring, std::uint32_t log_entries) {
  // Counts the mark, because it takes an index, and so a place in both rings.
  if (overrun_ || spec_.collapsed || unconsumed() >= entries()) return EINVAL;
  if (unconsumed() >= 1u << log_entries) return EINVAL;
  const bool owner = (producer_ >> spec_.log_entries) & 1;
  mlx5::Cqe64 mark{};
  mark.op_own = static_cast<std::uint8_t>(
      static_cast<unsigned>(mlx5::CqeOpcode::kResize) << mlx5::kCqeOpcodeShift | (owner ? 1u : 0u));
  store(mark);
  ++producer_;
  spec_.ring = ring;
  spec_.log_entries = log_entries;
  return 0;
}

void CompletionQueue::fire() {
  arm_ = Arm::kNo;
  announced_producer_ = producer_;
  if (spec_.on_event) spec_.on_event();
}

}  // namespace gdx::softhca
