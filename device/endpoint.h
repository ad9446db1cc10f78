// An endpoint opened by a kernel: the queue's counters in registers, its constants in kernel
// parameters. Owned by exactly one thread, warp or block (its Scope) from construction to close(),
// so posting needs no atomics. All threads of the scope hold the object and make the same calls; the
// thread of rank 0, the leader, does the posting and the waiting.
//
// Ordering: a call that posts publishes, in this order, payload stores (push), WQE stores, the
// doorbell record, the doorbell. The release before the record is cumulative, so it also orders
// payload that other threads of the scope stored before the scope's barrier.
#pragma once

#include <cstdint>

#include "device/credits.h"
#include "device/exec/exec.h"
#include "device/impl/wqe.h"
#include "device/options.h"
#include "proto/gpu/memory.h"
#include "proto/gpu/queue.h"
#include "proto/mlx5/cqe.h"
#include "proto/status.h"

namespace gdx::device {

template <Scope S = Scope::kThread, Placement P = Placement::kHost>
class Endpoint {
 public:
  // Opens an endpoint; `handle` must outlive it (a kernel parameter does). status() is kVersionMismatch when
  // host and device code disagree on the layout, kInvalidArgument when the queue does not live where P says
  // (both touch nothing), or the fault of an earlier kernel.
  GDX_DEVICE explicit Endpoint(const EndpointHandle& handle);
  explicit Endpoint(EndpointHandle&&) = delete;
  GDX_DEVICE ~Endpoint() { close(); }
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // Writes the counters back for the next kernel. Outstanding work goes on. Idempotent.
  GDX_DEVICE void close();

  // kOk, or the first error of this endpoint: the same in all threads of the scope after every call.
  GDX_DEVICE Status status() const { return fault_.status; }
  // What failed: status, CQE syndrome, WQE. Beyond the status, valid in the leader.
  GDX_DEVICE const EndpointFault& fault() const { return fault_; }
  GDX_DEVICE const EndpointHandle& handle() const { return handle_; }
  GDX_DEVICE bool is_leader() const { return exec::thread_rank<S>() == 0; }

  // Everything below is for device/gdx.h, and in the leader only unless it says otherwise.

  // Begins an API call: all its waits together are bounded by the endpoint's timeout.
  GDX_DEVICE void start_call() { deadline_ns_ = 0; }
  // All threads: takes over what the leader's part of a call came to.
  GDX_DEVICE void learn(Status status) {
    if (is_sticky(status)) fault_.status = status;
  }
  // The next WQE starts only when all READs and atomics before it have been answered.
  GDX_DEVICE void fence_next() { fence_ = mlx5::kFenceReads; }

  // Waits until `blocks` WQEBBs are free.
  GDX_DEVICE Status reserve_blocks(std::uint32_t blocks);
  // The k-th block of the WQE that is being built.
  GDX_DEVICE std::byte* block(std::uint32_t k) const {
    return handle_.send_queue[(producer_ + k) & (send_queue_blocks() - 1)].bytes;
  }
  GDX_DEVICE std::uint32_t wqe_index() const { return producer_; }
  // Completion and fence bits of the WQE that is being built.
  GDX_DEVICE std::uint32_t wqe_flags() const { return mlx5::kCompletionAlways | fence_; }
  // Makes the WQE of `blocks` blocks at wqe_index() part of the queue.
  GDX_DEVICE void commit(std::uint32_t blocks) {
    last_wqe_ = producer_;
    producer_ += blocks;
    fence_ = 0;
  }
  // Publishes all committed WQEs. `Payload` is where this kernel stored their payload: NIC memory and
  // host memory need a wider release than a queue in GPU memory.
  template <Placement Payload = P>
  GDX_DEVICE void ring(std::uint64_t doorbell_value) {
    constexpr Placement kObserver = P == Placement::kGpu ? Payload : P;
    exec::store_release<kObserver>(handle_.send_record, producer_ & 0xffff);
    exec::ring<kObserver>(next_doorbell(), doorbell_value);
    rung_ = producer_;
  }
  // The same when the newest WQE is the one block `wqe`. Where it is the only one to be published, it goes
  // to the NIC with the doorbell, which then need not fetch it.
  template <Placement Payload = P>
  GDX_DEVICE void ring_with(const exec::Segment (&wqe)[4]) {
    if (handle_.blueflame_half_bytes == 0 || producer_ - rung_ != 1) {
      return ring<Payload>(static_cast<std::uint64_t>(wqe[0].words[1]) << 32 | wqe[0].words[0]);
    }
    constexpr Placement kObserver = P == Placement::kGpu ? Payload : P;
    exec::store_release<kObserver>(handle_.send_record, producer_ & 0xffff);
    exec::ring_blueflame<kObserver>(next_doorbell(), wqe);
    rung_ = producer_;
  }
  GDX_DEVICE void ring_if_deferred();
  GDX_DEVICE void count_message() { ++messages_; }

