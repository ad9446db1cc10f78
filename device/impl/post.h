// The posting path: one WQE into the ring, then the doorbell. All threads of the scope call
// decide_by_leader(), by_leader(), post_blocks(), post_one() and transfer_nothing(), which gather. The leader
// alone calls the rest.
#pragma once

#include <cstdint>

#include "device/impl/open_endpoint.h"
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
template <Scope S, Placement P, typename Decide>
GDX_DEVICE Decision decide_by_leader(OpenEndpoint<S, P>& endpoint, Decide decide) {
  if constexpr (S == Scope::kThread) return decide();
  exec::gather<S>();
  std::uint32_t word = 0;
  if (endpoint.is_leader()) {
    const Decision mine = decide();
    word = static_cast<std::uint32_t>(mine.status) << 16 | mine.value;
  }
  word = exec::broadcast<S>(word);
  const auto status = static_cast<Status>(word >> 16);
  if (status != Status::kOk) endpoint.latch_status(status);
  return {status, word & Decision::kMaxValue};
}

// The same of a Status alone.
template <Scope S, Placement P, typename Post>
GDX_DEVICE Status by_leader(OpenEndpoint<S, P>& endpoint, Post post) {
  exec::gather<S>();
  std::uint32_t status = 0;
  if (endpoint.is_leader()) status = static_cast<std::uint32_t>(post());
  const auto decided = static_cast<Status>(exec::broadcast<S>(status));
  if (S != Scope::kThread && decided != Status::kOk) endpoint.latch_status(decided);
  return decided;
}

// Runs `build`, which posts `blocks` WQEBBs, once there is room for them.
template <Scope S, Placement P, typename Build>
GDX_DEVICE Status post_blocks(OpenEndpoint<S, P>& endpoint, std::uint32_t blocks, Build build) {
  return by_leader(endpoint, [&] {
    if (!endpoint.has_room(blocks)) {
      const Status status = endpoint.wait_blocks(blocks);
      if (status != Status::kOk) return status;
    }
    build();
    return Status::kOk;
  });
}

// Stores `wqe` as the queue's next one-block WQE.
template <Scope S, Placement P>
GDX_DEVICE void store_wqe(OpenEndpoint<S, P>& endpoint, const Wqe& wqe) {
  std::byte* const block = endpoint.block(0);
  exec::store_segment(block, wqe.at[0]);
  exec::store_segment<16>(block, wqe.at[1]);
  if (wqe.segments > 2) exec::store_segment<32>(block, wqe.at[2]);
  if (wqe.segments > 3) exec::store_segment<48>(block, wqe.at[3]);
  endpoint.commit(1);
}

// Stores `wqe` and rings, unless `doorbell` defers. `Payload` is the memory in which this kernel stored the
// payload. It widens the release where the queue alone needs less.
template <Placement Payload, Scope S, Placement P>
GDX_DEVICE void post_wqe(OpenEndpoint<S, P>& endpoint, const Wqe& wqe, Doorbell doorbell) {
  store_wqe(endpoint, wqe);
  if (doorbell == Doorbell::kRing) endpoint.template ring_with<Payload>(wqe);
}

// Posts one user operation of one WQE, `build()`.
template <Scope S, Placement P, typename Build>
GDX_DEVICE Status post_one(OpenEndpoint<S, P>& endpoint, Doorbell doorbell, Build build) {
  return post_blocks(endpoint, 1, [&] { post_wqe<P>(endpoint, build(), doorbell); });
}

// Returns the control segment of the WQE under construction.
template <Scope S, Placement P>
GDX_DEVICE Segment next_control(const OpenEndpoint<S, P>& endpoint, mlx5::WqeOpcode opcode,
                                std::uint32_t segments, std::uint32_t fence = 0) {
  return control_segment(opcode, endpoint.wqe_index(), endpoint.queue_pair_word(), segments,
                         endpoint.wqe_flags() | fence);
}

