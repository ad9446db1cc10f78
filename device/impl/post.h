// The posting path, written once for both queues: WQEs into the ring, then record and doorbell.
// A queue is an OpenEndpoint, which one scope owns, or an OpenSharedEndpoint, on which any scopes post at
// once. A post has three steps, which the leader of the scope takes:
//
//   reserve   has_room(), wait_blocks(); take_blocks(), owns_blocks(), wait_owned()
//   store     block_at(), store_wqe()
//   publish   publish()
//
// An exclusive queue waits before it takes blocks. A shared one takes them by an atomic add, and may wait
// behind that.
#pragma once

#include <cstdint>

#include "device/impl/open_endpoint.h"
#include "device/impl/open_shared_endpoint.h"
#include "device/impl/signal.h"

namespace gdx::device::impl {

// The leader's decision, which reaches its scope in one word.
struct Decision {
  static constexpr std::uint32_t kMaxValue = 0xffff;
  Status status;
  std::uint32_t value;
};
static_assert(sizeof(Status) == 4);

// Runs `decide` in the leader once the whole scope has arrived, and returns the Decision in every thread. The
// barrier orders stores of the other threads, such as payload, before what the leader publishes.
template <typename Queue, typename Decide>
GDX_DEVICE Decision decide_by_leader(Queue& queue, Decide decide) {
  constexpr Scope kScope = Queue::kScope;
  if constexpr (kScope == Scope::kThread) return decide();
  exec::gather<kScope>();
  std::uint32_t word = 0;
  if (queue.is_leader()) {
    const Decision mine = exec::calls_agree<kScope>() ? decide() : Decision{Status::kInvalidArgument, 0};
    word = static_cast<std::uint32_t>(mine.status) << 16 | mine.value;
  }
  word = exec::broadcast<kScope>(word);
  const auto status = static_cast<Status>(word >> 16);
  if (status != Status::kOk) queue.latch_status(status);
  return {status, word & Decision::kMaxValue};
}

// Makes `call` in the leader of the scope once all have arrived. Returns its Status in every thread.
template <Scope S, typename Call>
GDX_DEVICE Status scope_by_leader(Call call) {
  exec::gather<S>();
  std::uint32_t status = 0;
  if (exec::thread_rank<S>() == 0)
    status = static_cast<std::uint32_t>(exec::calls_agree<S>() ? call() : Status::kInvalidArgument);
  return static_cast<Status>(exec::broadcast<S>(status));
}
// The same on a queue, which keeps the failure.
template <typename Queue, typename Call>
GDX_DEVICE Status by_leader(Queue& queue, Call call) {
  exec::gather<Queue::kScope>();
  std::uint32_t status = 0;
  if (queue.is_leader()) {
    status =
        static_cast<std::uint32_t>(exec::calls_agree<Queue::kScope>() ? call() : Status::kInvalidArgument);
  }
  const auto decided = static_cast<Status>(exec::broadcast<Queue::kScope>(status));
  if (Queue::kScope != Scope::kThread && decided != Status::kOk) queue.latch_status(decided);
  return decided;
}

// Stores a WQE of one block at `index`.
template <typename Queue>
GDX_DEVICE Newest<1> store_wqe(Queue& queue, std::uint32_t index, const Wqe& wqe) {
  std::byte* const block = queue.block_at(index);
  exec::store_segment(block, wqe.at[0]);
  exec::store_segment<16>(block, wqe.at[1]);
  if (wqe.segments > 2) exec::store_segment<32>(block, wqe.at[2]);
  if (wqe.segments > 3) exec::store_segment<48>(block, wqe.at[3]);
  queue.commit(1);
  return {{wqe}};
}

// Posts `blocks` WQEBBs, for which has_room() held or wait_blocks() succeeded. `store(first)` stores their
// WQEs and returns the newest. `Payload` is the memory in which this kernel stored their payload. The
// fast path returns without a comparison of its status, because a GPU's compiler, which does not thread
// jumps, would keep it.
template <Placement Payload, typename Queue, typename Store>
GDX_DEVICE Status post_in_room(Queue& queue, std::uint32_t blocks, Doorbell doorbell, Store store) {
  const std::uint32_t first = queue.take_blocks(blocks);
  if (!queue.owns_blocks(first, blocks)) {
    const Status status = queue.wait_owned(first, blocks);
    if (status != Status::kOk) return status;
  }
  return queue.template publish<Payload>(first, blocks, store(first), doorbell);
}
template <Placement Payload, typename Queue, typename Store>
GDX_DEVICE Status post(Queue& queue, std::uint32_t blocks, Doorbell doorbell, Store store) {
  if (!queue.has_room(blocks)) {
    const Status status = queue.wait_blocks(blocks);
    if (status != Status::kOk) return status;
  }
  return post_in_room<Payload>(queue, blocks, doorbell, store);
}

// Posts one user operation of one WQE, `build(index)`, for all threads of the scope.
template <typename Queue, typename Build>
GDX_DEVICE Status post_one(Queue& queue, Doorbell doorbell, Build build) {
  return by_leader(queue, [&] {
    return post<Queue::kPlacement>(
        queue, 1, doorbell, [&](std::uint32_t index) { return store_wqe(queue, index, build(index)); });
  });
}

// Returns the control segment of the WQE at `index`.
template <typename Queue>
GDX_DEVICE Segment control_at(const Queue& queue, std::uint32_t index, mlx5::WqeOpcode opcode,
                              std::uint32_t segments, std::uint32_t fence = 0) {
  return control_segment(opcode, index, queue.queue_pair_word(), segments, queue.wqe_flags() | fence);
}

// Builds an RDMA WRITE or READ of the first `bytes` of `local`. Without bytes it has no data segment.
template <typename Queue>
GDX_DEVICE Wqe transfer_wqe(const Queue& queue, std::uint32_t index, mlx5::WqeOpcode opcode,
                            const RemoteMemory& remote, const LocalMemory& local, std::uint32_t bytes,
                            std::uint32_t segments = 3) {
  return {{control_at(queue, index, opcode, segments),
           address_segment(remote.address, remote.rkey),
           data_segment(bytes, local.lkey, reinterpret_cast<std::uint64_t>(local.address)),
           {}},
          3};
}

// Builds an RDMA WRITE of a value of `bytes` that travels in the WQE.
template <typename Queue>
GDX_DEVICE Wqe value_wqe(const Queue& queue, std::uint32_t index, const RemoteMemory& remote,
                         std::uint64_t value, std::uint32_t bytes, std::uint32_t fence = 0) {
  return {{control_at(queue, index, mlx5::WqeOpcode::kRdmaWrite, 3, fence),
           address_segment(remote.address, remote.rkey),
           inline_value_segment(value, bytes),
           {}},
          3};
}
template <std::size_t Bytes, typename Queue>
GDX_DEVICE Wqe value_wqe(const Queue& queue, std::uint32_t index, const RemoteMemory& remote,
                         const ValueBits& bits, std::uint32_t fence = 0) {
  if constexpr (Bytes <= 8) return value_wqe(queue, index, remote, bits.low, Bytes, fence);
  Wqe wqe{{control_at(queue, index, mlx5::WqeOpcode::kRdmaWrite, 4, fence),
           address_segment(remote.address, remote.rkey)},
          4};
  wide_value_segments(bits, wqe.at[2], wqe.at[3]);
  return wqe;
}

// Operands of an atomic as the WQE has them.
struct Atomic {
  mlx5::WqeOpcode opcode;
  std::uint64_t operand;  // the addend, or the new value
  std::uint64_t compare;
};

// Builds an atomic on 8 B. The original value lands at [result, result + 8) under `lkey`.
template <typename Queue>
GDX_DEVICE Wqe atomic_wqe(const Queue& queue, std::uint32_t index, const Atomic& atomic,
                          const RemoteMemory& remote, const void* result, Be32 lkey,
                          std::uint32_t fence = 0) {
  return {{control_at(queue, index, atomic.opcode, 4, fence), address_segment(remote.address, remote.rkey),
           atomic_segment(atomic.operand, atomic.compare),
           data_segment(8, lkey, reinterpret_cast<std::uint64_t>(result))},
          4};
}

template <typename Queue>
GDX_DEVICE Wqe signal_wqe(const Queue& queue, std::uint32_t index, const Signal& signal) {
  const EndpointHandle& handle = queue.handle();
  if (signal.op == SignalOp::kSet)
    return value_wqe(queue, index, signal.word, signal.value, 8, handle.signal_fence);
  return atomic_wqe(queue, index, {mlx5::WqeOpcode::kAtomicFetchAdd, signal.value, 0}, signal.word,
                    handle.scratch, handle.scratch_lkey, handle.signal_fence);
}

// Posts a zero-length RDMA WRITE, in the leader. It touches no memory and needs no key, but only a live peer
// acknowledges it.
template <typename Queue>
GDX_DEVICE Status post_probe(Queue& queue) {
  queue.count_no_message(1);
  return post_in_room<Queue::kPlacement>(queue, 1, Doorbell::kRing, [&](std::uint32_t index) {
    const Segment control = control_at(queue, index, mlx5::WqeOpcode::kRdmaWrite, 2);
    return store_wqe(queue, index, {{control, address_segment(0, 0u), {}, {}}, 2});
  });
}

// Stores the tail of a put at `index`, behind its last WQE, which is stored already. Returns the newest WQEs.
template <typename Queue>
GDX_DEVICE Newest<1> store_tail(Queue& /*queue*/, std::uint32_t /*index*/, const Wqe& last,
                                const NoSignal& /*none*/) {
  return {{last}};
}
template <typename Queue>
GDX_DEVICE Newest<2> store_tail(Queue& queue, std::uint32_t index, const Wqe& last, const Signal& signal) {
  return {{last, store_wqe(queue, index, signal_wqe(queue, index, signal)).at[0]}};
}

// Returns the doorbell of a put: a signal rings in any case.
template <typename Tail>
GDX_DEVICE constexpr Doorbell doorbell_of(Doorbell doorbell) {
  return Tail::kBlocks == 0 ? doorbell : Doorbell::kRing;
}

// Makes a put of no bytes, in the leader: nothing is sent but the signal. Rings for deferred calls as a put
// does.
template <typename Queue>
GDX_DEVICE Status put_nothing(Queue& queue, const NoSignal& /*none*/, Doorbell doorbell) {
  if (queue.status() == Status::kOk && doorbell == Doorbell::kRing) queue.ring_if_deferred();
  return queue.status();
}
template <typename Queue>
GDX_DEVICE Status put_nothing(Queue& queue, const Signal& signal, Doorbell /*doorbell*/) {
  // Host scope, as pushes and bounces of more bytes have.
  return post<Placement::kHost>(queue, 1, Doorbell::kRing, [&](std::uint32_t index) {
    return store_wqe(queue, index, signal_wqe(queue, index, signal));
  });
}

// Makes a get or put of no bytes, for all threads of the scope.
template <typename Queue>
GDX_DEVICE Status transfer_nothing(Queue& queue, Doorbell doorbell) {
  return by_leader(queue, [&] { return put_nothing(queue, NoSignal{}, doorbell); });
}

}  // namespace gdx::device::impl
