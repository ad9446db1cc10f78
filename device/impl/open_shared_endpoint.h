// The state of a shared endpoint that a thread has open, for device/shared_endpoint.h. Posting takes one
// reservation (an atomic add), the WQE's stores, and one publication. Threads publish in the order of their
// reservations, for themselves or for those behind them. Source: docs/device.md, "Shared endpoints".
//
//   thread 1: reserve [0, 1)   store            publish 1
//   thread 2: reserve [1, 3)   store   wait its turn ----> publish 4, thread 3's too
//   thread 3: reserve [3, 4)   store   mark   wait -----------------> published
#pragma once

#include <cstdint>

#include "device/exec/exec.h"
#include "device/impl/shared_credits.h"
#include "device/impl/shared_wait.h"
#include "device/impl/wqe.h"
#include "device/options.h"
#include "proto/gpu/memory.h"
#include "proto/gpu/queue.h"
#include "proto/status.h"

namespace gdx::device::impl {

template <Placement P>
class OpenSharedEndpoint {
 public:
  // A warp posts up to 32 blocks at once, and a put with its signal two.
  static constexpr std::uint32_t kMinLogSendQueue = 6;

  // The comments of device::SharedEndpoint describe this and status().
  GDX_DEVICE explicit OpenSharedEndpoint(const EndpointHandle& handle)
      : handle_(handle),
        queue_pair_word_(impl::queue_pair_word(handle.qpn)),
        block_mask_((1u << handle.log_send_queue) - 1) {
    if (handle.layout_version != kQueueLayoutVersion) {
      status_ = Status::kVersionMismatch;
    } else if ((P == Placement::kGpu && handle.placement != P) || handle.sharing != Sharing::kShared ||
               handle.log_send_queue < kMinLogSendQueue) {
      status_ = Status::kInvalidArgument;
    } else if (exec::load_counter(handle.owner) != handle.owner_free) {
      status_ = Status::kNotConnected;
    } else {
      exec::watch_endpoint(handle);
    }
  }
  // Opens the endpoint of a team's record, which the host has checked and connected before it wrote the way.
  GDX_DEVICE OpenSharedEndpoint(const EndpointHandle& handle, std::uint32_t queue_pair_word,
                                std::uint32_t block_mask)
      : handle_(handle), queue_pair_word_(queue_pair_word), block_mask_(block_mask) {
    exec::watch_endpoint(handle);
  }
  OpenSharedEndpoint(const OpenSharedEndpoint&) = delete;
  OpenSharedEndpoint& operator=(const OpenSharedEndpoint&) = delete;

  GDX_DEVICE Status status() const { return status_; }
  GDX_DEVICE const EndpointHandle& handle() const { return handle_; }

  // Reserves `blocks` blocks. Returns the first, which may not be free yet.
  GDX_DEVICE std::uint32_t take_blocks(std::uint32_t blocks) const {
    return exec::fetch_add(&handle_.state->shared.reserved, blocks);
  }
  // Returns whether the blocks before `end` are free.
  GDX_DEVICE bool has_room(std::uint32_t end) const {
    return end - exec::load_counter(&handle_.state->shared.completed) <= block_mask_ + 1;
  }
  GDX_DEVICE std::uint32_t room_goal(std::uint32_t end) const { return end - (block_mask_ + 1); }
  // Reserves `blocks` blocks from `first` on, and waits until they are free.
  GDX_DEVICE Status reserve(std::uint32_t blocks, std::uint32_t* first) {
    *first = take_blocks(blocks);
    const std::uint32_t end = *first + blocks;
    return has_room(end) ? Status::kOk : impl::wait_shared_room(handle_.state, room_goal(end));
  }
  // Returns whether the post [first, end) has its turn, and none is behind it. Both loads wait at once.
  GDX_DEVICE bool is_next_and_last(std::uint32_t first, std::uint32_t end) const {
    const SharedState& shared = handle_.state->shared;
    const std::uint32_t reserved = exec::load_flag(&shared.reserved);
    return ((exec::load_counter(&shared.published) ^ first) | (reserved ^ end)) == 0;
  }
  GDX_DEVICE std::byte* block_at(std::uint32_t index) const {
    return handle_.send_queue[index & block_mask_].bytes;
  }
  // Adds the blocks [first, end) to the queue, in turn, and rings. `Observed` is the memory that the NIC
  // reads, payload included.
  template <Placement Observed = P>
  GDX_DEVICE Status publish(std::uint32_t first, std::uint32_t end, std::uint64_t doorbell_value) {
    QueueState& state = *handle_.state;
    if (!is_next_and_last(first, end))
      return impl::publish_late<Observed>(&state, first, end, doorbell_value);
    impl::publish_in_turn<Observed>(handle_, state, end, doorbell_value);
    return Status::kOk;
  }
  // Takes a credit of `Pool` (impl/shared_credits.h). Requests `slots_wanted` slots when none is free, and
  // helps others meanwhile.
  template <typename Pool, typename Help>
  GDX_DEVICE impl::TakenCredit take_credit(std::uint64_t slots_wanted, Help help) {
    const impl::TakenCredit credit = impl::try_take_credit(Pool::credits(*handle_.state));
    if (credit.status == Status::kOk) return credit;
    return impl::wait_shared_credit<Pool>(handle_.state, slots_wanted, help);
  }

