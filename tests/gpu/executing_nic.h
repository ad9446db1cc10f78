// A NIC of memory that executes WQEs, between this process's memory and a region in the role of the peer's.
// For exclusive endpoints: WQEs of several blocks, pushes and bounces from pools of their own.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "proto/gpu/queue.h"
#include "proto/mlx5/cqe.h"
#include "proto/mlx5/wqe.h"

namespace gdx::gpu_tests {

class ExecutingNic {
 public:
  static constexpr std::uint64_t kRemoteAddress = 0x100000;
  static constexpr std::size_t kRemoteBytes = 1u << 17;
  static constexpr Be32 kRkey{0x77};
  static constexpr std::uint32_t kSlotBytes = 512;
  static constexpr std::uint32_t kSlots = 8;

  ExecutingNic() {
    for (mlx5::Cqe64& cqe : completion_queue_) cqe.op_own = 0xf1;  // invalid, owned by hardware
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
    h.timeout_ns = h.probe_after_ns = 60'000'000'000;
    h.log_send_queue = h.log_completion_queue = kLogBlocks;
    h.placement = Placement::kHost;
    h.staging = staging_.handle();
    h.bounce = bounce_.handle();
    h.modes = {28, 2048, 4096};  // of Mode::kAuto: each way for some
    state_.handle = h;
    return h;
  }

  // Executes what the doorbell record has published; the doorbell is memory that keeps the last ring only.
  void step() {
    if (std::atomic_ref<std::uint64_t>(doorbell_).exchange(0, std::memory_order_acquire) == 0) return;
    const std::uint32_t record =
        byte_swap(std::atomic_ref<std::uint32_t>(record_[1].raw).load(std::memory_order_acquire));
    const std::uint32_t end = taken_ + static_cast<std::uint16_t>(record - taken_);
    while (static_cast<std::int32_t>(end - taken_) > 0) taken_ += execute(taken_);
  }

  // Valid after the kernel: the written memory, and the count of forbidden WQEs (another index, key or
  // range).
  [[nodiscard]] std::byte* remote() { return remote_.data(); }
  [[nodiscard]] std::uint32_t mistakes() const { return mistakes_; }
  [[nodiscard]] QueueState& state() { return state_; }
  // WQEs that gathered from memory of the pools.
  [[nodiscard]] std::uint32_t pushed() const { return staging_.gathers; }
  [[nodiscard]] std::uint32_t bounced() const { return bounce_.gathers; }

 private:
  static constexpr std::uint32_t kLogBlocks = 6;
  static constexpr std::uint32_t kBlocks = 1u << kLogBlocks;
  static constexpr std::uint32_t kQpn = 0x123456;
  static constexpr std::size_t kBodyAt = offsetof(mlx5::PutWqe, data);

  // Memory to stage in, all of it granted.
  struct Pool {
    alignas(64) std::array<std::byte, kSlots * kSlotBytes> memory{};
    std::uint64_t grants = pack_grants(kSlots, kSlots);
    std::array<std::uint32_t, kSlots> granted_slots{5, 2, 7, 0, 3, 6, 1, 4};
    CreditRequests requests{};
    std::array<std::uint32_t, kSlots> returned_slots{};
    std::array<HeldSlot, kSlots> held{};
    std::uint32_t gathers = 0;

    StagingHandle handle() {
      return {.base = memory.data(),
              .nic_offset = reinterpret_cast<std::uint64_t>(memory.data()),
              .grants = &grants,
              .granted_slots = granted_slots.data(),
              .requests = &requests,
              .returned_slots = returned_slots.data(),
              .held = held.data(),
              .lkey = 0x88,
              .slot_bytes = kSlotBytes,
              .slot_count = kSlots,
              .minimum_slots = kSlots};
    }
    [[nodiscard]] bool holds(std::uint64_t address) const {
      return address - reinterpret_cast<std::uint64_t>(memory.data()) < memory.size();
    }
  };

  // The whole WQE in one piece, though the ring may have wrapped in it.
  static constexpr std::uint32_t kMaxWqeBlocks = 4;
  using Wqe = std::array<std::byte, kMaxWqeBlocks * mlx5::kWqeBasicBlockBytes>;

  template <typename Segment>
  static Segment segment(const Wqe& wqe, std::size_t offset_bytes) {
    Segment out;
    std::memcpy(&out, wqe.data() + offset_bytes, sizeof out);
    return out;
  }

