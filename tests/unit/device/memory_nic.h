// The memory half of a NIC: rings, records and a doorbell that device code posts to, and a hand that
// writes completions. It executes nothing; tests look at the bytes.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "device/endpoint.h"
#include "proto/mlx5/doorbell.h"

namespace gdx::device {

class MemoryNic {
 public:
  static constexpr std::uint32_t kLogBlocks = 4;
  static constexpr std::uint32_t kBlocks = 1u << kLogBlocks;
  static constexpr std::uint32_t kSlots = 4;
  static constexpr std::uint32_t kSlotBytes = 64;
  static constexpr std::uint32_t kQpn = 0x00abcdef & 0xffffff;
  static constexpr std::uint32_t kStagingLkey = 0x51a61000;
  static constexpr std::uint32_t kBounceLkey = 0xb0b0ce00;

  // Tests of the timeout itself shorten it; no other test comes near it.
  std::uint64_t timeout_ns = 60'000'000'000;

  // Mode table of Mode::kAuto for an unknown path.
  ModeTable modes{28, kSlotBytes, kNoSizeLimit};

  // Bytes of a BlueFlame half, to which doorbells then write; 0: plain doorbells.
  std::uint32_t blueflame_half_bytes = 0;

  // Placement of the queues, as device code takes it: in_kernel() sets it.
  Placement placement = Placement::kHost;

  MemoryNic() {
    for (mlx5::Cqe64& cqe : completion_queue_) cqe.op_own = 0xf1;  // invalid, owned by hardware
  }

  [[nodiscard]] EndpointHandle handle() {
    EndpointHandle h{};
    h.layout_version = kQueueLayoutVersion;
    h.qpn = kQpn;
    h.send_queue = send_queue_.data();
    h.completion_queue = completion_queue_.data();
    h.send_record = &record_[1];
    h.doorbell = doorbells_.data();
    h.scratch = &scratch_;
    h.state = &state_;
    h.owner = &owner_;
    h.abort = &abort_;
    h.timeout_ns = timeout_ns;
    h.probe_after_ns = 200'000;
    h.scratch_lkey = 0x5c;
    h.log_send_queue = kLogBlocks;
    h.log_completion_queue = kLogBlocks;
    h.placement = placement;
    h.blueflame_half_bytes = blueflame_half_bytes;
    h.staging = staging_pool_.handle(0x1000, kStagingLkey);
    h.bounce = bounce_pool_.handle(0x9000, kBounceLkey);
    h.modes = modes;
    state_.handle = h;
    return h;
  }

  // Completes the WQE at `index`, and so all before it.
  void complete(std::uint32_t index) {
    mlx5::Cqe64& cqe = completion_queue_[written_ % kBlocks];
    cqe.wqe_counter = static_cast<std::uint16_t>(index);
    publish(cqe, mlx5::CqeOpcode::kRequester);
  }

  void fail(std::uint32_t index, mlx5::Syndrome syndrome) {
    auto& cqe = reinterpret_cast<mlx5::ErrorCqe&>(completion_queue_[written_ % kBlocks]);
    cqe.wqe_counter = static_cast<std::uint16_t>(index);
    cqe.syndrome = static_cast<std::uint8_t>(syndrome);
    cqe.vendor_error_syndrome = 0x81;
    publish(reinterpret_cast<mlx5::Cqe64&>(cqe), mlx5::CqeOpcode::kRequesterError);
  }

  // Completes everything that the doorbell record has published. True if that was something.
  bool complete_published() {
    const auto published = static_cast<std::uint16_t>(record());
    if (published == completed_) return false;
    const auto blocks = static_cast<std::uint16_t>(published - completed_);
    complete(newest_wqe(completed_, completed_ + blocks));
    completed_ = published;
    return true;
  }

  // Returns the index of the newest WQE of those in [from, end), which begins with one.
  [[nodiscard]] std::uint32_t newest_wqe(std::uint32_t from, std::uint32_t end) const {
    std::uint32_t newest = from;
    for (std::uint32_t next = from; static_cast<std::int32_t>(end - next) > 0;) {
      newest = next;
      next += std::max(1u, (mlx5::wqe_segments(segment<mlx5::ControlSegment>(next, 0)) + 3) / 4);
    }
    return newest;
  }

  template <typename Segment>
  [[nodiscard]] Segment segment(std::uint32_t block, std::size_t offset_bytes) const {
    Segment out;
    std::memcpy(&out, send_queue_[block % kBlocks].bytes + offset_bytes, sizeof out);
    return out;
  }

