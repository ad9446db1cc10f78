// The ways a payload reaches the NIC, on either queue. The NIC fetches it (pull), or the kernel stores it in
// memory of NIC (push) or host (bounce). Inline payload travels in the WQE. Messages of any length, in chunks
// where needed. All threads of the scope call put() and put_warp().
#pragma once

#include <cstdint>

#include "device/impl/post.h"
#include "device/impl/slots.h"

namespace gdx::device::impl {

// Posts a pull of `bytes`, for which there is room, in the leader. Without bytes its WRITE has no data
// segment.
template <typename Queue, typename Tail>
GDX_DEVICE Status post_pull(Queue& queue, const RemoteMemory& to, const LocalMemory& from,
                            std::uint32_t bytes, const Tail& tail, Doorbell doorbell,
                            std::uint32_t segments = 3) {
  return post_in_room<Queue::kPlacement>(
      queue, 1 + Tail::kBlocks, doorbell_of<Tail>(doorbell), [&](std::uint32_t index) {
        const Wqe wqe = transfer_wqe(queue, index, mlx5::WqeOpcode::kRdmaWrite, to, from, bytes, segments);
        store_wqe(queue, index, wqe);
        return store_tail(queue, index + 1, wqe, tail);
      });
}

template <typename Queue, typename Tail>
GDX_DEVICE Status put_pull(Queue& queue, const RemoteMemory& to, const LocalMemory& from, std::uint64_t bytes,
                           const Tail& tail, Doorbell doorbell) {
  return by_leader(queue, [&] {
    constexpr bool kMayBeEmpty = Tail::kBlocks != 0 && Queue::kSendsEmpty;
    const bool bad_length = kMayBeEmpty ? bytes > mlx5::kMaxMessageBytes : !is_message_length(bytes);
    // One branch for both, which a put that may go on does not take.
    if (bad_length | !queue.has_room(1 + Tail::kBlocks)) {
      if (bytes == 0 && !kMayBeEmpty) return put_nothing(queue, tail, doorbell);
      if (bad_length) return Status::kInvalidLength;
      const Status status = queue.wait_blocks(1 + Tail::kBlocks);
      if (status != Status::kOk) return status;
    }
    const std::uint32_t segments = kMayBeEmpty && bytes == 0 ? 2 : 3;
    return post_pull(queue, to, from, static_cast<std::uint32_t>(bytes), tail, doorbell, segments);
  });
}

// Posts the WQEs of the lanes that post, `posting.count` in all. Every lane calls.
template <typename Queue>
GDX_DEVICE Status post_lanes(Queue& queue, const RemoteMemory& to, const LocalMemory& from,
                             std::uint64_t bytes, Doorbell doorbell, exec::Lanes posting, bool posts,
                             std::uint32_t first_flags) {
  constexpr mlx5::WqeOpcode kWrite = mlx5::WqeOpcode::kRdmaWrite;
  std::uint32_t first = 0;
  const Status status = queue.take_for_lanes(posting.count, &first);
  if (status != Status::kOk) return status;
  // A fence before the first WQE holds back those behind it.
  const std::uint32_t flags = posting.before == 0 ? first_flags : mlx5::kCompletionAlways;
  const std::uint32_t qpn = queue.queue_pair_word();
  const std::uint32_t mine = first + posting.before;
  if (posts) {
    std::byte* const wqe = queue.block_at(mine);
    exec::store_segment(wqe, control_segment(kWrite, mine, qpn, 3, flags));
    exec::store_segment<16>(wqe, address_segment(to.address, to.rkey));
    exec::store_segment<32>(wqe, data_segment(static_cast<std::uint32_t>(bytes), from.lkey,
                                              reinterpret_cast<std::uint64_t>(from.address)));
  }
  exec::sync<Scope::kWarp>();  // the leader's release must cover every lane's payload and WQE
  const Segment last = control_segment(kWrite, first + posting.count - 1, qpn, 3, flags);
  return queue.publish_lanes(first, posting.count, doorbell_value(last), doorbell);
}

// A pull from every lane with arguments of its own, under one reservation. A lane without bytes posts
// nothing.
template <typename Queue>
GDX_DEVICE Status put_warp(Queue& queue, const RemoteMemory& to, const LocalMemory& from, std::uint64_t bytes,
                           Doorbell doorbell) {
  constexpr Scope kWarp = Scope::kWarp;
  static_assert(Queue::kScope == kWarp);
  exec::Lanes posting{exec::thread_count<kWarp>(), exec::thread_rank<kWarp>()};
  bool posts = true;
  const bool bad_length = !is_message_length(bytes);
  if (exec::any<kWarp>(bad_length || (queue.is_leader() && !queue.has_room(posting.count)))) {
    const bool some = bytes != 0;
    if (exec::any<kWarp>(bad_length && some)) return Status::kInvalidLength;
    const exec::Lanes those = exec::lanes_with(some);
    if (those.count == 0) return transfer_nothing(queue, doorbell);
    const Status status = by_leader(queue, [&] { return queue.reserve_blocks(those.count); });
    if (status != Status::kOk) return status;
    // A way of its own, because a put that need not wait is shorter where all lanes are known to post.
    if constexpr (Queue::kSharing == Sharing::kExclusive) {
      return post_lanes(queue, to, from, bytes, doorbell, those, some,
                        exec::shuffle<kWarp>(queue.wqe_flags()));
    }
    posting = those;
    posts = some;
  }
  return post_lanes(queue, to, from, bytes, doorbell, posting, posts, queue.wqe_flags());
}

// A message in chunks, each through a slot of `Pool` under a credit.
template <typename Pool, Copy C, typename Queue, typename Tail, typename Help>
GDX_DEVICE Status put_staged(Queue& queue, const RemoteMemory& to, const LocalMemory& from,
                             std::uint64_t bytes, const Tail& tail, Doorbell doorbell, Help help) {
  using QueueSlots = Slots<Pool, C, Queue, Help>;
  const StagingHandle& staging = Pool::of(queue.handle());
  if (staging.slot_count == 0) return queue.status() != Status::kOk ? queue.status() : Status::kUnsupported;
  QueueSlots slots(queue, help);
  for (std::uint64_t at = 0; at < bytes;) {
    const Decision step = slots.template take<Tail>(bytes - at);
    if (step.status != Status::kOk) return step.status;
    const std::uint32_t count = QueueSlots::kOneAStep ? 1 : step.value;

    std::uint64_t end = at;
    for (std::uint32_t k = 0; k < count; ++k, end += staging.slot_bytes) {
      slots.fill(k, from.address + end, chunk_at(end, bytes, staging.slot_bytes).bytes);
    }
    // The leader's release must cover every thread's part of the slots. Behind the last chunk nobody returns
    // before all have read the source.
    exec::gather<Queue::kScope>(end >= bytes);

    Status sent = Status::kOk;
    if (queue.is_leader()) {
      do {
        sent = slots.send(to + at, chunk_at(at, bytes, staging.slot_bytes), tail, doorbell);
        at += staging.slot_bytes;
      } while (!QueueSlots::kOneAStep && at < end);
    }
    sent = slots.end_step(count, sent);
    if (sent != Status::kOk) return sent;
    at = end;
  }
  return Status::kOk;
}

// Stores `bytes` <= Queue::kInlineBytes as an RDMA WRITE that carries them, at `index`. Only a WQE of one
// block goes by BlueFlame, because more blocks would be copied once more.
template <typename Queue>
GDX_DEVICE Wqe store_inline(Queue& queue, std::uint32_t index, const RemoteMemory& to, const std::byte* from,
                            std::uint32_t bytes) {
  const std::uint32_t segments = inline_segments(bytes);
  const Segment control = control_at(queue, index, mlx5::WqeOpcode::kRdmaWrite, segments);
  const Segment address = address_segment(to.address, to.rkey);
  if (Queue::kInlineBytes == kShortInlineBytes || bytes <= kShortInlineBytes) {
    const InlineData data(from, bytes);
    return store_wqe(queue, index, {{control, address, data.at[0], data.at[1]}, segments}).at[0];
  }
  constexpr std::uint32_t kBlockBytes = mlx5::kWqeBasicBlockBytes;
  constexpr std::uint32_t kDataAt = 2 * mlx5::kSegmentBytes + kInlineHeaderBytes;
  std::byte* const block = queue.block_at(index);
  exec::store_segment(block, control);
  exec::store_segment<16>(block, address);
  exec::store_word(block + 32, byte_swap(mlx5::kInlineFlag | bytes));
  for (std::uint32_t copied = 0, k = 0, at = kDataAt; copied < bytes; ++k, at = 0) {
    const std::uint32_t room = kBlockBytes - at;
    const std::uint32_t n = bytes - copied < room ? bytes - copied : room;
    exec::copy<Scope::kThread>(queue.block_at(index + k) + at, from + copied, n);
    copied += n;
  }
  queue.commit(blocks_of(segments));
  return {{control, {}, {}, {}}, segments};
}

// Posts `bytes` inline under one reservation, then `tail`. In the leader.
template <typename Queue, typename Tail>
GDX_DEVICE Status post_inline(Queue& queue, const RemoteMemory& to, const std::byte* from,
                              std::uint32_t bytes, const Tail& tail, Doorbell doorbell, bool is_last) {
  constexpr std::uint32_t kMost = Queue::kInlineBytes;
  const std::uint32_t whole = (bytes - 1) / kMost;
  const std::uint32_t blocks =
      whole * blocks_of(inline_segments(kMost)) + blocks_of(inline_segments(bytes - whole * kMost));
  const auto store = [&](std::uint32_t index) {
    Wqe wqe;
    for (std::uint32_t at = 0; at < bytes; at += kMost) {
      const std::uint32_t n = bytes - at < kMost ? bytes - at : kMost;
      wqe = store_inline(queue, index, to + at, from + at, n);
      index += blocks_of(wqe.segments);
    }
    queue.count_no_message(is_last ? blocks - 1 : blocks);
    return store_tail(queue, index, wqe, tail);
  };
  return post<Queue::kPlacement>(queue, blocks + Tail::kBlocks, doorbell_of<Tail>(doorbell), store);
}

// Puts inline, of Mode::kInline or as Mode::kAuto chose.
template <Mode M, typename Queue, typename Tail>
GDX_DEVICE Status put_inline(Queue& queue, const RemoteMemory& to, const LocalMemory& from,
                             std::uint64_t bytes, const Tail& tail, Doorbell doorbell) {
  constexpr std::uint32_t kStep = Queue::kInlineAtOnce * Queue::kInlineBytes;
  return by_leader(queue, [&] {
    if (M == Mode::kInline && bytes > kMaxInlinePutBytes) return Status::kInvalidLength;
    std::uint64_t at = 0;
    // A ring for each reservation would cost more than it hides, so an exclusive queue is rung when it fills,
    // and at the end. A shared one always rings.
    for (; bytes - at > kStep; at += kStep) {
      const Status status =
          post_inline(queue, to + at, from.address + at, kStep, NoSignal{}, Doorbell::kDefer, false);
      if (status != Status::kOk) return status;
    }
    return post_inline(queue, to + at, from.address + at, static_cast<std::uint32_t>(bytes - at), tail,
                       doorbell, true);
  });
}

// A put, and behind it `tail`: NoSignal, or a Signal, which rings for any `doorbell`.
template <Mode M, Copy C, typename Queue, typename Tail, typename Help = NoHelp>
GDX_DEVICE Status put(Queue& queue, const RemoteMemory& to, const LocalMemory& from, std::uint64_t bytes,
                      const Tail& tail, Doorbell doorbell, Help help = {}) {
  static_assert(C == Copy::kStores || M == Mode::kAuto || M == Mode::kPush || M == Mode::kBounce,
                "nothing is copied in this mode");
  if constexpr (M == Mode::kPull) return put_pull(queue, to, from, bytes, tail, doorbell);
  if (bytes == 0) return by_leader(queue, [&] { return put_nothing(queue, tail, doorbell); });
  if constexpr (M == Mode::kPush) return put_staged<NicPool, C>(queue, to, from, bytes, tail, doorbell, help);
  if constexpr (M == Mode::kBounce)
    return put_staged<HostPool, C>(queue, to, from, bytes, tail, doorbell, help);
  if constexpr (M == Mode::kInline) return put_inline<M>(queue, to, from, bytes, tail, doorbell);
  const ModeTable& modes = queue.handle().modes;
  if (bytes <= modes.inline_bytes) return put_inline<M>(queue, to, from, bytes, tail, doorbell);
  if (bytes <= modes.push_bytes) return put<Mode::kPush, C>(queue, to, from, bytes, tail, doorbell, help);
  if (bytes <= modes.pull_bytes) return put_pull(queue, to, from, bytes, tail, doorbell);
  return put<Mode::kBounce, C>(queue, to, from, bytes, tail, doorbell, help);
}

}  // namespace gdx::device::impl