  // Returns the WQE's blocks. Reads no other block, because the kernel may be writing the next WQE.
  std::uint32_t execute(std::uint32_t index) {
    Wqe wqe{};
    const auto fetch = [&](std::uint32_t block) {
      std::memcpy(wqe.data() + block * mlx5::kWqeBasicBlockBytes,
                  send_queue_[(index + block) % kBlocks].bytes, mlx5::kWqeBasicBlockBytes);
    };
    fetch(0);
    const auto control = mlx5::read_put_wqe(wqe.data()).control;
    const std::uint32_t blocks = std::clamp((mlx5::wqe_segments(control) + 3) / 4, 1u, kMaxWqeBlocks);
    for (std::uint32_t block = 1; block < blocks; ++block) fetch(block);
    mistakes_ += mlx5::wqe_index(control) != (index & 0xffff) || mlx5::wqe_qpn(control) != kQpn;
    move(mlx5::wqe_opcode(control), wqe);
    complete(index);
    return blocks;
  }

  void move(mlx5::WqeOpcode opcode, const Wqe& wqe) {
    const mlx5::RemoteAddressSegment address = mlx5::read_put_wqe(wqe.data()).remote;
    const std::uint64_t at = address.address - kRemoteAddress;
    const bool atomic =
        opcode == mlx5::WqeOpcode::kAtomicFetchAdd || opcode == mlx5::WqeOpcode::kAtomicCompareSwap;
    const std::size_t data_at = kBodyAt + (atomic ? sizeof(mlx5::AtomicSegment) : 0);
    const auto data = segment<mlx5::DataSegment>(wqe, data_at);
    const std::uint32_t bytes = data.byte_count & ~mlx5::kInlineFlag;
    if (at > kRemoteBytes || bytes > kRemoteBytes - at || address.rkey.raw != kRkey.raw) {
      ++mistakes_;
      return;
    }
    auto* const local = reinterpret_cast<std::byte*>(std::uint64_t{data.address});
    switch (opcode) {
      case mlx5::WqeOpcode::kRdmaWrite:
        if ((data.byte_count & mlx5::kInlineFlag) != 0) {
          std::memcpy(remote_.data() + at, wqe.data() + kBodyAt + sizeof data.byte_count, bytes);
          return;
        }
        staging_.gathers += staging_.holds(data.address);
        bounce_.gathers += bounce_.holds(data.address);
        std::memcpy(remote_.data() + at, local, bytes);
        return;
      case mlx5::WqeOpcode::kRdmaRead: std::memcpy(local, remote_.data() + at, bytes); return;
      case mlx5::WqeOpcode::kAtomicFetchAdd:
      case mlx5::WqeOpcode::kAtomicCompareSwap: {
        const auto operands = segment<mlx5::AtomicSegment>(wqe, kBodyAt);
        std::uint64_t word;
        std::memcpy(&word, remote_.data() + at, sizeof word);
        // The original travels and lands as it is in memory.
        std::memcpy(local, &word, sizeof word);
        if (opcode == mlx5::WqeOpcode::kAtomicFetchAdd) {
          word += operands.swap_or_add;
        } else if (word == operands.compare) {
          word = operands.swap_or_add;
        }
        std::memcpy(remote_.data() + at, &word, sizeof word);
        return;
      }
      default: ++mistakes_;
    }
  }

  void complete(std::uint32_t index) {
    const unsigned op_own = static_cast<unsigned>(mlx5::CqeOpcode::kRequester) << mlx5::kCqeOpcodeShift |
                            (written_ >> kLogBlocks & 1);
    const std::uint64_t tail =
        std::uint64_t{op_own} << 56 | std::uint64_t{byte_swap(static_cast<std::uint16_t>(index))} << 32;
    mlx5::Cqe64& cqe = completion_queue_[written_++ % kBlocks];
    std::atomic_ref<std::uint64_t>(reinterpret_cast<std::uint64_t*>(&cqe)[7])
        .store(tail, std::memory_order_release);
  }

  std::array<mlx5::WqeBasicBlock, kBlocks> send_queue_{};
  std::array<mlx5::Cqe64, kBlocks> completion_queue_{};
  alignas(64) std::array<Be32, 2> record_{};
  std::uint64_t doorbell_ = 0;
  std::uint64_t scratch_ = 0;
  QueueState state_{};
  std::uint64_t owner_ = 0;
  std::uint32_t abort_ = 0;
  Pool staging_;
  Pool bounce_;
  std::array<std::byte, kRemoteBytes> remote_{};
  std::uint32_t taken_ = 0;
  std::uint32_t written_ = 0;
  std::uint32_t mistakes_ = 0;
};

}  // namespace gdx::gpu_tests
