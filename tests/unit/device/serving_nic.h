// A NIC of memory that serves: woken by its doorbell, it takes the WQEs that the doorbell record has
// published. It notes what each one asks for, and completes it. Any thread may step it; nothing is lost
// between steps. What it gathers from staging memory it reads twice, and completes the WQE after the second
// time, a step later: so who fills a slot that he has not got back is found out.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <vector>

#include "proto/gpu/queue.h"
#include "proto/mlx5/cqe.h"
#include "proto/mlx5/wqe.h"

namespace gdx::device {

class ServingNic {
 public:
  static constexpr std::uint32_t kLogBlocks = 6;
  static constexpr std::uint32_t kBlocks = 1u << kLogBlocks;
  static constexpr std::uint32_t kQpn = 0x123456;
  static constexpr std::uint32_t kNever = 0xffffffff;

  // Request of a WQE. `local` is the gathered address, or the value of an inline WRITE.
  struct Request {
    mlx5::WqeOpcode opcode;
    std::uint64_t remote;
    std::uint64_t local;
    std::uint8_t flags;  // fm_ce_se
    Be32 rkey;
    Be32 lkey;
  };

  // Staging memory and the scheduler's side of it: the NIC's and the host's.
  static constexpr std::uint32_t kSlots = 8;
  static constexpr std::uint32_t kSlotBytes = 64;
  enum class Staged { kNic, kHost };

 private:
  QueueState state_{};

 public:
  struct Pool {
    std::uint64_t nic_offset;
    std::uint32_t lkey;
    StagingState& books;
    SharedCredits& credits;
    alignas(64) std::array<std::byte, kSlots * kSlotBytes> memory{};
    std::uint64_t grants = 0;
    std::array<std::uint32_t, kSlots> granted_slots{0, 1, 2, 3, 4, 5, 6, 7};
    CreditRequests requests{};
    std::array<std::uint32_t, kSlots> returned_slots{};
    std::array<HeldSlot, kSlots> held{};
    std::uint32_t minimum_slots = 1;

    // Grants the first `slots`, and says how many may be held. Time passes until the endpoint's next poll is
    // due.
    void grant(std::uint32_t slots, std::uint32_t limit) {
      books.polled_ns = 0;
      std::atomic_ref<std::uint64_t>(grants).store(pack_grants(slots, limit), std::memory_order_release);
    }
    // Returns the kernel's view of the pool; a pool that grants nothing is absent.
    StagingHandle handle() {
      if (grants == 0) return {};
      return {.base = memory.data(),
              .nic_offset = nic_offset,
              .grants = &grants,
              .granted_slots = granted_slots.data(),
              .requests = &requests,
              .returned_slots = returned_slots.data(),
              .held = held.data(),
              .lkey = lkey,
              .slot_bytes = kSlotBytes,
              .slot_count = kSlots,
              .minimum_slots = minimum_slots};
    }
    [[nodiscard]] const std::byte* find(const mlx5::DataSegment& data) const {
      return data.lkey == lkey ? memory.data() + (data.address - nic_offset) : nullptr;
    }
  };

  Pool nic_pool{0x1000, 0x51a61000, state_.staging, state_.shared.staging};
  Pool host_pool{0x9000, 0xb0b0ce00, state_.bounce, state_.shared.bounce};
  Pool& pool;  // of the two, the one under test

  Placement placement = Placement::kHost;     // placement of the queues, as device code takes it
  std::uint64_t timeout_ns = 60'000'000'000;  // tests of the timeout itself shorten it
  std::uint32_t fails_at = kNever;            // the WQE that ends in an error; those behind it are flushed
  std::atomic<bool> serves{true};
  bool completes_one_a_step = false;
  ModeTable modes{0, 0, kNoSizeLimit};  // Mode::kAuto pulls
  std::uint64_t probe_after_ns = 60'000'000'000;
  std::uint32_t signal_fence = 0;

  explicit ServingNic(Staged staged = Staged::kNic, std::uint32_t first_index = 0,
                      Sharing sharing = Sharing::kShared)
      : pool(staged == Staged::kNic ? nic_pool : host_pool),
        sharing_(sharing),
        taken_(first_index),
        completed_(first_index) {
    for (mlx5::Cqe64& cqe : completion_queue_) cqe.op_own = 0xf1 ^ (first_index >> kLogBlocks & 1);
    state_.producer = state_.completed = state_.cq_consumer = first_index;
    state_.last_wqe = first_index - 1;
    state_.shared.reserved = state_.shared.published = state_.shared.completed = first_index;
    record_[1] = first_index & 0xffff;
  }

  [[nodiscard]] EndpointHandle handle() {
    EndpointHandle h{};
    h.layout_version = kQueueLayoutVersion;
    h.qpn = kQpn;
    h.send_queue = send_queue_.data();
    h.completion_queue = completion_queue_.data();
    h.send_record = &record_[1];
    h.doorbell = &doorbell_;
    h.scratch = &scratch_;
    h.state = &state_;
    h.owner = &owner_;
    h.abort = &abort_;
    h.timeout_ns = timeout_ns;
    h.probe_after_ns = probe_after_ns;
    h.signal_fence = signal_fence;
    h.log_send_queue = kLogBlocks;
    h.log_completion_queue = kLogBlocks;
    h.placement = placement;
    h.sharing = sharing_;
    h.modes = modes;
    h.staging = nic_pool.handle();
    h.bounce = host_pool.handle();
    state_.handle = h;
    return h;
  }

