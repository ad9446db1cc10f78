// The state of an exclusive endpoint that a kernel has open, for device/endpoint.h: the queue of impl/post.h
// that one scope owns. Registers hold the counters that posting changes, kernel parameters hold the
// constants. Memory holds what only waits need (impl/wait.h). Functions are for the leader unless marked "all
// threads".
// Ordering within one call that posts:
//
//   payload stores (push) --> WQE stores --release--> doorbell record --> doorbell
//
// The release is cumulative, so it also orders payload that other threads of the scope stored before the
// scope's barrier.
#pragma once

#include <cstdint>

#include "device/exec/exec.h"
#include "device/impl/credits.h"
#include "device/impl/wait.h"
#include "device/impl/wqe.h"
#include "device/options.h"
#include "proto/gpu/memory.h"
#include "proto/gpu/mode_table.h"
#include "proto/gpu/queue.h"
#include "proto/status.h"

namespace gdx::device::impl {

template <Scope S, Placement P>
class OpenEndpoint {
 public:
  static constexpr Sharing kSharing = Sharing::kExclusive;
  static constexpr Scope kScope = S;
  static constexpr Placement kPlacement = P;
  // Bytes of one inline WQE, and WQEs for which it reserves blocks at once.
  static constexpr std::uint32_t kInlineBytes = kMaxInlineBytes;
  static constexpr std::uint32_t kInlineAtOnce = 1;
  // A put of no bytes before a signal is an empty WRITE, because a branch costs every put more.
  static constexpr bool kSendsEmpty = true;
  static_assert(kMaxAutoInlineBytes == kInlineBytes);

  // All threads. The comments of device::Endpoint describe these.
  GDX_DEVICE explicit OpenEndpoint(const EndpointHandle& handle);
  OpenEndpoint(const OpenEndpoint&) = delete;
  OpenEndpoint& operator=(const OpenEndpoint&) = delete;
  GDX_DEVICE void close();
  GDX_DEVICE Status status() const {
    return static_cast<Status>(static_cast<std::uint32_t>(status_) & ~kRefused);
  }
  GDX_DEVICE EndpointFault fault() const {
    return is_refused() ? EndpointFault{status(), 0, 0, 0} : handle_.state->fault;
  }
  GDX_DEVICE const EndpointHandle& handle() const { return handle_; }
  GDX_DEVICE bool is_leader() const { return exec::thread_rank<S>() == 0; }

  // Begins an API call; the endpoint's timeout bounds the sum of its waits.
  GDX_DEVICE void start_call() { waited_ = false; }
  // All threads: keeps a sticky status of the leader's part of a call, and ends posting.
  GDX_DEVICE void latch_status(Status status) {
    if (!impl::is_sticky(status)) return;
    status_ = status;
    limit_ = producer_;
  }
  // Makes the next WQE start only after all earlier READs and atomics are answered.
  GDX_DEVICE void fence_next() { fence_ = mlx5::kFenceReads; }

