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
// Value of a record that no client has written, because a client's sequence number has two bits.
constexpr std::uint32_t kNeverArmed = 0xffffffff;

// Indices have 24 bits and wrap.
bool is_ahead(std::uint64_t index, std::uint32_t reference) {
  const std::uint64_t distance = (index - reference) & kIndexMask;
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
    cqe.source_lid = completion.source_lid;
    cqe.timestamp = completion.timestamp_ns;
    return cqe;
  }
  auto error = std::bit_cast<mlx5::ErrorCqe>(cqe);
  error.syndrome = static_cast<std::uint8_t>(completion.syndrome);
  error.vendor_error_syndrome = completion.vendor_syndrome;
  return std::bit_cast<mlx5::Cqe64>(error);
}

}  // namespace

CompletionQueue::CompletionQueue(const CompletionQueueSpec& spec, ForeignMemory* foreign,
                                 std::uint64_t written)
    : spec_(spec),
      foreign_(foreign),
      producer_(written),
      arm_seen_(kNeverArmed),
      newest_owner_(owner_of(written - 1)) {
  Be32& arm = spec_.doorbell_record[mlx5::kArmRecord];
  const Be32 never = kNeverArmed;
  if (foreign_ != nullptr && !foreign_->empty()) {
    static_cast<void>(foreign_->store(reinterpret_cast<std::byte*>(&arm),
                                      reinterpret_cast<const std::byte*>(&never), sizeof never));
    foreign_->synchronize();
    return;
  }
  static_cast<void>(guarded(&arm, sizeof arm, [&arm, raw = never.raw] {
    std::atomic_ref(arm.raw).store(raw, std::memory_order_release);
  }));
}

// Reads a record. An unreadable one counts as that of an empty queue.
std::uint32_t CompletionQueue::record(std::size_t which) const {
  Be32& record = spec_.doorbell_record[which];
  const auto* const at = reinterpret_cast<const std::byte*>(&record);
  const std::uint32_t absent = which == mlx5::kArmRecord ? kNeverArmed : 0;
  if (foreign_ == nullptr || foreign_->empty() || foreign_->find(at) == nullptr)
    return load_record(record, absent);
  Be32 value = absent;
  static_cast<void>(foreign_->load(reinterpret_cast<std::byte*>(&value), at, sizeof value));
  return value;
}

std::uint32_t CompletionQueue::consumer() const { return record(mlx5::kConsumerRecord); }

std::uint32_t CompletionQueue::unconsumed() const {
  return static_cast<std::uint32_t>(producer_ - consumer()) & kIndexMask;
}

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
  newest_owner_ = owner_of(producer_);
  store(encode(completion, newest_owner_ && planted_fault != PlantedFault::kOwnerBit));
  ++producer_;
  const bool urgent = completion.solicited || completion.syndrome != mlx5::Syndrome::kNone;
  if (urgent) solicited_producer_ = producer_;
  if (arm_ == Arm::kNext || (arm_ == Arm::kSolicited && urgent)) fire();
  return true;
}

// Stores word by word and atomically, because a reader of a collapsed queue reads an entry while it changes.
// An entry for which there is no memory any more is lost, and so is whoever would read it.
void CompletionQueue::store(const mlx5::Cqe64& cqe) {
  const auto words = std::bit_cast<std::array<std::uint64_t, 8>>(cqe);
  const std::uint64_t index = spec_.collapsed ? 0 : producer_ & (entries() - 1);
  const std::size_t half = spec_.entry_bytes - sizeof cqe;  // of a 128 B entry the second one
  std::byte* at = spec_.ring + index * spec_.entry_bytes + half;
  release_to_mappings(Toward::kKernel);
  if (foreign_ != nullptr && !foreign_->empty()) {
    if (foreign_->find(at) != nullptr) {
      static_cast<void>(foreign_->store(at, reinterpret_cast<const std::byte*>(words.data()), sizeof words));
      return;
    }
    foreign_->synchronize();  // payload before the entry that announces it
  }
  const auto* const from = reinterpret_cast<const std::byte*>(words.data());
  static_cast<void>(store_words(at, from, words.size()));
}

void CompletionQueue::check_arm() {
  const std::uint32_t arm = record(mlx5::kArmRecord);
  if (arm == arm_seen_) return;
  arm_seen_ = arm;
  const bool solicited_only = arm & mlx5::kArmSolicitedOnly;
  arm_ = solicited_only ? Arm::kSolicited : Arm::kNext;
  const std::uint64_t newest = solicited_only ? solicited_producer_ : producer_;
  // Compares the producer's counts whole. The consumer's have 24 bits, and only they are compared modulo
  // 2^24.
  const bool untold = newest > announced_producer_;
  // Waits for the next completion if the consumer has advanced since it armed.
  if (is_ahead(newest, arm) && untold && is_ahead(newest, consumer())) fire();
}

Errno CompletionQueue::resize(std::byte* ring, std::uint32_t log_entries) {
  // Counts the mark, because it takes an index, and so a place in both rings.
  if (overrun_ || spec_.collapsed || unconsumed() >= entries()) return EINVAL;
  if (unconsumed() >= 1u << log_entries) return EINVAL;
  const bool owner = owner_of(producer_);
  mlx5::Cqe64 mark{};
  mark.op_own = static_cast<std::uint8_t>(
      static_cast<unsigned>(mlx5::CqeOpcode::kResize) << mlx5::kCqeOpcodeShift | (owner ? 1u : 0u));
  store(mark);
  ++producer_;
  spec_.ring = ring;
  spec_.log_entries = log_entries;
  newest_owner_ = owner_of(producer_ - 1);  // the client writes that one
  return 0;
}

const char* CompletionQueue::check_invariants() const {
  if (announced_producer_ > producer_) return "an event announced a completion that was not written";
  if (solicited_producer_ > producer_) return "a solicited completion was not written";
  if (newest_owner_ != owner_of(producer_ - 1)) return "the newest CQE has the owner bit of another lap";
  if (overrun_ && (spec_.ignore_overrun || spec_.collapsed)) return "a queue that cannot overrun has";
  const bool asked_solicited = (arm_seen_ & mlx5::kArmSolicitedOnly) != 0;
  if (arm_ != Arm::kNo && (arm_ == Arm::kSolicited) != asked_solicited)
    return "the queue is armed for other completions than its record asks for";
  return nullptr;
}

void CompletionQueue::fire() {
  arm_ = Arm::kNo;
  announced_producer_ = producer_;
  if (spec_.on_event) spec_.on_event();
}

}  // namespace gdx::softhca
