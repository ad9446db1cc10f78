// Completion queue that writes CQEs in a ConnectX's form. Source: rdma-core providers/mlx5/cq.c; PRM
// "Completion Queues".
#pragma once

#include <cstdint>

#include "driver-shim/softhca/engine/foreign_memory.h"
#include "driver-shim/softhca/engine/hca.h"
#include "proto/mlx5/cqe.h"

namespace gdx::softhca {

struct Completion {
  mlx5::CqeOpcode opcode = mlx5::CqeOpcode::kRequester;  // for success; errors turn into *Error
  mlx5::Syndrome syndrome = mlx5::Syndrome::kNone;
  std::uint8_t vendor_syndrome = 0;
  std::uint8_t send_opcode = 0;
  bool solicited = false;
  std::uint16_t wqe_counter = 0;
  std::uint32_t qpn = 0;
  std::uint32_t user_index = 0;
  std::uint32_t byte_count = 0;
  std::uint32_t immediate = 0;
  std::uint32_t source_qpn = 0;  // UD receives
  bool has_grh = false;          // UD receives
  std::uint16_t source_lid = 0;  // UD receives of an InfiniBand port
  mlx5::CqeRoceType roce_type = mlx5::CqeRoceType::kNone;
  std::uint64_t timestamp_ns = 0;
};

class CompletionQueue {
 public:
  // Marks the arm record as never armed, because the first arm value of libmlx5 equals a fresh record.
  // `foreign` lists foreign memory, which may hold ring and record, and must stay; null: nothing is foreign.
  // `written` completions count as written before, without an event.
  explicit CompletionQueue(const CompletionQueueSpec& spec, ForeignMemory* foreign = nullptr,
                           std::uint64_t written = 0);

  // Appends a CQE and fires the event when armed. False: the queue was full. It is in error then, reports
  // that once through on_overrun, and takes no more. Ordering: the word with the owner bit is stored last,
  // with release.
  [[nodiscard]] bool write(const Completion& completion);
  // Reads the arm record after a doorbell. Fires at once only for a completion that no event has announced
  // yet. A CQ's context has a last_notified_index for this (PRM, CQC). Programs may arm before they poll the
  // last event's completions (perftest's -e). A second event would put them out of step.
  void check_arm();
  // Moves to another ring, of 1 << log_entries. The old ring's last CQE marks the move. The client copies its
  // unconsumed CQEs from before that mark, one index further on.
  // Source: rdma-core providers/mlx5/cq.c, mlx5_cq_resize_copy_cqes(). Errors: EINVAL, without a change, if
  // the unconsumed CQEs do not fit, or the queue has overrun.
  [[nodiscard]] Errno resize(std::byte* ring, std::uint32_t log_entries);

  [[nodiscard]] std::uint32_t entries() const { return 1u << spec_.log_entries; }
  // Returns the first broken invariant of what the client cannot write; nullptr: all hold.
  [[nodiscard]] const char* check_invariants() const;

 private:
  enum class Arm { kNo, kNext, kSolicited };

  [[nodiscard]] std::uint32_t consumer() const;
  [[nodiscard]] std::uint32_t unconsumed() const;
  [[nodiscard]] bool full() const;
  // Returns the owner bit of a CQE, which changes with each lap.
  [[nodiscard]] bool owner_of(std::uint64_t index) const { return ((index >> spec_.log_entries) & 1) != 0; }
  void store(const mlx5::Cqe64& cqe);
  [[nodiscard]] std::uint32_t record(std::size_t which) const;
  void fire();

  CompletionQueueSpec spec_;
  ForeignMemory* foreign_;
  // Counts of 64 bits, because one that stays behind must not seem ahead after a wrap.
  std::uint64_t producer_;
  std::uint64_t solicited_producer_ = 0;  // after the newest solicited or failed completion
  std::uint64_t announced_producer_ = 0;  // after the newest completion that an event has announced
  std::uint32_t arm_seen_;
  Arm arm_ = Arm::kNo;
  bool newest_owner_;  // owner bit of the newest CQE; of a new ring as if a lap were behind it
  bool overrun_ = false;
};

}  // namespace gdx::softhca
