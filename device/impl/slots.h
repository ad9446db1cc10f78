// The slots of one staged put, on either queue: a step takes slots under credits, the scope fills them, and
// the leader sends each by a WQE of its own.
#pragma once

#include <cstdint>

#include "device/impl/pools.h"
#include "device/impl/post.h"
#include "device/options.h"

namespace gdx::device::impl {

// Fills a slot. All threads call store(). The leader calls wait() before the slot's number is published.
// After wait() a release of the leader covers the stores of all threads. A slot is a multiple of 16 B, so
// stores beyond the message stay within it.
template <Copy C, Scope S>
class SlotWriter {
 public:
  GDX_DEVICE void store(std::byte* slot, const std::byte* from, std::uint32_t bytes) {
    exec::fill_slot<S>(slot, from, bytes);
  }
  GDX_DEVICE void wait() {}
};
template <Scope S>
class SlotWriter<Copy::kBulk, S> {
  static_assert(S == Scope::kBlock,
                "bulk stores are a block's: a warp's endpoint in a block of one warp does as well");

 public:
  GDX_DEVICE void store(std::byte* slot, const std::byte* from, std::uint32_t bytes) {
    stores_.store(slot, from, bytes);
  }
  GDX_DEVICE void wait() { stores_.wait(); }

 private:
  exec::BulkStores stores_;
};

// A part of a message, which one slot holds. chunk_at() returns the one that begins at `at`.
struct Chunk {
  std::uint32_t bytes;
  bool is_last;
};
GDX_DEVICE Chunk chunk_at(std::uint64_t at, std::uint64_t bytes, std::uint32_t slot_bytes) {
  const bool is_last = bytes - at <= slot_bytes;
  return {is_last ? static_cast<std::uint32_t>(bytes - at) : slot_bytes, is_last};
}

// Returns a slot as the NIC addresses it.
GDX_DEVICE LocalMemory slot_memory(const StagingHandle& staging, std::uint64_t offset) {
  return {reinterpret_cast<std::byte*>(staging.nic_offset + offset), staging.slot_bytes, staging.lkey, 0};
}

// The slots of `Pool` for one put on `Queue`, in steps. `help` is work for others during a wait for a credit.
//   take<Tail>(bytes)   all threads: takes slots for the next chunks of `bytes`, a credit for each
//   fill(k, ...)        all threads: stores a chunk in the k-th of them
//   send(...)           the leader: sends the next of them
//   end_step(...)       all threads: returns the leader's Status
template <typename Pool, Copy C, typename Queue, typename Help>
class Slots;

// An exclusive queue takes blocks and credits first, for as many chunks as one doorbell may cover. It rings
// for every quarter of the slots held, so that one quarter travels while the next is being stored. What is
// rung together is fenced once. A put that must wait for credits or room rings first. Before each ring, and
// before it returns, it waits for its stores. A scope stores in one step what may be rung together, because
// each step costs it two barriers.
template <typename Pool, Copy C, Scope S, Placement P, typename Help>
class Slots<Pool, C, OpenEndpoint<S, P>, Help> {
 public:
  static constexpr bool kOneAStep = S == Scope::kThread;

  GDX_DEVICE Slots(OpenEndpoint<S, P>& queue, Help /*help*/)
      : queue_(queue), staging_(Pool::of(queue.handle())) {}

  template <typename Tail>
  GDX_DEVICE Decision take(std::uint64_t bytes) {
    return decide_by_leader(queue_, [&]() -> Decision {
      constexpr std::uint32_t kBlocks = 1 + Tail::kBlocks;
      if (unrung_ != 0 && !(queue_.has_room(kBlocks) && Pool::available(queue_))) {
        writer_.wait();
        queue_.ring_together(unrung_);
        unrung_ = 0;
      }
      // The credit last: a wait for room reads the limit, and may have to give a credit back.
      const Status room = queue_.reserve_blocks(kBlocks);
      if (room != Status::kOk) return {room, 0};
      const std::uint64_t chunks = (bytes - 1) / staging_.slot_bytes + 1;
      const Status credit = queue_.template reserve_credit<Pool>(chunks);
      if (kOneAStep || credit != Status::kOk || chunks == 1) return {credit, 1};
      return {credit, chunks_of_step<Tail>(chunks)};
    });
  }
  GDX_DEVICE void fill(std::uint32_t k, const std::byte* from, std::uint32_t bytes) {
    writer_.store(staging_.base + offset(k), from, bytes);
  }
  template <typename Tail>
  GDX_DEVICE Status send(const RemoteMemory& to, const Chunk& chunk, const Tail& tail, Doorbell doorbell) {
    const std::uint32_t index = queue_.take_blocks(1);
    const Wqe wqe = transfer_wqe(queue_, index, mlx5::WqeOpcode::kRdmaWrite, to,
                                 slot_memory(staging_, offset(0)), chunk.bytes);
    Pool::consume(queue_, 1);
    Pool::bind(queue_, index);
    const Newest<1> newest = store_wqe(queue_, index, wqe);
    ++unrung_;
    // Host scope: the payload is in NIC or host memory, which no GPU-scope release orders.
    constexpr Placement kPayload = Placement::kHost;
    if (!chunk.is_last) {
      queue_.count_no_message(1);
      if (unrung_ * 4 < Pool::held(queue_)) return Status::kOk;
      doorbell = Doorbell::kRing;
    }
    writer_.wait();
    if (Tail::kBlocks != 0 && chunk.is_last) {
      queue_.template publish_newest<kPayload>(store_tail(queue_, index + 1, wqe, tail),
                                               unrung_ + Tail::kBlocks, Doorbell::kRing);
    } else {
      queue_.template publish_newest<kPayload>(newest, unrung_, doorbell);
    }
    unrung_ = 0;
    return Status::kOk;
  }
  GDX_DEVICE Status end_step(std::uint32_t count, Status sent) {
    if (!queue_.is_leader()) Pool::consume(queue_, count);
    return sent;
  }

