// The memory of one endpoint, in two parts. Its most frequent user decides the part; see
// docs/host.md, "Queues in GPU memory".
//
// The queue, in GPU memory or, before the host's part, in host memory. One registration covers it for the
// HCA:
//   offset 0          send queue        blocks * 64 B
//   page boundary     completion queue  blocks * 64 B
//   page boundary     control page      doorbell records, QueueState
//   page boundary     held slots        a ring for each pool, with the pool's number of slots; not registered
// The host's part, always in host memory, which kernels of a GPU reach by a mapping:
//   page boundary     words that the host writes while kernels run, and the NIC's scratch word
//   page boundary     credits           for each pool, words and queues shared with its scheduler
// move_kernel_words() takes a copy of control page and held slots to GPU memory, for kernels whose queue is
// not there. They use its QueueState and held slots; the HCA keeps the records of the first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/descriptor.h"
#include "base/mapped_pages.h"
#include "base/result.h"
#include "host/gpu/gpu_memory.h"
#include "host/memory/gpu_registration.h"
#include "host/staging/credit_exchange.h"
#include "proto/byte_order.h"
#include "proto/gpu/queue.h"
#include "proto/mlx5/cqe.h"
#include "proto/mlx5/wqe.h"

namespace gdx {

// Control page. Words of the HCA and words of kernels lie on different cache lines.
struct ControlPage {
  alignas(64) Be32 queue_pair_record[2];
  alignas(64) Be32 completion_record[2];
  alignas(64) QueueState state;
};
static_assert(sizeof(ControlPage) <= 4096, "no page is smaller");

struct HostPage {
  alignas(64) std::uint64_t scratch;
  alignas(64) std::uint32_t abort;
  std::uint32_t event;  // enum ibv_event_type: the HCA's reason for the abort; 0: none
  // Word that kernels ring by if they may not ring themselves; see HostRinger.
  alignas(64) std::uint64_t doorbell;
  alignas(64) std::uint32_t words_moved;  // 1: kernels change a copy of the state, in GPU memory
};

// Credit words. Each side writes cache lines of its own.
struct CreditWords {
  alignas(64) std::uint64_t grants;
  alignas(64) CreditRequests requests;
};

// One endpoint's part of the credits of one pool; empty without a pool.
class CreditArea {
 public:
  CreditArea() = default;
  [[nodiscard]] static std::size_t bytes(std::uint32_t slot_count);
  // Takes zeroed memory of bytes(slot_count) bytes, aligned to a page. `held` is the ring of held slots.
  CreditArea(std::byte* base, HeldSlot* held, std::uint32_t slot_count);

  [[nodiscard]] CreditChannel channel() const;
  [[nodiscard]] std::uint32_t slot_count() const { return slot_count_; }
  // Points the credit fields of `staging` to this area.
  void describe(StagingHandle& staging) const;
  void move_held(HeldSlot* held) { held_ = held; }

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
  // Allocates zeroed memory. Only completion queue entries are not zero: they are invalid and owned by the
  // hardware. Slot counts are those of the pools, 0 without one. With `gpu` the queue is in its memory.
  // Errors: kNoMemory; those of GpuMemory::allocate.
  [[nodiscard]] static Result<QueueMemory> allocate(std::uint32_t send_queue_blocks, std::uint32_t slot_count,
                                                    std::uint32_t bounce_slot_count = 0,
                                                    const Gpu* gpu = nullptr);
  // As allocate(), with host memory in a file, which gdxd maps. Errors: those of make_shared_file, too.
  [[nodiscard]] static Result<QueueMemory> allocate_in_file(std::uint32_t send_queue_blocks,
                                                            std::uint32_t slot_count,
                                                            std::uint32_t bounce_slot_count,
                                                            const Gpu* gpu = nullptr);
  // Takes memory that another process has allocated so. Changes none of its bytes but the credit words. With
  // `queue`, the queue is in that dmabuf, and base() is null. Errors: kInvalidArgument for another size than
  // these figures need.
  [[nodiscard]] static Result<QueueMemory> adopt(MappedPages pages, std::uint32_t send_queue_blocks,
                                                 std::uint32_t slot_count, std::uint32_t bounce_slot_count,
                                                 std::optional<SharedRegion> queue = std::nullopt);

  // Address of the queue. The host may load or store it only if gpu() is null.
  [[nodiscard]] std::byte* base() const { return queue_; }
  [[nodiscard]] std::size_t registered_bytes() const { return held_offset_; }
  [[nodiscard]] std::size_t completion_queue_offset() const { return completion_queue_offset_; }
  [[nodiscard]] std::size_t queue_pair_record_offset() const;
  [[nodiscard]] std::size_t completion_record_offset() const;
  [[nodiscard]] const Gpu* gpu() const { return gpu_memory_ ? &gpu_memory_->gpu() : nullptr; }

