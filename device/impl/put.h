// The ways a payload reaches the NIC: it fetches (pull), the kernel stores it into memory of the NIC (push)
// or of the host (bounce), or it travels in the WQE (inline). Messages of any length, in chunks where needed.
#pragma once

#include <cstdint>

#include "device/impl/pools.h"
#include "device/impl/post.h"

namespace gdx::device::impl {

template <typename Tail, Scope S, Placement P>
GDX_DEVICE Status put_pull(Endpoint<S, P>& endpoint, const RemoteMemory& to, const LocalMemory& from,
                           std::uint64_t bytes, const Tail& tail, Doorbell doorbell) {
  return by_leader(endpoint, [&] {
    // One branch for both, which a put that may go on does not take.
    if (const bool bad_length = !is_message_length(bytes);
        bad_length | !endpoint.has_room(1 + Tail::kBlocks)) {
      if (bad_length) return Status::kInvalidLength;
      const Status status = endpoint.wait_blocks(1 + Tail::kBlocks);
      if (status != Status::kOk) return status;
    }
    const Wqe wqe =
        transfer_wqe(endpoint, mlx5::WqeOpcode::kRdmaWrite, to, reinterpret_cast<std::uint64_t>(from.address),
                     from.lkey, static_cast<std::uint32_t>(bytes));
    store_and_ring(endpoint, wqe, [&] { end_put<P>(endpoint, wqe, 1, tail, doorbell); });
    return Status::kOk;
  });
}

// A pull from every lane with arguments of its own, under one reservation.
template <Placement P>
GDX_DEVICE Status put_warp(Endpoint<Scope::kWarp, P>& endpoint, const RemoteMemory& to,
                           const LocalMemory& from, std::uint64_t bytes, Doorbell doorbell) {
  constexpr Scope kWarp = Scope::kWarp;
  constexpr mlx5::WqeOpcode kWrite = mlx5::WqeOpcode::kRdmaWrite;
  const std::uint32_t lanes = exec::thread_count<kWarp>();
  const bool bad_length = !is_message_length(bytes);
  const bool leads = endpoint.is_leader();
  if (exec::any<kWarp>(bad_length || (leads && !endpoint.has_room(lanes)))) {
    if (exec::any<kWarp>(bad_length)) return Status::kInvalidLength;
    const Status status = by_leader(endpoint, [&] { return endpoint.wait_blocks(lanes); });
    if (status != Status::kOk) return status;
  }
  const std::uint32_t first = exec::shuffle<kWarp>(endpoint.wqe_index());
  // A fence before the first WQE holds back those behind it.
  const std::uint32_t flags = leads ? endpoint.wqe_flags() : mlx5::kCompletionAlways;

  const std::uint32_t qpn = endpoint.queue_pair_word();
  const std::uint32_t mine = first + exec::thread_rank<kWarp>();
  std::byte* const wqe = endpoint.block_at(mine);
  exec::store_segment(wqe, control_segment(kWrite, mine, qpn, 3, flags));
  exec::store_segment<16>(wqe, address_segment(to.address, to.rkey));
  exec::store_segment<32>(wqe, data_segment(static_cast<std::uint32_t>(bytes), from.lkey,
                                            reinterpret_cast<std::uint64_t>(from.address)));
  exec::sync<kWarp>();  // the leader's release must cover every lane's payload and WQE
  if (!leads) return Status::kOk;
  endpoint.commit_many(lanes);
  if (doorbell == Doorbell::kRing) {
    endpoint.ring(doorbell_value(control_segment(kWrite, first + lanes - 1, qpn, 3, flags)));
  }
  return Status::kOk;
}

// Fills one slot of `Pool` per chunk, each under a credit. It rings for every quarter of the slots held, so
// that one quarter travels while the next is being stored, and what is rung together is fenced once; a put
// that must wait for credits or room rings first. Before each ring, and before it returns, what was stored
// has settled.
template <typename Pool, Copy C, typename Tail, Scope S, Placement P>
GDX_DEVICE Status put_staged(Endpoint<S, P>& endpoint, const RemoteMemory& to, const LocalMemory& from,
                             std::uint64_t bytes, const Tail& tail, Doorbell doorbell) {
  const StagingHandle& staging = Pool::of(endpoint.handle());
  if (staging.slot_count == 0) return Status::kUnsupported;
  SlotWriter<C, S> writer;
  std::uint32_t unrung = 0;  // chunks posted; in the leader
  for (std::uint64_t at = 0; at < bytes; at += staging.slot_bytes) {
    const bool last = bytes - at <= staging.slot_bytes;
    const std::uint32_t blocks = last ? 1 + Tail::kBlocks : 1;
    // The credit last: whoever waits for room looks at the limit, and may have to give a credit back.
    const Status status = by_leader(endpoint, [&] {
      if (unrung != 0 && !(endpoint.has_room(blocks) && Pool::available(endpoint))) {
        writer.settle();
        endpoint.ring_together(unrung);
        unrung = 0;
      }
      const Status room = endpoint.reserve_blocks(blocks);
      if (room != Status::kOk) return room;
      return endpoint.template reserve_credit<Pool>((bytes - at - 1) / staging.slot_bytes + 1);
    });
    if (status != Status::kOk) return status;

    const std::uint32_t n = last ? static_cast<std::uint32_t>(bytes - at) : staging.slot_bytes;
    const std::uint64_t slot_offset =
        static_cast<std::uint64_t>(Pool::next_slot(endpoint)) * staging.slot_bytes;
    writer.store(staging.base + slot_offset, from.address + at, n);
    Pool::consume(endpoint);
    exec::sync<S>();  // the leader's release must cover every thread's part of the slot
    if (!endpoint.is_leader()) continue;
    Pool::bind(endpoint, endpoint.wqe_index());
    const Wqe wqe = transfer_wqe(endpoint, mlx5::WqeOpcode::kRdmaWrite, to + at,
                                 staging.nic_offset + slot_offset, staging.lkey, n);
    store_wqe(endpoint, wqe);
    ++unrung;
    // Host scope: the payload is in NIC or host memory, which no GPU-scope release orders.
    if (last) {
      writer.settle();
      end_put<Placement::kHost>(endpoint, wqe, unrung, tail, doorbell);
      continue;
    }
    endpoint.count_no_message(1);
    if (unrung * 4 < Pool::held(endpoint)) continue;
    writer.settle();
    endpoint.template ring_with<Placement::kHost>(wqe, unrung);
    unrung = 0;
  }
  return Status::kOk;
}

template <typename Tail, Scope S, Placement P>
GDX_DEVICE Status put_inline(Endpoint<S, P>& endpoint, const RemoteMemory& to, const LocalMemory& from,
                             std::uint64_t bytes, const Tail& tail, Doorbell doorbell) {
  return by_leader(endpoint, [&] {
    for (std::uint64_t at = 0; at < bytes; at += kMaxInlineBytes) {
      const bool last = bytes - at <= kMaxInlineBytes;
      const std::uint32_t n = last ? static_cast<std::uint32_t>(bytes - at) : kMaxInlineBytes;
      const std::uint32_t blocks = blocks_of(inline_segments(n));
      const Status status = endpoint.reserve_blocks(last ? blocks + Tail::kBlocks : blocks);
      if (status != Status::kOk) return status;
      if (last) {
        post_inline(endpoint, to + at, from.address + at, n, tail, doorbell);
      } else {
        // A ring per WQE would cost more than it hides: the queue is rung when it fills, and at the end.
        post_inline(endpoint, to + at, from.address + at, n, NoSignal{}, Doorbell::kDefer);
        endpoint.count_no_message(1);
      }
    }
    return Status::kOk;
  });
}

// A put, and behind it `tail`: NoSignal, or a Signal, which rings whatever `doorbell` says.
template <Mode M, Copy C, typename Tail, Scope S, Placement P>
GDX_DEVICE Status put(Endpoint<S, P>& endpoint, const RemoteMemory& to, const LocalMemory& from,
                      std::uint64_t bytes, const Tail& tail, Doorbell doorbell) {
  static_assert(C == Copy::kStores || M == Mode::kAuto || M == Mode::kPush || M == Mode::kBounce,
                "nothing is copied in this mode");
  if constexpr (M == Mode::kPull) return put_pull(endpoint, to, from, bytes, tail, doorbell);
  if (bytes == 0) return Status::kInvalidLength;
  if constexpr (M == Mode::kPush) return put_staged<NicPool, C>(endpoint, to, from, bytes, tail, doorbell);
  if constexpr (M == Mode::kBounce) return put_staged<HostPool, C>(endpoint, to, from, bytes, tail, doorbell);
  if constexpr (M == Mode::kInline) return put_inline(endpoint, to, from, bytes, tail, doorbell);
  static_assert(kMaxAutoInlineBytes == kMaxInlineBytes);
  const ModeTable& modes = endpoint.handle().modes;
  if (bytes <= modes.inline_bytes) return put_inline(endpoint, to, from, bytes, tail, doorbell);
  if (bytes <= modes.push_bytes) return put<Mode::kPush, C>(endpoint, to, from, bytes, tail, doorbell);
  if (bytes <= modes.pull_bytes) return put_pull(endpoint, to, from, bytes, tail, doorbell);
  return put<Mode::kBounce, C>(endpoint, to, from, bytes, tail, doorbell);
}

}  // namespace gdx::device::impl
