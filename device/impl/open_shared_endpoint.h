// The state of a shared endpoint that a scope has open, for device/endpoint.h: the queue of impl/post.h on
// which any scopes post at once. A post takes one reservation (an atomic add), the WQEs' stores, and one
// publication. Threads publish in the order of their reservations, for themselves or for those behind them.
// Functions are for the leader unless marked "all threads". Source: docs/device.md, "Shared endpoints".
//
//   thread 1: reserve [0, 1)   store            publish 1
//   thread 2: reserve [1, 3)   store   wait its turn ----> publish 4, thread 3's too
//   thread 3: reserve [3, 4)   store   mark   wait -----------------> published
#pragma once

#include <cstdint>

#include "device/exec/exec.h"
#include "device/impl/shared_credits.h"
#include "device/impl/shared_wait.h"
#include "device/impl/signal.h"
#include "device/impl/wqe.h"
#include "device/options.h"
#include "proto/gpu/memory.h"
#include "proto/gpu/mode_table.h"
#include "proto/gpu/queue.h"
#include "proto/status.h"

namespace gdx::device::impl {

// Treatment of the endpoint's credits by a post that finds the endpoint failed. kGiveBack: the post returns
// all of them to the pool, though it uses none itself, because no other call may come that would. kReturn:
// its caller has taken a slot, and returns credits after it has abandoned that slot.
enum class OnFailure { kGiveBack, kReturn };

// Slow paths of a post: the waits for room and for the turn, each with what OnFailure says behind it.
template <OnFailure F>
GDX_OUT_OF_LINE Status wait_shared_blocks(QueueState* state, std::uint32_t goal) {
  const Status status = wait_shared_room(state, goal);
  return F == OnFailure::kReturn || status == Status::kOk ? status : give_back_shared(state);
}
template <Placement Observed, OnFailure F>
GDX_OUT_OF_LINE Status publish_late_shared(QueueState* state, std::uint32_t first, std::uint32_t end,
                                           std::uint64_t doorbell_value) {
  const Status status = publish_late<Observed>(state, first, end, doorbell_value);
  return F == OnFailure::kReturn || status == Status::kOk ? status : give_back_shared(state);
}

template <Scope S, Placement P>
class OpenSharedEndpoint {
 public:
  static constexpr Sharing kSharing = Sharing::kShared;
  static constexpr Scope kScope = S;
  static constexpr Placement kPlacement = P;
  // A warp posts up to 32 blocks at once, and a put with its signal two.
  static constexpr std::uint32_t kMinLogSendQueue = 6;
  // Bytes of one inline WQE, because all WQEs have one block, and WQEs under one doorbell.
  static constexpr std::uint32_t kInlineBytes = kShortInlineBytes;
  static constexpr std::uint32_t kInlineAtOnce = 16;
  // A put of no bytes before a signal is the signal alone, because its length is compared before anything is
  // taken.
  static constexpr bool kSendsEmpty = false;
  static_assert(kSharedInlineBytes == kInlineBytes);

  // All threads. The comments of device::SharedEndpoint describe this and the next three.
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
  // All threads: opens the endpoint of a team's record, which the host has checked and connected before it
  // wrote the way.
  GDX_DEVICE OpenSharedEndpoint(const EndpointHandle& handle, std::uint32_t queue_pair_word,
                                std::uint32_t block_mask)
      : handle_(handle), queue_pair_word_(queue_pair_word), block_mask_(block_mask) {
    exec::watch_endpoint(handle);
  }
  OpenSharedEndpoint(const OpenSharedEndpoint&) = delete;
  OpenSharedEndpoint& operator=(const OpenSharedEndpoint&) = delete;
  GDX_DEVICE Status status() const { return status_; }
  GDX_DEVICE const EndpointHandle& handle() const { return handle_; }
  GDX_DEVICE bool is_leader() const { return exec::thread_rank<S>() == 0; }

  // Steps of what only an exclusive queue keeps: deadlines of calls, failures, deferred doorbells, counts of
  // messages.
  GDX_DEVICE void start_call() const {}
  GDX_DEVICE void latch_status(Status /*status*/) const {}
  GDX_DEVICE void ring_if_deferred() const {}
  GDX_DEVICE void commit(std::uint32_t /*blocks*/) const {}
  GDX_DEVICE void count_no_message(std::uint32_t /*blocks*/) const {}

