// An endpoint opened by a kernel: what posting changes in registers, its constants in kernel parameters, and
// what only waiting needs in the endpoint's memory (impl/wait.h). Owned by exactly one thread, warp or block
// (its Scope) from construction to close(), so posting needs no atomics. All threads of the scope hold the
// object and make the same calls; the thread of rank 0, the leader, does the posting and the waiting.
//
// Ordering: a call that posts publishes, in this order, payload stores (push), WQE stores, the
// doorbell record, the doorbell. The release before the record is cumulative, so it also orders
// payload that other threads of the scope stored before the scope's barrier.
#pragma once

#include <cstdint>

#include "device/credits.h"
#include "device/exec/exec.h"
#include "device/impl/wait.h"
#include "device/impl/wqe.h"
#include "device/options.h"
#include "proto/gpu/memory.h"
#include "proto/gpu/queue.h"
#include "proto/status.h"

namespace gdx::device {

template <Scope S = Scope::kThread, Placement P = Placement::kHost>
class Endpoint {
 public:
  // Opens an endpoint; `handle` must outlive it (a kernel parameter does). status() is kVersionMismatch when
  // host and device code disagree on the layout, kInvalidArgument when the queue does not live where P says
  // or is a shared one (all touch nothing), or the fault of an earlier kernel.
  GDX_DEVICE explicit Endpoint(const EndpointHandle& handle);
  explicit Endpoint(EndpointHandle&&) = delete;
  GDX_DEVICE ~Endpoint() { close(); }
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // Writes the counters back for the next kernel. Outstanding work goes on, and keeps its staging slots until
  // the next kernel or the endpoint's end, beyond the minimum too: flush first where others need them.
  // Idempotent.
  GDX_DEVICE void close();

  // kOk, or the first error of this endpoint: the same in all threads of the scope after every call.
  GDX_DEVICE Status status() const { return status_; }
  // What failed: status, CQE syndrome, WQE. Only in the leader.
  GDX_DEVICE EndpointFault fault() const {
    return refused_ ? EndpointFault{status_, 0, 0, 0} : handle_.state->fault;
  }
  GDX_DEVICE const EndpointHandle& handle() const { return handle_; }
  GDX_DEVICE bool is_leader() const { return exec::thread_rank<S>() == 0; }

  // Everything below is for device/gdx.h, and in the leader only unless it says otherwise.

  // Begins an API call: all its waits together are bounded by the endpoint's timeout.
  GDX_DEVICE void start_call() { waited_ = false; }
  // All threads: takes over what the leader's part of a call came to.
  GDX_DEVICE void learn(Status status) {
    if (!impl::is_sticky(status)) return;
    status_ = status;
    limit_ = producer_;
  }
  // The next WQE starts only when all READs and atomics before it have been answered.
  GDX_DEVICE void fence_next() { fence_ = mlx5::kFenceReads; }

