// The posting path: one WQE into the ring, then the doorbell. Runs in the leader of the scope.
#pragma once

#include <cstdint>

#include "device/endpoint.h"

namespace gdx::device::impl {

// Runs `post` in the leader once the whole scope has arrived, and tells everyone its Status. The
// barrier orders what the other threads stored (payload, say) before what the leader publishes.
template <Scope S, Placement P, typename Post>
GDX_DEVICE Status by_leader(Endpoint<S, P>& endpoint, Post post) {
  exec::sync<S>();
  std::uint32_t status = 0;
  if (endpoint.is_leader()) status = static_cast<std::uint32_t>(post());
  const auto decided = static_cast<Status>(exec::broadcast<S>(status));
  if (S != Scope::kThread && decided != Status::kOk) endpoint.learn(decided);
  return decided;
}

// One user operation of one WQEBB: `build` posts it once there is room.
template <Scope S, Placement P, typename Build>
GDX_DEVICE Status post_one(Endpoint<S, P>& endpoint, Build build) {
  return by_leader(endpoint, [&] {
    if (!endpoint.has_room(1)) {
      const Status status = endpoint.wait_blocks(1);
      if (status != Status::kOk) return status;
    }
    build();
    return Status::kOk;
  });
}

// A WQE of one block, of which `segments` 16 B segments are used. `Payload` is where the payload was
// stored by this kernel: it widens the release when the queue alone would need less.
template <Placement Payload, Scope S, Placement P>
GDX_DEVICE void post_block(Endpoint<S, P>& endpoint, std::uint32_t segments, const Segment& control,
                           const Segment& second, const Segment& third, const Segment& fourth,
                           Doorbell doorbell) {
  std::byte* const wqe = endpoint.block(0);
  exec::store_segment(wqe, control);
  exec::store_segment<16>(wqe, second);
  if (segments > 2) exec::store_segment<32>(wqe, third);
  if (segments > 3) exec::store_segment<48>(wqe, fourth);
  endpoint.commit(1);
  if (doorbell == Doorbell::kRing) endpoint.template ring_with<Payload>({control, second, third, fourth});
}

// RDMA WRITE or READ of [address, address + bytes) under `lkey`.
template <Placement Payload, Scope S, Placement P>
GDX_DEVICE void post_transfer(Endpoint<S, P>& endpoint, mlx5::WqeOpcode opcode, const RemoteMemory& remote,
                              std::uint64_t address, Be32 lkey, std::uint32_t bytes,
                              Doorbell doorbell) {
  const Segment control =
      control_segment(opcode, endpoint.wqe_index(), endpoint.queue_pair_word(), 3, endpoint.wqe_flags());
  post_block<Payload>(endpoint, 3, control, address_segment(remote.address, remote.rkey),
                      data_segment(bytes, lkey, address), {}, doorbell);
}

// RDMA WRITE of up to 8 B that travel in the WQE.
template <Scope S, Placement P>
GDX_DEVICE void post_value(Endpoint<S, P>& endpoint, const RemoteMemory& remote, std::uint64_t value,
                           std::uint32_t bytes, std::uint32_t fence, Doorbell doorbell) {
  const Segment control = control_segment(mlx5::WqeOpcode::kRdmaWrite, endpoint.wqe_index(),
                                          endpoint.queue_pair_word(), 3, endpoint.wqe_flags() | fence);
  post_block<P>(endpoint, 3, control, address_segment(remote.address, remote.rkey),
                inline_value_segment(value, bytes), {}, doorbell);
}

// Fetch-add or compare-swap on 8 B; the original value lands at [result, result + 8) under `lkey`.
template <Scope S, Placement P>
GDX_DEVICE void post_atomic(Endpoint<S, P>& endpoint, mlx5::WqeOpcode opcode, const RemoteMemory& remote,
                            std::uint64_t swap_or_add, std::uint64_t compare, std::uint64_t result,
                            Be32 lkey, std::uint32_t fence, Doorbell doorbell) {
  const Segment control =
      control_segment(opcode, endpoint.wqe_index(), endpoint.queue_pair_word(), 4, endpoint.wqe_flags() | fence);
  post_block<P>(endpoint, 4, control, address_segment(remote.address, remote.rkey),
                atomic_segment(swap_or_add, compare), data_segment(8, lkey, result), doorbell);
}

// A zero-length RDMA WRITE: touches no memory and needs no key, but only a live peer acknowledges it.
template <Scope S, Placement P>
GDX_DEVICE void post_probe(Endpoint<S, P>& endpoint) {
  const Segment control = control_segment(mlx5::WqeOpcode::kRdmaWrite, endpoint.wqe_index(),
                                          endpoint.queue_pair_word(), 2, endpoint.wqe_flags());
  post_block<P>(endpoint, 2, control, address_segment(0, 0u), {}, {}, Doorbell::kRing);
  endpoint.count_no_message(1);
}

// RDMA WRITE of `bytes` <= kShortInlineBytes that travel in a WQE of one block.
template <Scope S, Placement P>
GDX_DEVICE void post_short_inline(Endpoint<S, P>& endpoint, const RemoteMemory& remote, const std::byte* from,
                                  std::uint32_t bytes, Doorbell doorbell) {
  Segment data[2]{{{exec::swap_bytes(mlx5::kInlineFlag | bytes), 0, 0, 0}}, {}};
  exec::copy<Scope::kThread>(reinterpret_cast<std::byte*>(data) + kInlineHeaderBytes, from, bytes);
  const std::uint32_t segments = inline_segments(bytes);
  const Segment control = control_segment(mlx5::WqeOpcode::kRdmaWrite, endpoint.wqe_index(),
                                          endpoint.queue_pair_word(), segments, endpoint.wqe_flags());
  post_block<P>(endpoint, segments, control, address_segment(remote.address, remote.rkey), data[0], data[1],
                doorbell);
}

// RDMA WRITE of `bytes` <= kMaxInlineBytes that travel in a WQE of one to kMaxInlineBlocks blocks.
// The caller has reserved the blocks.
template <Scope S, Placement P>
GDX_DEVICE void post_inline(Endpoint<S, P>& endpoint, const RemoteMemory& remote, const std::byte* from,
                            std::uint32_t bytes, Doorbell doorbell) {
  if (bytes <= kShortInlineBytes) return post_short_inline(endpoint, remote, from, bytes, doorbell);
  constexpr std::uint32_t kBlockBytes = mlx5::kWqeBasicBlockBytes;
  constexpr std::uint32_t kDataAt = 2 * mlx5::kSegmentBytes + kInlineHeaderBytes;
  const std::uint32_t segments = inline_segments(bytes);
  const Segment control = control_segment(mlx5::WqeOpcode::kRdmaWrite, endpoint.wqe_index(),
                                          endpoint.queue_pair_word(), segments, endpoint.wqe_flags());
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
  if (doorbell == Doorbell::kRing) endpoint.template ring<P>(doorbell_value(control));
}

template <Scope S, Placement P>
GDX_DEVICE void post_signal(Endpoint<S, P>& endpoint, const RemoteMemory& word, std::uint64_t value,
                            SignalOp op, Doorbell doorbell) {
  const EndpointHandle& handle = endpoint.handle();
  if (op == SignalOp::kSet) {
    post_value(endpoint, word, value, 8, handle.signal_fence, doorbell);
  } else {
    post_atomic(endpoint, mlx5::WqeOpcode::kAtomicFetchAdd, word, value, 0,
                reinterpret_cast<std::uint64_t>(handle.scratch), handle.scratch_lkey, handle.signal_fence,
                doorbell);
  }
}

template <Scope S, Placement P>
GDX_DEVICE Status signal(Endpoint<S, P>& endpoint, const RemoteMemory& word, std::uint64_t value, SignalOp op,
                         Doorbell doorbell) {
  return post_one(endpoint, [&] { post_signal(endpoint, word, value, op, doorbell); });
}

}  // namespace gdx::device::impl
