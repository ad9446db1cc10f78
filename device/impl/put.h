// The ways a payload reaches the NIC. The NIC fetches it (pull), or the kernel stores it in memory of NIC
// (push) or host (bounce). Inline payload travels in the WQE. Messages of any length, in chunks where needed.
#pragma once

#include <cstdint>

#include "device/impl/pools.h"
#include "device/impl/post.h"

namespace gdx::device::impl {

template <typename Tail, Scope S, Placement P>
GDX_DEVICE Status put_pull(OpenEndpoint<S, P>& endpoint, const RemoteMemory& to, const LocalMemory& from,
                           std::uint64_t bytes, const Tail& tail, Doorbell doorbell) {
  return by_leader(endpoint, [&] {
    // A put of no bytes before a signal is an empty WRITE, because a branch costs every put more.
    const bool may_be_empty = Tail::kBlocks != 0;
    // One branch for both, which a put that may go on does not take.
    if (const bool bad_length = may_be_empty ? bytes > mlx5::kMaxMessageBytes : !is_message_length(bytes);
        bad_length | !endpoint.has_room(1 + Tail::kBlocks)) {
      if (bytes == 0 && !may_be_empty) return put_nothing(endpoint, tail, doorbell);
      if (bad_length) return Status::kInvalidLength;
      const Status status = endpoint.wait_blocks(1 + Tail::kBlocks);
      if (status != Status::kOk) return status;
    }
    Wqe wqe =
        transfer_wqe(endpoint, mlx5::WqeOpcode::kRdmaWrite, to, reinterpret_cast<std::uint64_t>(from.address),
                     from.lkey, static_cast<std::uint32_t>(bytes));
    if (may_be_empty) wqe.at[0].words[1] -= static_cast<std::uint32_t>(bytes == 0) << 24;  // no data segment
    store_wqe(endpoint, wqe);
    end_put<P>(endpoint, wqe, 1, tail, doorbell);
    return Status::kOk;
  });
}

// Posts the WQEs of the lanes that post, `posting.count` in all. The caller has made room. Every lane calls.
template <Placement P>
GDX_DEVICE void post_lanes(OpenEndpoint<Scope::kWarp, P>& endpoint, const RemoteMemory& to,
                           const LocalMemory& from, std::uint64_t bytes, Doorbell doorbell,
                           exec::Lanes posting, bool posts, std::uint32_t first_flags) {
  constexpr mlx5::WqeOpcode kWrite = mlx5::WqeOpcode::kRdmaWrite;
  const std::uint32_t first = exec::shuffle<Scope::kWarp>(endpoint.wqe_index());
  // A fence before the first WQE holds back those behind it.
  const std::uint32_t flags = posting.before == 0 ? first_flags : mlx5::kCompletionAlways;
  const std::uint32_t qpn = endpoint.queue_pair_word();
  const std::uint32_t mine = first + posting.before;
  if (posts) {
    std::byte* const wqe = endpoint.block_at(mine);
    exec::store_segment(wqe, control_segment(kWrite, mine, qpn, 3, flags));
    exec::store_segment<16>(wqe, address_segment(to.address, to.rkey));
    exec::store_segment<32>(wqe, data_segment(static_cast<std::uint32_t>(bytes), from.lkey,
                                              reinterpret_cast<std::uint64_t>(from.address)));
  }
  exec::sync<Scope::kWarp>();  // the leader's release must cover every lane's payload and WQE
  if (!endpoint.is_leader()) return;
  endpoint.commit_many(posting.count);
  if (doorbell == Doorbell::kRing)
    endpoint.ring(doorbell_value(control_segment(kWrite, first + posting.count - 1, qpn, 3, flags)));
}

// A pull from every lane with arguments of its own, under one reservation. A lane without bytes posts
// nothing.
template <Placement P>
GDX_DEVICE Status put_warp(OpenEndpoint<Scope::kWarp, P>& endpoint, const RemoteMemory& to,
                           const LocalMemory& from, std::uint64_t bytes, Doorbell doorbell) {
  constexpr Scope kWarp = Scope::kWarp;
  const std::uint32_t lanes = exec::thread_count<kWarp>();
  const bool bad_length = !is_message_length(bytes);
  if (exec::any<kWarp>(bad_length || (endpoint.is_leader() && !endpoint.has_room(lanes)))) {
    if (exec::any<kWarp>(bad_length && bytes != 0)) return Status::kInvalidLength;
    const exec::Lanes posting = exec::lanes_with(bytes != 0);
    if (posting.count == 0) return transfer_nothing(endpoint, doorbell);
    const Status status = by_leader(endpoint, [&] { return endpoint.reserve_blocks(posting.count); });
    if (status != Status::kOk) return status;
    if (posting.count != lanes) {
      const std::uint32_t first_flags = exec::shuffle<kWarp>(endpoint.wqe_flags());
      post_lanes(endpoint, to, from, bytes, doorbell, posting, bytes != 0, first_flags);
      return Status::kOk;
    }
  }
  post_lanes(endpoint, to, from, bytes, doorbell, {lanes, exec::thread_rank<kWarp>()}, true,
             endpoint.wqe_flags());
  return Status::kOk;
}

// Returns the number of the next `chunks` that one step of put_staged takes. It ends at the next doorbell, or
// where credits and ring do not also hold the tail. Runs in the leader, which has reserved one credit and
// one WQEBB.
template <typename Pool, typename Tail, Scope S, Placement P>
GDX_DEVICE std::uint32_t chunks_of_step(OpenEndpoint<S, P>& endpoint, std::uint64_t chunks,
                                        std::uint32_t unrung) {
  const std::uint32_t quarter = (Pool::held(endpoint) + 3) / 4;
  std::uint32_t count = quarter > unrung ? quarter - unrung : 1;
  if (Pool::ready(endpoint) < count) count = Pool::ready(endpoint);
  if (endpoint.room() - Tail::kBlocks < count) count = endpoint.room() - Tail::kBlocks;
  if (Decision::kMaxValue < count) count = Decision::kMaxValue;
  return chunks < count ? static_cast<std::uint32_t>(chunks) : count;
}

// Fills one slot of `Pool` per chunk, each under a credit. It rings for every quarter of the slots held, so
// that one quarter travels while the next is being stored. What is rung together is fenced once. A put that
// must wait for credits or room rings first. Before each ring, and before it returns, it waits for its
// stores. A scope stores in one step what may be rung together, because each step costs it two barriers.
template <typename Pool, Copy C, typename Tail, Scope S, Placement P>
GDX_DEVICE Status put_staged(OpenEndpoint<S, P>& endpoint, const RemoteMemory& to, const LocalMemory& from,
                             std::uint64_t bytes, const Tail& tail, Doorbell doorbell) {
  const StagingHandle& staging = Pool::of(endpoint.handle());
  if (staging.slot_count == 0) return Status::kUnsupported;
  SlotWriter<C, S> writer;
  std::uint32_t unrung = 0;  // chunks posted; in the leader
  for (std::uint64_t at = 0; at < bytes;) {
    // The credit last: a wait for room reads the limit, and may have to give a credit back.
    const Decision step = decide_by_leader(endpoint, [&]() -> Decision {
      constexpr std::uint32_t kBlocks = 1 + Tail::kBlocks;
      if (unrung != 0 && !(endpoint.has_room(kBlocks) && Pool::available(endpoint))) {
        writer.wait();
        endpoint.ring_together(unrung);
        unrung = 0;
      }
      const Status room = endpoint.reserve_blocks(kBlocks);
      if (room != Status::kOk) return {room, 0};
      const std::uint64_t chunks = (bytes - at - 1) / staging.slot_bytes + 1;
      const Status credit = endpoint.template reserve_credit<Pool>(chunks);
      if (S == Scope::kThread || credit != Status::kOk || chunks == 1) return {credit, 1};
      return {credit, chunks_of_step<Pool, Tail>(endpoint, chunks, unrung)};
    });
    if (step.status != Status::kOk) return step.status;

    std::uint64_t chunk = at;
    const std::uint32_t count = S == Scope::kThread ? 1 : step.value;
    const auto bytes_at = [&](std::uint64_t offset) {
      const bool whole = bytes - offset >= staging.slot_bytes;
      return whole ? staging.slot_bytes : static_cast<std::uint32_t>(bytes - offset);
    };
    const auto slot_offset = [&](std::uint32_t behind) {
      return static_cast<std::uint64_t>(Pool::next_slot(endpoint, behind)) * staging.slot_bytes;
    };
    for (std::uint32_t k = 0; k < count; ++k, at += staging.slot_bytes) {
      writer.store(staging.base + slot_offset(k), from.address + at, bytes_at(at));
    }
    const bool last = at >= bytes;
    // The leader's release must cover every thread's part of the slots. Behind the last chunk nobody returns
    // before all have read the source.
    exec::gather<S>(last);
    if (!endpoint.is_leader()) {
      Pool::consume(endpoint, count);
      continue;
    }
    do {
      const std::uint32_t n = bytes_at(chunk);
      const Wqe wqe = transfer_wqe(endpoint, mlx5::WqeOpcode::kRdmaWrite, to + chunk,
                                   staging.nic_offset + slot_offset(0), staging.lkey, n);
      chunk += staging.slot_bytes;
      Pool::consume(endpoint, 1);
      Pool::bind(endpoint, endpoint.wqe_index());
      store_wqe(endpoint, wqe);
      ++unrung;
      // Host scope: the payload is in NIC or host memory, which no GPU-scope release orders.
      if (chunk >= bytes) {
        writer.wait();
        end_put<Placement::kHost>(endpoint, wqe, unrung, tail, doorbell);
        continue;
      }
      endpoint.count_no_message(1);
      if (unrung * 4 < Pool::held(endpoint)) continue;
      writer.wait();
      endpoint.template ring_with<Placement::kHost>(wqe, unrung);
      unrung = 0;
    } while (S != Scope::kThread && chunk < at);
  }
  return Status::kOk;
}

template <typename Tail, Scope S, Placement P>
GDX_DEVICE Status put_inline(OpenEndpoint<S, P>& endpoint, const RemoteMemory& to, const LocalMemory& from,
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

// A put, and behind it `tail`: NoSignal, or a Signal, which rings for any `doorbell`.
template <Mode M, Copy C, typename Tail, Scope S, Placement P>
GDX_DEVICE Status put(OpenEndpoint<S, P>& endpoint, const RemoteMemory& to, const LocalMemory& from,
                      std::uint64_t bytes, const Tail& tail, Doorbell doorbell) {
  static_assert(C == Copy::kStores || M == Mode::kAuto || M == Mode::kPush || M == Mode::kBounce,
                "nothing is copied in this mode");
  if constexpr (M == Mode::kPull) return put_pull(endpoint, to, from, bytes, tail, doorbell);
  if (bytes == 0) return by_leader(endpoint, [&] { return put_nothing(endpoint, tail, doorbell); });
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