  // Returns whether `blocks` WQEBBs are free, without a poll of completions. False on a failed endpoint.
  GDX_DEVICE bool has_room(std::uint32_t blocks) const { return room() >= blocks; }
  GDX_DEVICE std::uint32_t room() const { return limit_ - producer_; }
  // Waits until `blocks` WQEBBs are free.
  GDX_DEVICE Status wait_blocks(std::uint32_t blocks);
  GDX_DEVICE Status reserve_blocks(std::uint32_t blocks) {
    return has_room(blocks) ? Status::kOk : wait_blocks(blocks);
  }
  // Takes blocks for which there is room. Returns the first; it is free.
  GDX_DEVICE std::uint32_t take_blocks(std::uint32_t /*blocks*/) const { return producer_; }
  static constexpr bool owns_blocks(std::uint32_t /*first*/, std::uint32_t /*blocks*/) { return true; }
  GDX_DEVICE static Status wait_owned(std::uint32_t /*first*/, std::uint32_t /*blocks*/) {
    return Status::kOk;
  }
  GDX_DEVICE std::uint32_t queue_pair_word() const { return queue_pair_word_; }
  GDX_DEVICE std::byte* block_at(std::uint32_t index) const {  // all threads
    return handle_.send_queue[index & block_mask_].bytes;
  }
  // Completion and fence bits of the WQE under construction.
  GDX_DEVICE std::uint32_t wqe_flags() const { return mlx5::kCompletionAlways | fence_; }
  // Adds the stored WQE of `blocks` blocks to the queue.
  GDX_DEVICE void commit(std::uint32_t blocks) {
    producer_ += blocks;
    tail_blocks_ = blocks - 1;
    fence_ = 0;
  }
  // Publishes the committed WQEs, of which `newest` are the last, or leaves that to a later doorbell.
  // `Payload` is the memory in which this kernel stored their payload. NIC memory and host memory need a
  // wider release than a queue in GPU memory.
  template <Placement Payload, std::uint32_t Count>
  GDX_DEVICE Status publish(std::uint32_t /*first*/, std::uint32_t /*blocks*/, const Newest<Count>& newest,
                            Doorbell doorbell) {
    publish_newest<Payload>(newest, Count, doorbell);
    return Status::kOk;
  }
  // The same of `count` WQEs of one block each that have no doorbell yet.
  template <Placement Payload, std::uint32_t Count>
  GDX_DEVICE void publish_newest(const Newest<Count>& newest, std::uint32_t count, Doorbell doorbell) {
    if (doorbell == Doorbell::kRing) return ring_with<Payload>(newest, count);
    // The later doorbell may come at the scope that the queue alone needs.
    if constexpr (Payload != P) unreleased_ = true;
  }
  // All threads of a warp: takes blocks for its lanes; publishes what they have stored, a WQE in each block.
  GDX_DEVICE Status take_for_lanes(std::uint32_t /*blocks*/, std::uint32_t* first) const {
    *first = exec::shuffle<S>(producer_);
    return Status::kOk;
  }
  GDX_DEVICE Status publish_lanes(std::uint32_t /*first*/, std::uint32_t blocks, std::uint64_t doorbell_value,
                                  Doorbell doorbell) {
    if (!is_leader()) return Status::kOk;
    commit(blocks);
    tail_blocks_ = 0;
    if (doorbell == Doorbell::kRing) ring_at<P>(next_doorbell(), doorbell_value);
    return Status::kOk;
  }
  GDX_DEVICE bool has_blueflame() const { return stores_copies<S>() && blueflame_; }
  // Publishes the `count` newest WQEs of one block each, read back from the ring.
  GDX_DEVICE void ring_together(std::uint32_t count) {
    const std::uint32_t copies = has_blueflame() && producer_ - rung_ == count ? count : 0;
    half_bytes_ = impl::ring_deferred<S>(handle_.state, half_bytes_, producer_, last_wqe(), copies);
    note_ring();
  }
  GDX_DEVICE void ring_if_deferred() {
    if (rung_ != producer_) ring_together(0);
  }
  // Excludes `blocks` WQEBBs from the message count, which otherwise counts each WQEBB as a message.
  GDX_DEVICE void count_no_message(std::uint32_t blocks) { other_blocks_ += blocks; }

  // Waits until `Pool` (impl/pools.h) has a credit. Requests `slots_wanted` slots when it has none.
  template <typename Pool>
  GDX_DEVICE Status reserve_credit(std::uint64_t slots_wanted);
  GDX_DEVICE Credits& credits() { return credits_; }  // of pushes
  // Applies `step` to the credits of bounces. Requires a drain() before.
  GDX_DEVICE void update_bounce(impl::BounceStep step, std::uint64_t slots_wanted = 0) {
    impl::update_bounce(handle_.state, step, rung_, slots_wanted);
  }