  // Staging. Waits until there is a credit; asks for `slots_wanted` when there is none.
  GDX_DEVICE bool has_staging() const { return handle_.staging.slot_count != 0; }
  GDX_DEVICE Status reserve_credit(std::uint64_t slots_wanted);
  GDX_DEVICE Credits& credits() { return credits_; }

  // Takes every completion that is there.
  GDX_DEVICE void drain();
  GDX_DEVICE bool all_completed() const {
    return producer_ == completed_ || static_cast<std::int32_t>(completed_ - 1 - last_wqe_) >= 0;
  }
  // Spins until done(), an error, an abort, or the deadline of the call.
  template <typename Done>
  GDX_DEVICE Status wait_until(Done done);
  GDX_DEVICE bool aborted() const { return handle_.abort != nullptr && exec::load_flag(handle_.abort) != 0; }

 private:
  // The halves of a BlueFlame register alternate: two writes in a row must not merge on their way.
  GDX_DEVICE std::uint64_t* next_doorbell() {
    std::uint64_t* const half = handle_.doorbell + half_bytes_ / sizeof(std::uint64_t);
    half_bytes_ ^= handle_.blueflame_half_bytes;
    return half;
  }
  GDX_DEVICE std::uint32_t send_queue_blocks() const { return 1u << handle_.log_send_queue; }
  GDX_DEVICE bool take_completion();

  GDX_DEVICE static bool is_sticky(Status status) {
    return static_cast<std::uint32_t>(status) >= static_cast<std::uint32_t>(Status::kQueueError);
  }