  // Are `blocks` WQEBBs free, without a look at completions? Not on a failed endpoint.
  GDX_DEVICE bool has_room(std::uint32_t blocks) const { return limit_ - producer_ >= blocks; }
  // Waits until they are.
  GDX_DEVICE Status wait_blocks(std::uint32_t blocks);
  GDX_DEVICE Status reserve_blocks(std::uint32_t blocks) {
    return has_room(blocks) ? Status::kOk : wait_blocks(blocks);
  }
  GDX_DEVICE std::uint32_t queue_pair_word() const { return queue_pair_word_; }
  // The k-th block of the WQE that is being built.
  GDX_DEVICE std::byte* block(std::uint32_t k) const { return block_at(producer_ + k); }
  GDX_DEVICE std::byte* block_at(std::uint32_t index) const {  // all threads
    return handle_.send_queue[index & block_mask_].bytes;
  }
  GDX_DEVICE std::uint32_t wqe_index() const { return producer_; }
  // Completion and fence bits of the WQE that is being built.
  GDX_DEVICE std::uint32_t wqe_flags() const { return mlx5::kCompletionAlways | fence_; }
  // Makes the WQE of `blocks` blocks at wqe_index() part of the queue.
  GDX_DEVICE void commit(std::uint32_t blocks) {
    producer_ += blocks;
    tail_blocks_ = blocks - 1;
    fence_ = 0;
  }
  // The same for `count` WQEs of one block each.
  GDX_DEVICE void commit_many(std::uint32_t count) {
    commit(count);
    tail_blocks_ = 0;
  }
  // Publishes all committed WQEs. `Payload` is where this kernel stored their payload: NIC memory and
  // host memory need a wider release than a queue in GPU memory.
  template <Placement Payload = P>
  GDX_DEVICE void ring(std::uint64_t doorbell_value) {
    ring_at<Payload>(next_doorbell(), doorbell_value);
  }
  GDX_DEVICE bool has_blueflame() const { return blueflame_; }
  // As ring(), where the `count` newest WQEs, of one block each, are this caller's and `wqe` is the newest.
  // With a BlueFlame register each of them goes to the NIC with a doorbell of its own, which then need not
  // fetch it. Not where others were deferred before: one plain doorbell for all is what their callers asked
  // for.
  template <Placement Payload = P>
  GDX_DEVICE void ring_with(const impl::Wqe& wqe, std::uint32_t count = 1) {
    if (!blueflame_) [[likely]]
      return ring_at<Payload>(handle_.doorbell, impl::doorbell_value(wqe.at[0]));
    if (count != 1 || producer_ - rung_ != 1) return ring_together(count);
    start_blueflame<Payload>();
    exec::store_blueflame(next_doorbell(), wqe.at);
  }
  // The same with the two newest.
  template <Placement Payload = P>
  GDX_DEVICE void ring_with(const impl::Wqe& first, const impl::Wqe& second, std::uint32_t count) {
    if (!blueflame_) [[likely]]
      return ring_at<Payload>(handle_.doorbell, impl::doorbell_value(second.at[0]));
    if (count != 2 || producer_ - rung_ != 2) return ring_together(count);
    start_blueflame<Payload>();
    exec::store_blueflame(next_doorbell(), first.at);
    exec::store_blueflame(next_doorbell(), second.at);
  }
  // The same with none of them at hand.
  GDX_DEVICE void ring_together(std::uint32_t count) {
    const std::uint32_t copies = blueflame_ && producer_ - rung_ == count ? count : 0;
    half_bytes_ = impl::ring_deferred(handle_.state, half_bytes_, producer_, last_wqe(), copies);
    rung_ = producer_;
  }
  GDX_DEVICE void ring_if_deferred() {
    if (rung_ != producer_) ring_together(0);
  }
  // A message is a WQE of one block unless this says so: of `blocks` posted, that many are not.
  GDX_DEVICE void count_no_message(std::uint32_t blocks) { other_blocks_ += blocks; }

  // Staging. Waits until `Pool` (impl/pools.h) has a credit; asks for `slots_wanted` when there is none.
  template <typename Pool>
  GDX_DEVICE Status reserve_credit(std::uint64_t slots_wanted);
  GDX_DEVICE Credits& credits() { return credits_; }  // of pushes
  // Of bounces; after drain().
  GDX_DEVICE void update_bounce(impl::BounceStep step, std::uint64_t slots_wanted = 0) {
    impl::update_bounce(handle_.state, step, rung_, slots_wanted);
  }

  // Takes every completion that is there.
  GDX_DEVICE void drain() { absorb(impl::drain(handle_.state, posted())); }
  GDX_DEVICE bool all_completed() const {
    const std::uint32_t completed = limit_ - send_queue_blocks();
    return producer_ == completed || impl::reached(completed - 1, last_wqe());
  }
  // Waits for everything posted; needs all of it rung.
  GDX_DEVICE Status wait_all_completed() {
    return all_completed() ? Status::kOk : wait_completed(last_wqe() + 1);
  }
  // Spins until done(), an error, an abort, or the deadline of the call.
  template <typename Done>
  GDX_DEVICE Status wait_until(Done done);

 private:
  // Where the NIC looks for what this kernel stores for it, payload included.
  template <Placement Payload>
  static constexpr Placement kObserver = P == Placement::kGpu ? Payload : P;

  template <Placement Payload>
  GDX_DEVICE void ring_at(std::uint64_t* doorbell, std::uint64_t doorbell_value) {
    exec::store_release<kObserver<Payload>>(handle_.send_record, impl::record_value(producer_));
    exec::ring<kObserver<Payload>>(doorbell, doorbell_value);
    rung_ = producer_;
  }
  // The record covers all WQEs before the first of them is written: it is where a torn copy leads to.
  template <Placement Payload>
  GDX_DEVICE void start_blueflame() {
    exec::store_release<kObserver<Payload>>(handle_.send_record, impl::record_value(producer_));
    exec::fence_release<kObserver<Payload>>();
    rung_ = producer_;
  }
  // The halves of a BlueFlame register alternate: two writes in a row must not merge on their way.
  GDX_DEVICE std::uint64_t* next_doorbell() {
    std::byte* const half = reinterpret_cast<std::byte*>(handle_.doorbell) + half_bytes_;
    half_bytes_ ^= handle_.blueflame_half_bytes;
    return reinterpret_cast<std::uint64_t*>(half);
  }
  GDX_DEVICE std::uint32_t send_queue_blocks() const { return block_mask_ + 1; }
  GDX_DEVICE std::uint32_t last_wqe() const { return producer_ - 1 - tail_blocks_; }
  GDX_DEVICE Status wait_completed(std::uint32_t goal);
  GDX_DEVICE impl::Posted posted() const { return {credits_.filled(), rung_}; }
  GDX_DEVICE void absorb(const impl::Progress& progress) {
    limit_ = progress.completed + send_queue_blocks();
    credits_.learn(progress.filled, progress.ready, progress.returned);
    learn(progress.status);
  }