  // Returns whether blocks may be taken, that is, whether the endpoint is open; waits for nothing.
  GDX_DEVICE bool has_room(std::uint32_t /*blocks*/) const { return status_ == Status::kOk; }
  GDX_DEVICE Status wait_blocks(std::uint32_t /*blocks*/) const { return status_; }
  GDX_DEVICE Status reserve_blocks(std::uint32_t /*blocks*/) const { return status_; }
  // Takes `blocks` blocks. Returns the first, which may not be free yet.
  GDX_DEVICE std::uint32_t take_blocks(std::uint32_t blocks) const {
    return exec::fetch_add(&handle_.state->shared.reserved, blocks);
  }
  // Returns whether the blocks taken from `first` on are free, or waits until they are.
  GDX_DEVICE bool owns_blocks(std::uint32_t first, std::uint32_t blocks) const {
    return first + blocks - exec::load_counter(&handle_.state->shared.completed) <= block_mask_ + 1;
  }
  template <OnFailure F = OnFailure::kGiveBack>
  GDX_DEVICE Status wait_owned(std::uint32_t first, std::uint32_t blocks) const {
    return impl::wait_shared_blocks<F>(handle_.state, first + blocks - (block_mask_ + 1));
  }

  GDX_DEVICE std::uint32_t queue_pair_word() const { return queue_pair_word_; }
  GDX_DEVICE std::uint32_t wqe_flags() const { return mlx5::kCompletionAlways; }
  GDX_DEVICE std::byte* block_at(std::uint32_t index) const {  // all threads
    return handle_.send_queue[index & block_mask_].bytes;
  }

  // Adds the `blocks` blocks from `first` on to the queue, in turn, and rings. `Observed` is the memory that
  // the NIC reads, payload included.
  template <Placement Observed, OnFailure F = OnFailure::kGiveBack, std::uint32_t Count>
  GDX_DEVICE Status publish(std::uint32_t first, std::uint32_t blocks, const Newest<Count>& newest,
                            Doorbell /*doorbell*/) const {
    return publish_to<Observed, F>(first, first + blocks, newest.doorbell_value());
  }

  // All threads of a warp: takes blocks for its lanes; publishes what they have stored.
  GDX_DEVICE Status take_for_lanes(std::uint32_t blocks, std::uint32_t* first) const {
    Status status = Status::kOk;
    if (is_leader()) {
      *first = take_blocks(blocks);
      if (!owns_blocks(*first, blocks)) status = wait_owned(*first, blocks);
    }
    status = agreed<S>(status);
    if (status == Status::kOk) *first = exec::broadcast<S>(*first);
    return status;
  }
  GDX_DEVICE Status publish_lanes(std::uint32_t first, std::uint32_t blocks, std::uint64_t doorbell_value,
                                  Doorbell /*doorbell*/) const {
    Status status = Status::kOk;
    if (is_leader()) status = publish_to<P, OnFailure::kGiveBack>(first, first + blocks, doorbell_value);
    return agreed<S>(status);
  }

  // Takes a credit of `Pool` (impl/pools.h). Requests `slots_wanted` slots when none is free, and helps
  // others meanwhile.
  template <typename Pool, typename Help>
  GDX_DEVICE impl::TakenCredit take_credit(std::uint64_t slots_wanted, Help help) const {
    const impl::TakenCredit credit = impl::try_take_credit(Pool::credits(*handle_.state));
    if (credit.status == Status::kOk) return credit;
    return impl::wait_shared_credit<Pool>(handle_.state, slots_wanted, help);
  }

 private:
  template <Placement Observed, OnFailure F>
  GDX_DEVICE Status publish_to(std::uint32_t first, std::uint32_t end, std::uint64_t doorbell_value) const {
    QueueState& state = *handle_.state;
    if (!is_next_and_last(first, end))
      return impl::publish_late_shared<Observed, F>(&state, first, end, doorbell_value);
    impl::publish_in_turn<Observed>(handle_, state, end, doorbell_value);
    return Status::kOk;
  }
  // Returns whether the post [first, end) has its turn, and none is behind it. Both loads wait at once.
  GDX_DEVICE bool is_next_and_last(std::uint32_t first, std::uint32_t end) const {
    const SharedState& shared = handle_.state->shared;
    const std::uint32_t reserved = exec::load_flag(&shared.reserved);
    return ((exec::load_counter(&shared.published) ^ first) | (reserved ^ end)) == 0;
  }

  const EndpointHandle& handle_;
  const std::uint32_t queue_pair_word_;
  const std::uint32_t block_mask_;
  Status status_ = Status::kOk;
};

}  // namespace gdx::device::impl