  const EndpointHandle& handle_;
  Credits credits_;
  std::uint32_t producer_ = 0;
  std::uint32_t rung_ = 0;
  std::uint32_t completed_ = 0;
  std::uint32_t last_wqe_ = 0;
  std::uint32_t cq_consumer_ = 0;
  std::uint32_t fence_ = 0;
  std::uint32_t half_bytes_ = 0;  // where the next doorbell goes
  std::uint64_t messages_ = 0;
  std::uint64_t deadline_ns_ = 0;  // 0: no wait of this call has begun
  EndpointFault fault_{Status::kOk, 0, 0, 0};
  bool open_ = false;
};

template <Scope S, Placement P>
GDX_DEVICE Endpoint<S, P>::Endpoint(const EndpointHandle& handle)
    : handle_(handle), credits_(handle.staging) {
  if (handle.layout_version != kQueueLayoutVersion) {
    fault_.status = Status::kVersionMismatch;
    return;
  }
  if (handle.placement != P) {
    fault_.status = Status::kInvalidArgument;
    return;
  }
  const QueueState& state = *handle.state;
  producer_ = rung_ = state.producer;
  completed_ = state.completed;
  last_wqe_ = state.last_wqe;
  cq_consumer_ = state.cq_consumer;
  credits_.open(state.staging);
  messages_ = state.messages;
  fault_ = state.fault;
  open_ = true;
  exec::sync<S>();  // nobody may write the state back before all have read it
}

template <Scope S, Placement P>
GDX_DEVICE void Endpoint<S, P>::close() {
  if (!open_) return;
  open_ = false;
  exec::sync<S>();
  if (!is_leader()) return;
  if (fault_.status == Status::kOk) ring_if_deferred();
  if (has_staging()) {
    drain();
    credits_.close();
  }
  *handle_.state = {producer_, completed_, last_wqe_, cq_consumer_, credits_.state(), fault_, messages_};
}

template <Scope S, Placement P>
GDX_DEVICE void Endpoint<S, P>::ring_if_deferred() {
  if (rung_ == producer_) return;
  // The doorbell's value is the first 8 B of the newest WQE, as libmlx5 writes it.
  const std::byte* wqe = handle_.send_queue[last_wqe_ & (send_queue_blocks() - 1)].bytes;
  // What the deferred WQEs send may lie anywhere.
  ring<Placement::kHost>(*reinterpret_cast<const std::uint64_t*>(wqe));
}

template <Scope S, Placement P>
GDX_DEVICE Status Endpoint<S, P>::reserve_blocks(std::uint32_t blocks) {
  if (fault_.status != Status::kOk) return fault_.status;
  if (producer_ + blocks - completed_ <= send_queue_blocks()) return Status::kOk;
  ring_if_deferred();  // only what the NIC knows of can complete
  return wait_until([&] { return producer_ + blocks - completed_ <= send_queue_blocks(); });
}

template <Scope S, Placement P>
GDX_DEVICE Status Endpoint<S, P>::reserve_credit(std::uint64_t slots_wanted) {
  if (fault_.status != Status::kOk) return fault_.status;
  if (credits_.available()) return Status::kOk;
  drain();
  if (fault_.status != Status::kOk) return fault_.status;
  credits_.look();
  if (credits_.available()) return Status::kOk;
  credits_.stall(slots_wanted);
  ring_if_deferred();
  return wait_until([&] { return credits_.available(); });
}

template <Scope S, Placement P>
GDX_DEVICE bool Endpoint<S, P>::take_completion() {
  const mlx5::Cqe64& cqe =
      handle_.completion_queue[cq_consumer_ & ((1u << handle_.log_completion_queue) - 1)];
  // Opcode and QPN, wqe_counter (big-endian), signature and op_own are the last word, which the NIC
  // writes whole and last: one load decides everything.
  const std::uint64_t tail = exec::load_acquire(reinterpret_cast<const std::uint64_t*>(&cqe) + 7);
  const std::uint32_t op_own = static_cast<std::uint32_t>(tail >> 56);
  const std::uint32_t opcode = op_own >> mlx5::kCqeOpcodeShift;
  const std::uint32_t pass = cq_consumer_ >> handle_.log_completion_queue & 1;
  if ((op_own & mlx5::kCqeOwnerMask) != pass ||
      opcode == static_cast<std::uint32_t>(mlx5::CqeOpcode::kInvalid)) {
    return false;
  }
  ++cq_consumer_;
  const std::uint16_t counter = byte_swap(static_cast<std::uint16_t>(tail >> 32));
  // One past the completed WQE's first block, extended from 16 to 32 bits. The other blocks of a long
  // inline WQE count as free only when the next WQE completes; the queue is always longer than that.
  completed_ += static_cast<std::uint16_t>(counter + 1 - completed_);
  if (opcode == static_cast<std::uint32_t>(mlx5::CqeOpcode::kRequesterError)) {
    if (fault_.status != Status::kOk) return true;  // the first error is the cause, the rest is flushing
    const auto& error = reinterpret_cast<const mlx5::ErrorCqe&>(cqe);
    fault_ = {mlx5::status_of(static_cast<mlx5::Syndrome>(error.syndrome)), error.syndrome,
              error.vendor_error_syndrome, counter};
  }
  return true;
}

template <Scope S, Placement P>
GDX_DEVICE void Endpoint<S, P>::drain() {
  bool any = false;
  while (take_completion()) any = true;
  if (!has_staging()) return;
  if (any) credits_.on_completed(completed_);
  if (fault_.status != Status::kOk) credits_.on_failed(rung_);
}

template <Scope S, Placement P>
template <typename Done>
GDX_DEVICE Status Endpoint<S, P>::wait_until(Done done) {
  if (deadline_ns_ == 0) deadline_ns_ = exec::now_ns() + handle_.timeout_ns;
  for (;;) {
    drain();
    if (fault_.status != Status::kOk) return fault_.status;
    if (done()) return Status::kOk;
    if (aborted()) return Status::kAborted;
    if (exec::now_ns() >= deadline_ns_) return Status::kTimeout;
    if (has_staging()) credits_.look();  // who waits has the time
    exec::relax();
  }
}

}  // namespace gdx::device
