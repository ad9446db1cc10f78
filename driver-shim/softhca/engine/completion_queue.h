// Writes CQEs as a ConnectX does. Source: rdma-core providers/mlx5/cq.c; PRM "Completion Queues".
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
  mlx5::CqeRoceType roce_type = mlx5::CqeRoceType::kNone;
  std::uint64_t timestamp_ns = 0;
};

class CompletionQueue {
 public:
  // Marks the arm record as never armed: the first arm value of libmlx5 equals a fresh record.
  // `foreign` says whether ring and record are in foreign memory, and must stay; null: nothing is.
  explicit CompletionQueue(const CompletionQueueSpec& spec, ForeignMemory* foreign = nullptr);

  // Appends a CQE and fires the event when armed. False: the queue was full; it is in error then, says so
  // once through on_overrun, and takes no more. Ordering: the word with the owner bit is stored last, with
  // release.
  [[nodiscard]] bool write(const Completion& completion);
  // Reads the arm record after a doorbell. Fires at once when a completion waits that no event has told of
  // yet, and only then: a CQ's context has a last_notified_index for this (PRM, CQC), and programs that arm
  // before they poll what the last event was about (perftest's -e) would lose step on a second event.
  void check_arm();
  // Moves to another ring, of 1 << log_entries. The last CQE of the old one says so: the client copies what
  // it has not consumed from before that mark, one index further on. Source: rdma-core
  // providers/mlx5/cq.c, mlx5_cq_resize_copy_cqes().
  // Errors: EINVAL, and all is as before, when what is unconsumed does not fit, or the queue has overrun.
  [[nodiscard]] Errno resize(std::byte* ring, std::uint32_t log_entries);

  [[nodiscard]] std::uint32_t entries() const { return 1u << spec_.log_entries; }

 private:
  enum class Arm { kNo, kNext, kSolicited };

  [[nodiscard]] std::uint32_t consumer() const;
  [[nodiscard]] std::uint32_t unconsumed() const;
  [[nodiscard]] bool full() const;
  void store(const mlx5::Cqe64& cqe);
  [[nodiscard]] std::uint32_t record(std::size_t which) const;
  void fire();

  CompletionQueueSpec spec_;
  ForeignMemory* foreign_;
  std::uint32_t producer_ = 0;
  std::uint32_t solicited_producer_ = 0;  // behind the newest solicited or failed completion
  std::uint32_t announced_producer_ = 0;  // behind the newest completion that an event has told of
  std::uint32_t arm_seen_;
  Arm arm_ = Arm::kNo;
  bool overrun_ = false;
};

}  // namespace gdx::softhca