  // Takes all available completions.
  GDX_DEVICE void drain() { absorb(impl::drain(handle_.state, posted())); }
  GDX_DEVICE bool all_completed() const {
    const std::uint32_t completed = limit_ - send_queue_blocks();
    return producer_ == completed || impl::reached(completed - 1, last_wqe());
  }
  // Waits for everything posted; requires that all of it was rung.
  GDX_DEVICE Status wait_all_completed() {
    return all_completed() ? Status::kOk : wait_completed(last_wqe() + 1);
  }
  // Spins until done() holds, an error, an abort, or the deadline of the call.
  template <typename Done>
  GDX_DEVICE Status wait_until(Done done);

 private:
  // Bit of status_: the endpoint could not be opened. A flag of its own would cost a put three instructions.
  static constexpr std::uint32_t kRefused = 1u << 31;
  GDX_DEVICE void refuse(Status status) {
    status_ = static_cast<Status>(static_cast<std::uint32_t>(status) | kRefused);
  }
  GDX_DEVICE bool is_refused() const { return (static_cast<std::uint32_t>(status_) & kRefused) != 0; }

  // Placement that a release must serve: kGpu only when queue and payload both lie in GPU memory.
  template <Placement Payload>
  static constexpr Placement kObserver = P == Placement::kGpu ? Payload : P;

  GDX_DEVICE void note_ring() {
    rung_ = producer_;
    if constexpr (P == Placement::kGpu) unreleased_ = false;
  }
  template <Placement Payload>
  GDX_DEVICE void ring_at(std::uint64_t* doorbell, std::uint64_t doorbell_value) {
    // No kernel that defers no push has this branch, because the compiler finds the flag constant.
    if (kObserver<Payload> == Placement::kGpu && unreleased_) exec::fence_release<Placement::kHost>();
    exec::store_release<kObserver<Payload>>(handle_.send_record, impl::record_value(producer_));
    exec::ring<kObserver<Payload>>(doorbell, doorbell_value);
    note_ring();
  }
  // Rings for `count` WQEs, of which `newest` are the last. A BlueFlame register takes each of them with a
  // doorbell of its own, so the NIC need not fetch it. After earlier deferred WQEs one plain doorbell covers
  // all, because their callers requested that. A thread rings plainly.
  template <Placement Payload, std::uint32_t Count>
  GDX_DEVICE void ring_with(const Newest<Count>& newest, std::uint32_t count) {
    if (!has_blueflame()) [[likely]]
      return ring_at<Payload>(handle_.doorbell, newest.doorbell_value());
    if (!newest.fits_blueflame()) return ring_at<Payload>(next_doorbell(), newest.doorbell_value());
    if (count != Count || producer_ - rung_ != Count) return ring_together(count);
    start_blueflame<Payload>();
    if constexpr (stores_copies<S>()) {
      exec::store_blueflame<S>(next_doorbell(), newest.at[0].at);
      if constexpr (Count == 2) exec::store_blueflame<S>(next_doorbell(), newest.at[1].at);
    }
  }
  // Publishes all WQEs in the record before the first BlueFlame write. A torn copy makes the NIC read the
  // ring. None of the WQEs is deferred.
  template <Placement Payload>
  GDX_DEVICE void start_blueflame() {
    exec::store_release<kObserver<Payload>>(handle_.send_record, impl::record_value(producer_));
    exec::fence_release<kObserver<Payload>>();
    note_ring();
  }
  // Alternates the halves of a BlueFlame register, because two writes in a row to one half could merge.
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
    credits_.set_positions(progress.filled, progress.ready, progress.returned);
    latch_status(progress.status);
  }

