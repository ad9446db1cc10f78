// The memory of one endpoint: a single allocation, so that one registration shows it to the HCA and one call to a
// GPU.
//
//   offset 0          send queue        blocks * 64 B
//   page boundary     completion queue  blocks * 64 B
//   page boundary     control page      doorbell records, scratch, QueueState, abort word
//   page boundary     credits           for each pool, words and queues shared with its scheduler, and the
//   ring
//                                       of held slots, as many entries as the pool has; not shown to the HCA
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "host/staging/credit_exchange.h"
#include "proto/byte_order.h"
#include "proto/gpu/queue.h"
#include "proto/mlx5/cqe.h"
#include "proto/mlx5/wqe.h"

namespace gdx {

inline constexpr std::size_t kQueuePageBytes = 4096;

// What the HCA writes and what kernels write lie on different cache lines.
struct ControlPage {
  alignas(64) Be32 queue_pair_record[2];
  alignas(64) Be32 completion_record[2];
  alignas(64) std::uint64_t scratch;
  alignas(64) QueueState state;
  alignas(64) std::uint32_t abort;
};
static_assert(sizeof(ControlPage) <= kQueuePageBytes);

// Each side writes lines of its own.
struct CreditWords {
  alignas(64) std::uint64_t grants;
  alignas(64) CreditRequests requests;
};

// One endpoint's part of the credits of one pool; of no slots without the pool.
class CreditArea {
 public:
  CreditArea() = default;
  [[nodiscard]] static std::size_t bytes(std::uint32_t slot_count);
  // Makes it of zeroed memory of so many bytes, aligned to a page.
  CreditArea(std::byte* base, std::uint32_t slot_count);

  [[nodiscard]] CreditChannel channel() const;
  // Points the credits' part of `staging` here.
  void describe(StagingHandle& staging) const;

 private:
  [[nodiscard]] CreditWords& words() const;
  [[nodiscard]] std::uint32_t* granted_slots() const;
  [[nodiscard]] std::uint32_t* returned_slots() const;
  [[nodiscard]] HeldSlot* held_slots() const;

  std::byte* base_ = nullptr;
  std::uint32_t slot_count_ = 0;
};

class QueueMemory {
 public:
  // All zero, but for the completion queue, whose entries are invalid and still the hardware's.
  // The counts are those of the pools, 0 without one. Errors: kNoMemory.
  [[nodiscard]] static Result<QueueMemory> allocate(std::uint32_t send_queue_blocks, std::uint32_t slot_count,
                                                    std::uint32_t bounce_slot_count = 0);

  [[nodiscard]] std::byte* base() const { return pages_.get(); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] std::size_t registered_bytes() const { return credits_offset_; }
  [[nodiscard]] std::size_t completion_queue_offset() const { return completion_queue_offset_; }
  [[nodiscard]] std::size_t queue_pair_record_offset() const;
  [[nodiscard]] std::size_t completion_record_offset() const;

  [[nodiscard]] mlx5::WqeBasicBlock* send_queue() const;
  [[nodiscard]] mlx5::Cqe64* completion_queue() const;
  [[nodiscard]] ControlPage& control() const;
  [[nodiscard]] const CreditArea& staging_credits() const { return staging_credits_; }
  [[nodiscard]] const CreditArea& bounce_credits() const { return bounce_credits_; }

 private:
  struct FreePages {
    void operator()(std::byte* pages) const;
  };
  QueueMemory() = default;

  std::unique_ptr<std::byte, FreePages> pages_;
  std::size_t bytes_ = 0;
  std::size_t completion_queue_offset_ = 0;
  std::size_t control_offset_ = 0;
  std::size_t credits_offset_ = 0;
  CreditArea staging_credits_;
  CreditArea bounce_credits_;
};

}  // namespace gdx