  // Moves what kernels alone use of a queue in host memory to the memory of `gpu`. Call it once, before the
  // first kernel. Errors: those of GpuMemory::allocate and GpuMemory::write.
  [[nodiscard]] Result<void> move_kernel_words(const Gpu& gpu);
  // Returns whether the state in control() is the one that kernels change. Of memory that another process
  // has allocated, too.
  [[nodiscard]] bool has_kernel_words() const;
  // The GPU whose memory has the words of kernels; null: host memory has them.
  [[nodiscard]] const Gpu* gpu_of_kernel_words() const {
    return kernel_words_ ? &kernel_words_->gpu() : gpu();
  }

  // Addresses for kernels; see base().
  [[nodiscard]] mlx5::WqeBasicBlock* send_queue() const;
  [[nodiscard]] mlx5::Cqe64* completion_queue() const;
  [[nodiscard]] ControlPage* control() const;
  [[nodiscard]] QueueState* state() const;

  // Copy the state, from or to GPU memory if it is there. Errors: those of GpuMemory::read.
  [[nodiscard]] Result<QueueState> load_state() const;
  [[nodiscard]] Result<void> store_state(const QueueState& state);
  // Copies a block of the send queue likewise. Errors: those of GpuMemory::read.
  [[nodiscard]] Result<mlx5::WqeBasicBlock> load_block(std::uint32_t index) const;
  // Copy the send queue's doorbell record likewise, and `count` entries of a ring of `entries`: those from
  // cumulative index `first` on. Errors: kUnsupported for a queue in another process's GPU memory; those of
  // GpuMemory::read.
  [[nodiscard]] Result<std::vector<mlx5::WqeBasicBlock>> load_blocks(std::uint32_t entries,
                                                                     std::uint32_t first,
                                                                     std::uint32_t count) const;
  [[nodiscard]] Result<std::vector<mlx5::Cqe64>> load_completions(std::uint32_t entries, std::uint32_t first,
                                                                  std::uint32_t count) const;
  [[nodiscard]] Result<std::uint16_t> load_send_record() const;
  // Load what kernels or the HCA may change meanwhile: how far a shared queue has come, and the byte `op_own`
  // of the completion queue's entry at cumulative index `index`, after which the rest of the entry may be
  // read. Errors: those of load_state and load_completions.
  struct SharedProgress {
    std::uint32_t published;
    std::uint32_t completed;
  };
  [[nodiscard]] Result<SharedProgress> load_shared_progress() const;
  [[nodiscard]] Result<std::uint8_t> load_op_own(std::uint32_t entries, std::uint32_t index) const;

  // The dmabuf that holds the queue of another process; null: none.
  [[nodiscard]] const SharedRegion* queue_dmabuf() const { return queue_dmabuf_ ? &*queue_dmabuf_ : nullptr; }
  // Descriptor of the file that host_memory() is; -1: none.
  [[nodiscard]] int file() const { return file_.value(); }

  [[nodiscard]] HostPage& host() const;
  [[nodiscard]] const CreditArea& staging_credits() const { return staging_credits_; }
  [[nodiscard]] const CreditArea& bounce_credits() const { return bounce_credits_; }
  // Returns all host memory: the host's part, and the queue if it is in host memory.
  [[nodiscard]] std::span<std::byte> host_memory() const { return {pages_.get(), host_bytes_}; }

 private:
  QueueMemory() = default;
  [[nodiscard]] bool words_moved() const;  // by this process or the one that has allocated them
  [[nodiscard]] static std::size_t host_part_bytes(std::uint32_t slot_count, std::uint32_t bounce_slot_count);
  void place_credits(std::uint32_t slot_count, std::uint32_t bounce_slot_count);
  Result<void> fill(std::size_t queue_bytes, std::uint32_t slot_count, std::uint32_t bounce_slot_count,
                    const Gpu* gpu);
  // Computes the layout, and returns the bytes of the queue.
  std::size_t lay_out(std::uint32_t send_queue_blocks, std::uint32_t slot_count,
                      std::uint32_t bounce_slot_count);
  template <typename Entry>
  Result<std::vector<Entry>> load_ring(std::size_t offset, std::uint32_t entries, std::uint32_t first,
                                       std::uint32_t count) const;
  Result<void> read(std::size_t offset, std::span<std::byte> to) const;
  Result<void> read_ring(std::size_t offset, std::span<std::byte> to) const;
  Result<void> clear_queue(std::size_t queue_bytes);

  MappedPages pages_;
  bool adopted_ = false;  // another process has allocated the pages
  Descriptor file_;
  std::optional<SharedRegion> queue_dmabuf_;
  std::size_t host_bytes_ = 0;
  std::optional<GpuMemory> gpu_memory_;
  std::optional<GpuMemory> kernel_words_;
  std::byte* queue_ = nullptr;
  std::byte* host_page_ = nullptr;
  std::size_t completion_queue_offset_ = 0;
  std::size_t control_offset_ = 0;
  std::size_t held_offset_ = 0;
  CreditArea staging_credits_;
  CreditArea bounce_credits_;
};

}  // namespace gdx