// Builds an RDMA WRITE or READ of [address, address + bytes) under `lkey`.
template <Scope S, Placement P>
GDX_DEVICE Wqe transfer_wqe(const OpenEndpoint<S, P>& endpoint, mlx5::WqeOpcode opcode,
                            const RemoteMemory& remote, std::uint64_t address, Be32 lkey,
                            std::uint32_t bytes) {
  return {{next_control(endpoint, opcode, 3),
           address_segment(remote.address, remote.rkey),
           data_segment(bytes, lkey, address),
           {}},
          3};
}

// Builds an RDMA WRITE of 16 B that travel in the WQE.
template <Scope S, Placement P>
GDX_DEVICE Wqe wide_value_wqe(const OpenEndpoint<S, P>& endpoint, const RemoteMemory& remote,
                              const ValueBits& bits) {
  Wqe wqe{
      {next_control(endpoint, mlx5::WqeOpcode::kRdmaWrite, 4), address_segment(remote.address, remote.rkey)},
      4};
  wide_value_segments(bits, wqe.at[2], wqe.at[3]);
  return wqe;
}

// Builds an RDMA WRITE of up to 8 B that travel in the WQE.
template <Scope S, Placement P>
GDX_DEVICE Wqe value_wqe(const OpenEndpoint<S, P>& endpoint, const RemoteMemory& remote, std::uint64_t value,
                         std::uint32_t bytes, std::uint32_t fence) {
  return {{next_control(endpoint, mlx5::WqeOpcode::kRdmaWrite, 3, fence),
           address_segment(remote.address, remote.rkey),
           inline_value_segment(value, bytes),
           {}},
          3};
}

// Builds a fetch-add or compare-swap on 8 B; the original value lands at [result, result + 8) under `lkey`.
template <Scope S, Placement P>
GDX_DEVICE Wqe atomic_wqe(const OpenEndpoint<S, P>& endpoint, mlx5::WqeOpcode opcode,
                          const RemoteMemory& remote, std::uint64_t swap_or_add, std::uint64_t compare,
                          std::uint64_t result, Be32 lkey, std::uint32_t fence) {
  return {{next_control(endpoint, opcode, 4, fence), address_segment(remote.address, remote.rkey),
           atomic_segment(swap_or_add, compare), data_segment(8, lkey, result)},
          4};
}

// Posts a zero-length RDMA WRITE. It touches no memory and needs no key, but only a live peer acknowledges
// it.
template <Scope S, Placement P>
GDX_DEVICE void post_probe(OpenEndpoint<S, P>& endpoint) {
  const Wqe wqe{{next_control(endpoint, mlx5::WqeOpcode::kRdmaWrite, 2), address_segment(0, 0u), {}, {}}, 2};
  post_wqe<P>(endpoint, wqe, Doorbell::kRing);
  endpoint.count_no_message(1);
}

template <Scope S, Placement P>
GDX_DEVICE Wqe signal_wqe(const OpenEndpoint<S, P>& endpoint, const Signal& signal) {
  const EndpointHandle& handle = endpoint.handle();
  if (signal.op == SignalOp::kSet) {
    return value_wqe(endpoint, signal.word, signal.value, 8, handle.signal_fence);
  }
  return atomic_wqe(endpoint, mlx5::WqeOpcode::kAtomicFetchAdd, signal.word, signal.value, 0,
                    reinterpret_cast<std::uint64_t>(handle.scratch), handle.scratch_lkey,
                    handle.signal_fence);
}

// Ends a put of no bytes, in the leader: nothing is sent but the signal. Rings for deferred calls as a put
// does.
template <Scope S, Placement P>
GDX_DEVICE Status put_nothing(OpenEndpoint<S, P>& endpoint, const NoSignal&, Doorbell doorbell) {
  if (endpoint.status() == Status::kOk && doorbell == Doorbell::kRing) endpoint.ring_if_deferred();
  return endpoint.status();
}
template <Scope S, Placement P>
GDX_DEVICE Status put_nothing(OpenEndpoint<S, P>& endpoint, const Signal& signal, Doorbell /*doorbell*/) {
  const Status status = endpoint.reserve_blocks(1);
  // Host scope, as pushes and bounces of more bytes have.
  if (status == Status::kOk)
    post_wqe<Placement::kHost>(endpoint, signal_wqe(endpoint, signal), Doorbell::kRing);
  return status;
}