  // Returns the doorbell value of a gdx_put at `index`.
  GDX_DEVICE std::uint64_t write_doorbell(std::uint32_t index) const {
    return impl::doorbell_value(control_at(index, mlx5::WqeOpcode::kRdmaWrite, 3, 0));
  }
  // Functions that store one WQE at `index` and return its doorbell value.
  GDX_DEVICE std::uint64_t store_transfer(std::uint32_t index, mlx5::WqeOpcode opcode,
                                          const RemoteMemory& remote, const LocalMemory& local,
                                          std::uint32_t bytes) const {
    const exec::Segment control = control_at(index, opcode, 3, 0);
    store_head(index, control, remote);
    exec::store_segment<32>(
        block_at(index),
        impl::data_segment(bytes, local.lkey, reinterpret_cast<std::uint64_t>(local.address)));
    return impl::doorbell_value(control);
  }
  GDX_DEVICE std::uint64_t store_value(std::uint32_t index, const RemoteMemory& remote, std::uint64_t value,
                                       std::uint32_t bytes, std::uint32_t fence) const {
    const exec::Segment control = control_at(index, mlx5::WqeOpcode::kRdmaWrite, 3, fence);
    store_head(index, control, remote);
    exec::store_segment<32>(block_at(index), impl::inline_value_segment(value, bytes));
    return impl::doorbell_value(control);
  }
  GDX_DEVICE std::uint64_t store_wide_value(std::uint32_t index, const RemoteMemory& remote,
                                            const impl::ValueBits& bits, std::uint32_t fence) const {
    const exec::Segment control = control_at(index, mlx5::WqeOpcode::kRdmaWrite, 4, fence);
    exec::Segment data[2];
    impl::wide_value_segments(bits, data[0], data[1]);
    store_head(index, control, remote);
    exec::store_segment<32>(block_at(index), data[0]);
    exec::store_segment<48>(block_at(index), data[1]);
    return impl::doorbell_value(control);
  }
  // `bytes` <= kShortInlineBytes.
  GDX_DEVICE std::uint64_t store_inline(std::uint32_t index, const RemoteMemory& remote,
                                        const std::byte* from, std::uint32_t bytes) const {
    const impl::InlineData data(from, bytes);
    const std::uint32_t segments = impl::inline_segments(bytes);
    const exec::Segment control = control_at(index, mlx5::WqeOpcode::kRdmaWrite, segments, 0);
    store_head(index, control, remote);
    exec::store_segment<32>(block_at(index), data.at[0]);
    if (segments > 3) exec::store_segment<48>(block_at(index), data.at[1]);
    return impl::doorbell_value(control);
  }
  // An RDMA WRITE of no bytes, which only a live peer acknowledges.
  GDX_DEVICE std::uint64_t store_probe(std::uint32_t index) const {
    const exec::Segment control = control_at(index, mlx5::WqeOpcode::kRdmaWrite, 2, 0);
    store_head(index, control, RemoteMemory{});
    return impl::doorbell_value(control);
  }
  GDX_DEVICE std::uint64_t store_atomic(std::uint32_t index, mlx5::WqeOpcode opcode,
                                        const RemoteMemory& remote, std::uint64_t swap_or_add,
                                        std::uint64_t compare, const void* result, Be32 lkey,
                                        std::uint32_t fence) const {
    const exec::Segment control = control_at(index, opcode, 4, fence);
    store_head(index, control, remote);
    exec::store_segment<32>(block_at(index), impl::atomic_segment(swap_or_add, compare));
    exec::store_segment<48>(block_at(index),
                            impl::data_segment(8, lkey, reinterpret_cast<std::uint64_t>(result)));
    return impl::doorbell_value(control);
  }
  GDX_DEVICE std::uint64_t store_signal(std::uint32_t index, const RemoteMemory& word, std::uint64_t value,
                                        SignalOp op) const {
    if (op == SignalOp::kSet) return store_value(index, word, value, 8, handle_.signal_fence);
    return store_atomic(index, mlx5::WqeOpcode::kAtomicFetchAdd, word, value, 0, handle_.scratch,
                        handle_.scratch_lkey, handle_.signal_fence);
  }

 private:
  GDX_DEVICE exec::Segment control_at(std::uint32_t index, mlx5::WqeOpcode opcode, std::uint32_t segments,
                                      std::uint32_t fence) const {
    return impl::control_segment(opcode, index, queue_pair_word_, segments, mlx5::kCompletionAlways | fence);
  }
  GDX_DEVICE void store_head(std::uint32_t index, const exec::Segment& control,
                             const RemoteMemory& remote) const {
    exec::store_segment(block_at(index), control);
    exec::store_segment<16>(block_at(index), impl::address_segment(remote.address, remote.rkey));
  }

  const EndpointHandle& handle_;
  const std::uint32_t queue_pair_word_;
  const std::uint32_t block_mask_;
  Status status_ = Status::kOk;
};

}  // namespace gdx::device::impl