  // True if there was something to do.
  bool step() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || !serves) return false;
    const bool completes = completed_ != taken_;
    const std::uint32_t end = completes_one_a_step && completes ? completed_ + 1 : taken_;
    for (; completed_ != end; ++completed_) complete(completed_);
    // Here the doorbell register is memory that keeps the last ring only; an HCA counts none twice either.
    const std::uint64_t rung =
        std::atomic_ref<std::uint64_t>(doorbell_).exchange(0, std::memory_order_acquire);
    if (rung == 0) return completes;
    misdirected_ += byte_swap(static_cast<std::uint32_t>(rung >> 32)) >> 8 != kQpn;
    const std::uint32_t record =
        byte_swap(std::atomic_ref<std::uint32_t>(record_[1].raw).load(std::memory_order_acquire));
    const auto published = static_cast<std::uint16_t>(record - taken_);
    overrun_ += published > kBlocks;
    for (const std::uint32_t to = taken_ + published; taken_ != to; ++taken_) serve(taken_);
    seen_.push_back(requests_.size());
    return completes || published != 0;
  }

  // After the kernel.
  [[nodiscard]] const std::vector<Request>& requests() const { return requests_; }
  // Returns the requests that each read doorbell had published, cumulative.
  [[nodiscard]] const std::vector<std::size_t>& seen() const { return seen_; }
  // Doorbells that named another queue, records beyond the queue or backwards, WQEs without their own index.
  [[nodiscard]] std::uint32_t mistakes() const { return misdirected_ + overrun_ + misplaced_; }
  // Slots whose bytes changed while the NIC had them.
  [[nodiscard]] std::uint32_t overwritten() const { return overwritten_; }
  QueueState& state() { return state_; }
  std::uint32_t& abort() { return abort_; }
  std::uint64_t& owner() { return owner_; }

 private:
  void serve(std::uint32_t index) {
    const std::byte* const at = send_queue_[index % kBlocks].bytes;
    const mlx5::PutWqe wqe = mlx5::read_put_wqe(at);
    misplaced_ += mlx5::wqe_index(wqe.control) != (index & 0xffff) || mlx5::wqe_qpn(wqe.control) != kQpn;
    requests_.push_back({mlx5::wqe_opcode(wqe.control), wqe.remote.address, local_of(at),
                         wqe.control.fm_ce_se, wqe.remote.rkey, wqe.data.lkey});
  }

  // Returns the gathered address; for a staged WRITE its first 8 B, for an inline one its value.
  std::uint64_t local_of(const std::byte* wqe) const {
    const mlx5::DataSegment data = mlx5::read_put_wqe(wqe).data;
    if ((data.byte_count & mlx5::kInlineFlag) == 0) {
      const std::byte* const in_nic = nic_pool.find(data);
      const std::byte* const staged = in_nic != nullptr ? in_nic : host_pool.find(data);
      if (staged == nullptr) return data.address;
      std::uint64_t payload = 0;
      std::memcpy(&payload, staged, sizeof payload);
      return payload;
    }
    std::uint64_t value = 0;
    std::memcpy(&value, wqe + offsetof(mlx5::PutWqe, data) + sizeof data.byte_count, sizeof value);
    return value;
  }

  void complete(std::uint32_t index) {
    const std::size_t request = requests_.size() - (taken_ - index);
    overwritten_ += local_of(send_queue_[index % kBlocks].bytes) != requests_[request].local;
    mlx5::Cqe64& cqe = completion_queue_[index % kBlocks];
    const bool fails = fails_at != kNever && static_cast<std::int32_t>(index - fails_at) >= 0;
    if (fails) {
      auto& error = reinterpret_cast<mlx5::ErrorCqe&>(cqe);
      error.syndrome = static_cast<std::uint8_t>(index == fails_at ? mlx5::Syndrome::kRetryExceeded
                                                                   : mlx5::Syndrome::kFlushed);
      error.vendor_error_syndrome = 0x81;
    }
    const auto opcode =
        static_cast<unsigned>(fails ? mlx5::CqeOpcode::kRequesterError : mlx5::CqeOpcode::kRequester);
    // The last word whole, since waiters look at it all the time: wqe_counter and op_own.
    const unsigned op_own = opcode << mlx5::kCqeOpcodeShift | (index >> kLogBlocks & 1);
    const std::uint64_t tail =
        std::uint64_t{op_own} << 56 | std::uint64_t{byte_swap(static_cast<std::uint16_t>(index))} << 32;
    std::atomic_ref<std::uint64_t>(reinterpret_cast<std::uint64_t*>(&cqe)[7])
        .store(tail, std::memory_order_release);
  }

  const Sharing sharing_;
  std::mutex mutex_;
  std::array<mlx5::WqeBasicBlock, kBlocks> send_queue_{};
  std::array<mlx5::Cqe64, kBlocks> completion_queue_{};
  alignas(64) std::array<Be32, 2> record_{};
  std::uint64_t doorbell_ = 0;
  std::uint64_t scratch_ = 0;
  std::uint64_t owner_ = 0;
  std::uint32_t abort_ = 0;
  std::uint32_t taken_;
  std::uint32_t completed_;
  std::uint32_t misdirected_ = 0;
  std::uint32_t overrun_ = 0;
  std::uint32_t misplaced_ = 0;
  std::uint32_t overwritten_ = 0;
  std::vector<Request> requests_;
  std::vector<std::size_t> seen_;
};

}  // namespace gdx::device
