// Posting on a shared endpoint, and the modes of its puts.
#pragma once

#include <cstdint>

#include "device/impl/signal.h"
#include "device/options.h"
#include "device/shared_endpoint.h"
#include "proto/gpu/memory.h"

namespace gdx::device::impl {

// `store(first)` stores the WQEs of `blocks` blocks and returns the doorbell value of the last. Who meets the
// endpoint's failure gives its credits back, though this call had none: there may be no other call.
template <Placement P, typename Store>
GDX_DEVICE Status post_shared(SharedEndpoint<P>& endpoint, std::uint32_t blocks, Store store) {
  if (endpoint.status() != Status::kOk) return endpoint.status();
  std::uint32_t first = 0;
  Status status = endpoint.reserve(blocks, &first);
  if (status == Status::kOk) status = endpoint.publish(first, first + blocks, store(first));
  return status == Status::kOk ? status : give_back_shared(endpoint.handle().state);
}

// A WRITE at `first` and what follows it.
template <typename Tail, Placement P>
GDX_DEVICE std::uint64_t store_put(const SharedEndpoint<P>& endpoint, std::uint32_t first,
                                   const RemoteMemory& to, const LocalMemory& from, std::uint32_t bytes,
                                   const Tail& tail) {
  const std::uint64_t doorbell = endpoint.store_transfer(first, mlx5::WqeOpcode::kRdmaWrite, to, from, bytes);
  if constexpr (Tail::kBlocks == 0) {
    return doorbell;
  } else {
    return endpoint.store_signal(first + 1, tail.word, tail.value, tail.op);
  }
}

// Sends a slot that was filled. One that cannot be sent is nobody's again.
template <typename Tail, Placement P>
GDX_DEVICE Status send_slot(SharedEndpoint<P>& endpoint, HeldSlot& held, const RemoteMemory& to,
                            const LocalMemory& from, std::uint32_t bytes, const Tail& tail) {
  std::uint32_t first = 0;
  Status status = endpoint.reserve(1 + Tail::kBlocks, &first);
  if (status == Status::kOk) {
    const std::uint64_t doorbell = store_put(endpoint, first, to, from, bytes, tail);
    // Host scope: the payload is in NIC or host memory, which no GPU-scope release orders.
    status = endpoint.template publish<Placement::kHost>(first, first + 1 + Tail::kBlocks, doorbell, &held);
  }
  if (status == Status::kOk) return status;
  abandon(held);
  return give_back_shared(endpoint.handle().state);
}

// Each chunk under a credit, and each with a doorbell: nobody else would ring for a thread that comes no
// more.
template <typename Pool, Scope S, typename Tail, Placement P>
GDX_DEVICE Status put_staged_shared(SharedEndpoint<P>& endpoint, const RemoteMemory& to,
                                    const LocalMemory& from, std::uint64_t bytes, const Tail& tail) {
  if (endpoint.status() != Status::kOk) return endpoint.status();
  if (bytes == 0) return Status::kInvalidLength;
  const StagingHandle& staging = Pool::of(endpoint.handle());
  if (staging.slot_count == 0) return Status::kUnsupported;
  const bool leads = exec::thread_rank<S>() == 0;
  for (std::uint64_t at = 0; at < bytes; at += staging.slot_bytes) {
    const bool last = bytes - at <= staging.slot_bytes;
    const std::uint32_t n = last ? static_cast<std::uint32_t>(bytes - at) : staging.slot_bytes;
    TakenCredit credit{Status::kOk, 0};
    exec::gather<S>();
    if (leads) {
      credit = endpoint.template take_credit<Pool>((bytes - at - 1) / staging.slot_bytes + 1);
      QueueState* const state = endpoint.handle().state;
      if (credit.status != Status::kOk && shared_failure(*state) != Status::kOk) give_back_shared(state);
    }
    Status status = static_cast<Status>(exec::broadcast<S>(static_cast<std::uint32_t>(credit.status)));
    if (status != Status::kOk) return status;
    HeldSlot& held = staging.held[exec::broadcast<S>(credit.position) & (staging.slot_count - 1)];
    const std::uint64_t offset = std::uint64_t{held.slot} * staging.slot_bytes;
    exec::fill_slot<S>(staging.base + offset, from.address + at, n);
    exec::gather<S>();  // the leader's release must cover every thread's part of the slot
    if (leads) {
      const LocalMemory slot{reinterpret_cast<std::byte*>(staging.nic_offset + offset), n, staging.lkey, 0};
      status = last ? send_slot(endpoint, held, to + at, slot, n, tail)
                    : send_slot(endpoint, held, to + at, slot, n, NoSignal{});
    }
    status = static_cast<Status>(exec::broadcast<S>(static_cast<std::uint32_t>(status)));
    if (status != Status::kOk) return status;
  }
  return Status::kOk;
}

// A put, and behind it `tail`: NoSignal, or a Signal.
template <Mode M, Scope S, typename Tail, Placement P>
GDX_DEVICE Status put_shared(SharedEndpoint<P>& endpoint, const RemoteMemory& to, const LocalMemory& from,
                             std::uint64_t bytes, const Tail& tail) {
  static_assert(M == Mode::kPull || M == Mode::kPush || M == Mode::kBounce,
                "no other mode on a shared endpoint");
  if constexpr (M == Mode::kPush) return put_staged_shared<SharedNicPool, S>(endpoint, to, from, bytes, tail);
  if constexpr (M == Mode::kBounce)
    return put_staged_shared<SharedHostPool, S>(endpoint, to, from, bytes, tail);
  static_assert(M != Mode::kPull || S == Scope::kThread, "a pull is one thread's; a warp has gdx_put_warp");
  if (!is_message_length(bytes)) return Status::kInvalidLength;
  return post_shared(endpoint, 1 + Tail::kBlocks, [&](std::uint32_t first) {
    return store_put(endpoint, first, to, from, static_cast<std::uint32_t>(bytes), tail);
  });
}

}  // namespace gdx::device::impl