  const EndpointHandle& handle_;
  const std::uint32_t queue_pair_word_;
  const std::uint32_t block_mask_;
  const bool blueflame_;
  Credits credits_;
  std::uint32_t producer_ = 0;
  std::uint32_t limit_ = 0;  // position at which `producer_` must stop; `producer_` itself after an error
  std::uint32_t rung_ = 0;
  std::uint32_t tail_blocks_ = 0;  // blocks of the newest WQE after its first
  std::uint32_t fence_ = 0;
  std::uint32_t half_bytes_ = 0;    // offset of the next doorbell from the register's start
  std::uint32_t other_blocks_ = 0;  // WQEBBs of this kernel that count as no message
  Status status_ = Status::kOk;
  bool waited_ = false;  // this call has waited, so its deadline is set
  bool closed_ = false;
  bool unreleased_ = false;  // deferred WQEs have payload that no release of host scope covers; in the leader
};

template <Scope S, Placement P>
GDX_DEVICE OpenEndpoint<S, P>::OpenEndpoint(const EndpointHandle& handle)
    : handle_(handle),
      queue_pair_word_(impl::queue_pair_word(handle.qpn)),
      block_mask_((1u << handle.log_send_queue) - 1),
      blueflame_(handle.blueflame_half_bytes != 0),
      credits_(handle.staging) {
  const bool known = handle.layout_version == kQueueLayoutVersion;
  if (!known || (P == Placement::kGpu && handle.placement != P) || handle.sharing != Sharing::kExclusive) {
    refuse(known ? Status::kInvalidArgument : Status::kVersionMismatch);
    return;
  }
  exec::gather<S>();  // the scope is done with the last broadcast
  std::uint32_t taken = 0;
  if (is_leader()) taken = static_cast<std::uint32_t>(impl::take_endpoint(handle));
  taken = exec::broadcast<S>(taken);
  if (taken != 0) {
    refuse(static_cast<Status>(taken));
    return;
  }
  exec::watch_endpoint(handle);
  const QueueState& state = *handle.state;
  producer_ = rung_ = state.producer;
  tail_blocks_ = state.producer - 1 - state.last_wqe;
  credits_.open(state.staging);
  limit_ = state.completed + send_queue_blocks();
  latch_status(state.fault.status);
  exec::sync<S>();  // every thread reads the state before the leader writes it back
}

template <Scope S, Placement P>
GDX_DEVICE void OpenEndpoint<S, P>::close() {
  if (closed_ || is_refused()) return;
  closed_ = true;
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
  // Calls last, because a call costs the kernel registers for every value that is still live.
  if (handle_.bounce.slot_count != 0) impl::close_bounce(handle_.state);
  impl::give_endpoint_back(handle_);
}

template <Scope S, Placement P>
GDX_DEVICE Status OpenEndpoint<S, P>::wait_blocks(std::uint32_t blocks) {
  if (status_ != Status::kOk) return status();
  if (blocks > send_queue_blocks()) return Status::kUnsupported;
  ring_if_deferred();  // only published WQEs can complete
  return wait_completed(producer_ + blocks - send_queue_blocks());
}

template <Scope S, Placement P>
GDX_DEVICE Status OpenEndpoint<S, P>::wait_completed(std::uint32_t goal) {
  const impl::Progress progress = impl::wait_completed(handle_.state, posted(), goal, waited_);
  waited_ = true;
  absorb(progress);
  return progress.status;
}

template <Scope S, Placement P>
template <typename Pool>
GDX_DEVICE Status OpenEndpoint<S, P>::reserve_credit(std::uint64_t slots_wanted) {
  if (status_ != Status::kOk) return status();
  if (Pool::available(*this)) return Status::kOk;
  drain();
  if (status_ != Status::kOk || Pool::available(*this)) return status_;
  Pool::stall(*this, slots_wanted);
  ring_if_deferred();
  return wait_until([&] { return Pool::available(*this); });
}

template <Scope S, Placement P>
template <typename Done>
GDX_DEVICE Status OpenEndpoint<S, P>::wait_until(Done done) {
  for (;;) {
    drain();
    if (status_ != Status::kOk) return status_;
    if (done()) return Status::kOk;
    const Status status = impl::wait_a_turn(handle_.state, waited_);
    if (status != Status::kOk) return status;
    waited_ = true;
  }
}

}  // namespace gdx::device::impl