 private:
  GDX_DEVICE std::uint64_t offset(std::uint32_t behind) const {
    return static_cast<std::uint64_t>(Pool::next_slot(queue_, behind)) * staging_.slot_bytes;
  }
  // Returns the number of the next `chunks` that one step takes. It ends at the next doorbell, or where
  // credits and ring do not also hold the tail. In the leader, which has reserved one credit and one WQEBB.
  template <typename Tail>
  GDX_DEVICE std::uint32_t chunks_of_step(std::uint64_t chunks) {
    const std::uint32_t quarter = (Pool::held(queue_) + 3) / 4;
    std::uint32_t count = quarter > unrung_ ? quarter - unrung_ : 1;
    if (Pool::ready(queue_) < count) count = Pool::ready(queue_);
    if (queue_.room() - Tail::kBlocks < count) count = queue_.room() - Tail::kBlocks;
    if (Decision::kMaxValue < count) count = Decision::kMaxValue;
    return chunks < count ? static_cast<std::uint32_t>(chunks) : count;
  }

  OpenEndpoint<S, P>& queue_;
  const StagingHandle& staging_;
  SlotWriter<C, S> writer_;
  std::uint32_t unrung_ = 0;  // chunks posted without a doorbell; in the leader
};

// A shared queue takes a credit for one chunk, and blocks once the slot is full, because blocks that others
// wait behind must not wait for a fill. Each chunk has a doorbell: nobody else would ring for a thread that
// comes no more.
template <typename Pool, Copy C, Scope S, Placement P, typename Help>
class Slots<Pool, C, OpenSharedEndpoint<S, P>, Help> {
  static_assert(C == Copy::kStores, "bulk stores are for exclusive endpoints");

 public:
  static constexpr bool kOneAStep = true;

  GDX_DEVICE Slots(OpenSharedEndpoint<S, P>& queue, Help help)
      : queue_(queue), staging_(Pool::of(queue.handle())), help_(help) {}

  template <typename Tail>
  GDX_DEVICE Decision take(std::uint64_t bytes) {
    if (queue_.status() != Status::kOk) return {queue_.status(), 0};
    TakenCredit credit{Status::kOk, 0};
    exec::gather<S>();
    if (queue_.is_leader()) {
      credit = queue_.template take_credit<Pool>((bytes - 1) / staging_.slot_bytes + 1, help_);
      QueueState* const state = queue_.handle().state;
      if (credit.status != Status::kOk && shared_failure(*state) != Status::kOk)
        static_cast<void>(give_back_shared(state));  // the call ends with the credit's status
    }
    const Status status = agreed<S>(credit.status);
    if (status == Status::kOk)
      held_ = &staging_.held[exec::broadcast<S>(credit.position) & (staging_.slot_count - 1)];
    return {status, 1};
  }
  GDX_DEVICE void fill(std::uint32_t /*k*/, const std::byte* from, std::uint32_t bytes) {
    offset_ = std::uint64_t{held_->slot} * staging_.slot_bytes;
    exec::fill_slot<S>(staging_.base + offset_, from, bytes);
  }
  template <typename Tail>
  GDX_DEVICE Status send(const RemoteMemory& to, const Chunk& chunk, const Tail& tail, Doorbell doorbell) {
    if (Tail::kBlocks == 0 || chunk.is_last) return send_slot(to, chunk.bytes, tail, doorbell);
    return send_slot(to, chunk.bytes, NoSignal{}, doorbell);
  }
  GDX_DEVICE Status end_step(std::uint32_t /*count*/, Status sent) { return agreed<S>(sent); }

 private:
  // Sends the slot. One that cannot be sent is nobody's again.
  template <typename Tail>
  GDX_DEVICE Status send_slot(const RemoteMemory& to, std::uint32_t bytes, const Tail& tail,
                              Doorbell doorbell) {
    constexpr std::uint32_t kBlocks = 1 + Tail::kBlocks;
    const std::uint32_t first = queue_.take_blocks(kBlocks);
    Status status = Status::kOk;
    if (!queue_.owns_blocks(first, kBlocks))
      status = queue_.template wait_owned<OnFailure::kReturn>(first, kBlocks);
    if (status == Status::kOk) {
      const LocalMemory slot = slot_memory(staging_, offset_);
      const Wqe wqe = transfer_wqe(queue_, first, mlx5::WqeOpcode::kRdmaWrite, to, slot, bytes);
      store_wqe(queue_, first, wqe);
      // Host scope: the payload is in NIC or host memory, which no GPU-scope release orders.
      status = queue_.template publish<Placement::kHost, OnFailure::kReturn>(
          first, kBlocks, store_tail(queue_, first + 1, wqe, tail), doorbell);
    }
    if (status == Status::kOk) {
      bind(*held_, first);
      return status;
    }
    abandon(*held_);
    return give_back_shared(queue_.handle().state);
  }

  OpenSharedEndpoint<S, P>& queue_;
  const StagingHandle& staging_;
  Help help_;
  HeldSlot* held_ = nullptr;
  std::uint64_t offset_ = 0;
};

}  // namespace gdx::device::impl
