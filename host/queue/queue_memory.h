// The memory of one endpoint, in two parts. Which of the two something is in follows from who uses it often;
// see papers/design.md, "Queues in GPU memory".
//
// The queue, in GPU memory or, in front of the host's part, in host memory. One registration shows it to the
// HCA:
//   offset 0          send queue        blocks * 64 B
//   page boundary     completion queue  blocks * 64 B
//   page boundary     control page      doorbell records, QueueState
//   page boundary     held slots        for each pool a ring with as many entries as it has; not shown to the
//   HCA
// The host's part, always in host memory, which kernels of a GPU reach by a mapping:
//   page boundary     words that the host writes while kernels run, and the NIC's scratch word
//   page boundary     credits           for each pool, words and queues shared with its scheduler
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/result.h"
#include "host/gpu/gpu_memory.h"
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
  alignas(64) QueueState state;
};
static_assert(sizeof(ControlPage) <= kQueuePageBytes);

struct HostPage {
  alignas(64) std::uint64_t scratch;
  alignas(64) std::uint32_t abort;
};

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
  // Makes it of zeroed memory of so many bytes, aligned to a page. `held` is the ring of held slots.
  CreditArea(std::byte* base, HeldSlot* held, std::uint32_t slot_count);

  [[nodiscard]] CreditChannel channel() const;
  // Points the credits' part of `staging` here.
  void describe(StagingHandle& staging) const;

 private:
  [[nodiscard]] CreditWords& words() const;
  [[nodiscard]] std::uint32_t* granted_slots() const;
  [[nodiscard]] std::uint32_t* returned_slots() const;

  std::byte* base_ = nullptr;
  HeldSlot* held_ = nullptr;
  std::uint32_t slot_count_ = 0;
};

class QueueMemory {
 public:
  // All zero, but for the completion queue, whose entries are invalid and still the hardware's. The counts of
  // slots are those of the pools, 0 without one. With a GPU the queue is in its memory. Errors: kNoMemory; as
  // GpuMemory::allocate.
  [[nodiscard]] static Result<QueueMemory> allocate(std::uint32_t send_queue_blocks, std::uint32_t slot_count,
                                                    std::uint32_t bounce_slot_count = 0,
                                                    const Gpu* gpu = nullptr);

  // The queue. The host may touch it only where gpu() is null.
  [[nodiscard]] std::byte* base() const { return queue_; }
  [[nodiscard]] std::size_t registered_bytes() const { return held_offset_; }
  [[nodiscard]] std::size_t completion_queue_offset() const { return completion_queue_offset_; }
  [[nodiscard]] std::size_t queue_pair_record_offset() const;
  [[nodiscard]] std::size_t completion_record_offset() const;
  [[nodiscard]] const Gpu* gpu() const { return gpu_memory_ ? &gpu_memory_->gpu() : nullptr; }

  // Places, for kernels; see base().
  [[nodiscard]] mlx5::WqeBasicBlock* send_queue() const;
  [[nodiscard]] mlx5::Cqe64* completion_queue() const;
  [[nodiscard]] ControlPage* control() const;

  // By copies where it is in GPU memory. Errors: as GpuMemory::read.
  [[nodiscard]] Result<QueueState> load_state() const;
  [[nodiscard]] Result<void> store_state(const QueueState& state);

  [[nodiscard]] HostPage& host() const;
  [[nodiscard]] const CreditArea& staging_credits() const { return staging_credits_; }
  [[nodiscard]] const CreditArea& bounce_credits() const { return bounce_credits_; }
  // All of it that is host memory: the host's part, and the queue where it is.
  [[nodiscard]] std::span<std::byte> host_memory() const { return {pages_.get(), host_bytes_}; }

 private:
  struct FreePages {
    void operator()(std::byte* pages) const;
  };
  QueueMemory() = default;
  // Lays the parts out, and returns the bytes of the queue.
  std::size_t lay_out(std::uint32_t send_queue_blocks, std::uint32_t slot_count,
                      std::uint32_t bounce_slot_count);
  Result<void> clear_queue(std::size_t queue_bytes);

  std::unique_ptr<std::byte, FreePages> pages_;
  std::size_t host_bytes_ = 0;
  std::optional<GpuMemory> gpu_memory_;
  std::byte* queue_ = nullptr;
  std::byte* host_page_ = nullptr;
  std::size_t completion_queue_offset_ = 0;
  std::size_t control_offset_ = 0;
  std::size_t held_offset_ = 0;
  CreditArea staging_credits_;
  CreditArea bounce_credits_;
};

}  // namespace gdx