  const EndpointHandle& handle_;
  const std::uint32_t queue_pair_word_;
  const std::uint32_t block_mask_;
  const bool blueflame_;
  Credits credits_;
  std::uint32_t producer_ = 0;
  std::uint32_t limit_ = 0;  // where `producer_` must stop, as far as is known; at once after an error
  std::uint32_t rung_ = 0;
  std::uint32_t tail_blocks_ = 0;  // of the newest WQE, behind its first
  std::uint32_t fence_ = 0;
  std::uint32_t half_bytes_ = 0;    // where the next doorbell goes
  std::uint32_t other_blocks_ = 0;  // posted since this kernel opened the endpoint, and no message
  Status status_ = Status::kOk;
  bool waited_ = false;  // this call has come to a wait: its deadline is set
  bool refused_ = false;
  bool open_ = false;
};

template <Scope S, Placement P>
GDX_DEVICE Endpoint<S, P>::Endpoint(const EndpointHandle& handle)
    : handle_(handle),
      queue_pair_word_(impl::queue_pair_word(handle.qpn)),
      block_mask_((1u << handle.log_send_queue) - 1),
      blueflame_(handle.blueflame_half_bytes != 0),
      credits_(handle.staging) {
  const bool known = handle.layout_version == kQueueLayoutVersion;
  if (!known || handle.placement != P || handle.sharing != Sharing::kExclusive) {
    status_ = known ? Status::kInvalidArgument : Status::kVersionMismatch;
    refused_ = true;
    return;
  }
  const QueueState& state = *handle.state;
  producer_ = rung_ = state.producer;
  tail_blocks_ = state.producer - 1 - state.last_wqe;
  credits_.open(state.staging);
  limit_ = state.completed + send_queue_blocks();
  learn(state.fault.status);
  open_ = true;
  exec::sync<S>();  // nobody may write the state back before all have read it
}

template <Scope S, Placement P>
GDX_DEVICE void Endpoint<S, P>::close() {
  if (!open_) return;
  open_ = false;
  exec::sync<S>();
  if (!is_leader()) return;
  if (status_ == Status::kOk) ring_if_deferred();
  if (handle_.staging.slot_count != 0) absorb(impl::close_credits(handle_.state, posted()));
  QueueState& state = *handle_.state;
  state.messages += producer_ - state.producer - other_blocks_;
  state.producer = producer_;
  state.last_wqe = last_wqe();
  state.staging.filled = credits_.filled();
  state.rung = rung_;
  // Last, when nothing is live: a call costs the whole kernel the registers that it must keep.
  if (handle_.bounce.slot_count != 0) impl::close_bounce(handle_.state);
}

template <Scope S, Placement P>
GDX_DEVICE Status Endpoint<S, P>::wait_blocks(std::uint32_t blocks) {
  if (status_ != Status::kOk) return status_;
  if (blocks > send_queue_blocks()) return Status::kUnsupported;
  ring_if_deferred();  // only what the NIC knows of can complete
  return wait_completed(producer_ + blocks - send_queue_blocks());
}

template <Scope S, Placement P>
GDX_DEVICE Status Endpoint<S, P>::wait_completed(std::uint32_t goal) {
  const impl::Progress progress = impl::wait_completed(handle_.state, posted(), goal, waited_);
  waited_ = true;
  absorb(progress);
  return progress.status;
}

template <Scope S, Placement P>
template <typename Pool>
GDX_DEVICE Status Endpoint<S, P>::reserve_credit(std::uint64_t slots_wanted) {
  if (status_ != Status::kOk) return status_;
  if (Pool::available(*this)) return Status::kOk;
  drain();
  if (status_ != Status::kOk || Pool::available(*this)) return status_;
  Pool::stall(*this, slots_wanted);
  ring_if_deferred();
  return wait_until([&] { return Pool::available(*this); });
}

template <Scope S, Placement P>
template <typename Done>
GDX_DEVICE Status Endpoint<S, P>::wait_until(Done done) {
  for (;;) {
    drain();
    if (status_ != Status::kOk) return status_;
    if (done()) return Status::kOk;
    const Status status = impl::wait_a_turn(handle_.state, waited_);
    if (status != Status::kOk) return status;
    waited_ = true;
  }
}

}  // namespace gdx::device