// A get or put of no bytes, for all threads of the scope.
template <Scope S, Placement P>
GDX_DEVICE Status transfer_nothing(OpenEndpoint<S, P>& endpoint, Doorbell doorbell) {
  return by_leader(endpoint, [&] { return put_nothing(endpoint, NoSignal{}, doorbell); });
}

// Ends a put. Its last WQE is `wqe`, of one block, stored already and the newest of `count` without a
// doorbell.
template <Placement Payload, Scope S, Placement P>
GDX_DEVICE void end_put(OpenEndpoint<S, P>& endpoint, const Wqe& wqe, std::uint32_t count, const NoSignal&,
                        Doorbell doorbell) {
  if (doorbell == Doorbell::kRing) return endpoint.template ring_with<Payload>(wqe, count);
  // The later doorbell may come at the scope that the queue alone needs.
  if constexpr (Payload != P) endpoint.release_with_doorbell();
}
template <Placement Payload, Scope S, Placement P>
GDX_DEVICE void end_put(OpenEndpoint<S, P>& endpoint, const Wqe& wqe, std::uint32_t count,
                        const Signal& signal, Doorbell /*doorbell*/) {
  const Wqe second = signal_wqe(endpoint, signal);
  store_wqe(endpoint, second);
  endpoint.template ring_with<Payload>(wqe, second, count + 1);
}

// Builds an RDMA WRITE of `bytes` <= kShortInlineBytes that travel in a WQE of one block.
template <Scope S, Placement P>
GDX_DEVICE Wqe short_inline_wqe(const OpenEndpoint<S, P>& endpoint, const RemoteMemory& remote,
                                const std::byte* from, std::uint32_t bytes) {
  const InlineData data(from, bytes);
  const std::uint32_t segments = inline_segments(bytes);
  return {{next_control(endpoint, mlx5::WqeOpcode::kRdmaWrite, segments),
           address_segment(remote.address, remote.rkey), data.at[0], data.at[1]},
          segments};
}

// Posts an RDMA WRITE of `bytes` <= kMaxInlineBytes in a WQE of one to kMaxInlineBlocks blocks, then `tail`.
// The caller has reserved the blocks. Only a WQE of one block goes by BlueFlame, because more blocks would be
// copied once more.
template <typename Tail, Scope S, Placement P>
GDX_DEVICE void post_inline(OpenEndpoint<S, P>& endpoint, const RemoteMemory& remote, const std::byte* from,
                            std::uint32_t bytes, const Tail& tail, Doorbell doorbell) {
  if (bytes <= kShortInlineBytes) {
    const Wqe wqe = short_inline_wqe(endpoint, remote, from, bytes);
    store_wqe(endpoint, wqe);
    return end_put<P>(endpoint, wqe, 1, tail, doorbell);
  }
  constexpr std::uint32_t kBlockBytes = mlx5::kWqeBasicBlockBytes;
  constexpr std::uint32_t kDataAt = 2 * mlx5::kSegmentBytes + kInlineHeaderBytes;
  const std::uint32_t segments = inline_segments(bytes);
  const Segment control = next_control(endpoint, mlx5::WqeOpcode::kRdmaWrite, segments);
  exec::store_segment(endpoint.block(0), control);
  exec::store_segment<16>(endpoint.block(0), address_segment(remote.address, remote.rkey));
  exec::store_word(endpoint.block(0) + 32, byte_swap(mlx5::kInlineFlag | bytes));
  for (std::uint32_t copied = 0, k = 0, at = kDataAt; copied < bytes; ++k, at = 0) {
    const std::uint32_t room = kBlockBytes - at;
    const std::uint32_t n = bytes - copied < room ? bytes - copied : room;
    exec::copy<Scope::kThread>(endpoint.block(k) + at, from + copied, n);
    copied += n;
  }
  endpoint.commit(blocks_of(segments));
  endpoint.count_no_message(blocks_of(segments) - 1);
  if constexpr (Tail::kBlocks != 0) {
    post_wqe<P>(endpoint, signal_wqe(endpoint, tail), Doorbell::kRing);
  } else if (doorbell == Doorbell::kRing) {
    endpoint.template ring<P>(doorbell_value(control));
  }
}

}  // namespace gdx::device::impl