  [[nodiscard]] std::uint32_t record() {
    return byte_swap(std::atomic_ref<std::uint32_t>(record_[1].raw).load(std::memory_order_acquire));
  }
  [[nodiscard]] std::uint64_t doorbell() const { return doorbells_[0]; }
  // Returns the content of the second half of the BlueFlame register, or of the first.
  [[nodiscard]] std::span<const std::uint64_t, 8> blueflame(bool second) const {
    return std::span<const std::uint64_t, 8>(doorbells_.data() + (second ? kHalfWords : 0), 8);
  }
  [[nodiscard]] std::uint32_t written() const { return written_; }  // completions so far
  [[nodiscard]] std::byte* staging() { return staging_pool_.memory.data(); }
  [[nodiscard]] std::byte* bounce() { return bounce_pool_.memory.data(); }
  QueueState& state() { return state_; }
  // The scheduler's hand: every slot is granted at first, and the limit is the pool. Time passes until the
  // endpoint's next poll is due.
  void limit(std::uint32_t slots) {
    staging_pool_.limit(slots);
    state_.staging.polled_ns = 0;
  }
  void limit_bounce(std::uint32_t slots) {
    bounce_pool_.limit(slots);
    state_.bounce.polled_ns = 0;
  }
  [[nodiscard]] const CreditRequests& requests() const { return staging_pool_.requests; }
  [[nodiscard]] const CreditRequests& bounce_requests() const { return bounce_pool_.requests; }
  [[nodiscard]] const std::array<std::uint32_t, kSlots>& returned_slots() const {
    return staging_pool_.returned_slots;
  }
  std::uint32_t& abort() { return abort_; }
  std::uint64_t& owner() { return owner_; }

 private:
  // Memory to stage in, and the scheduler's side of it.
  struct Pool {
    alignas(64) std::array<std::byte, kSlots * kSlotBytes> memory{};
    std::uint64_t grants = pack_grants(kSlots, kSlots);
    std::array<std::uint32_t, kSlots> granted_slots{0, 1, 2, 3};
    CreditRequests requests{};
    std::array<std::uint32_t, kSlots> returned_slots{};
    std::array<HeldSlot, kSlots> held{};

    StagingHandle handle(std::uint64_t nic_offset, std::uint32_t lkey) {
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
              .minimum_slots = kSlots};
    }
    void limit(std::uint32_t slots) {
      std::atomic_ref<std::uint64_t>(grants).store(pack_grants(kSlots, slots), std::memory_order_release);
    }
  };

  void publish(mlx5::Cqe64& cqe, mlx5::CqeOpcode opcode) {
    const unsigned owner = written_ / kBlocks & 1;
    const unsigned op_own = static_cast<unsigned>(opcode) << mlx5::kCqeOpcodeShift | owner;
    auto& tail = reinterpret_cast<std::uint64_t*>(&cqe)[7];
    const std::uint64_t rest = tail & ~(std::uint64_t{0xff} << 56);
    std::atomic_ref<std::uint64_t>(tail).store(rest | std::uint64_t{op_own} << 56, std::memory_order_release);
    ++written_;
  }

  std::array<mlx5::WqeBasicBlock, kBlocks> send_queue_{};
  std::array<mlx5::Cqe64, kBlocks> completion_queue_{};
  alignas(64) std::array<Be32, 2> record_{};
  Pool staging_pool_;
  Pool bounce_pool_;
  static constexpr std::size_t kHalfWords = mlx5::kBlueFlameBufferBytes / sizeof(std::uint64_t);
  std::array<std::uint64_t, 2 * kHalfWords> doorbells_{};
  std::uint64_t scratch_ = 0;
  QueueState state_{};
  std::uint64_t owner_ = 0;
  std::uint32_t abort_ = 0;
  std::uint32_t written_ = 0;
  std::uint16_t completed_ = 0;
};

// Runs `body(endpoint)` in every thread of one block, on an endpoint of scope S with queues at P; by `clock`,
// unless null, goes its time. Whatever it posts, the queue's newest WQE must be the one that the ring shows.
template <Scope S = Scope::kThread, Placement P = Placement::kHost, typename Body>
void in_kernel(MemoryNic& nic, Body body, int (*progress)() = nullptr, unsigned threads = 1,
               std::uint64_t (*clock)() = nullptr) {
  const auto kernel = [&](EndpointHandle handle) {
    Endpoint<S, P> endpoint(handle);
    body(endpoint);
  };
  nic.placement = P;
  const std::uint32_t first = nic.state().producer;
  const exec::LaunchConfig config{.block = {threads}, .progress = progress, .clock = clock};
  ASSERT_EQ(exec::launch(config, kernel, nic.handle()), Status::kOk);
  const std::uint32_t end = nic.state().producer;
  // Passes over more blocks than the ring has, because the first are gone.
  if (const std::uint32_t posted = end - first; posted != 0 && posted <= MemoryNic::kBlocks) {
    EXPECT_EQ(nic.state().last_wqe, nic.newest_wqe(first, end));
  }
}

}  // namespace gdx::device
