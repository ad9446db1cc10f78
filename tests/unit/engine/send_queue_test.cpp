// A send queue alone: a ring, a record and doorbells, and a table of keys that no HCA drives.
#include "driver-shim/softhca/engine/send_queue.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "proto/mlx5/wqe.h"
#include "tests/unit/engine/still_wire.h"

namespace gdx::softhca {
namespace send_queue_test {

constexpr std::uint32_t kQpn = 0x1234;
constexpr std::uint32_t kPd = 7;
constexpr std::uint32_t kBlocks = 4;

class SendQueueTest : public testing::Test {
 protected:
  // Writes a WRITE of 8 B from `offset_bytes` of device memory at `index` of the ring.
  void put(std::uint16_t index, std::uint64_t offset_bytes = 0) {
    mlx5::PutWqe wqe{};
    wqe.control.opmod_index_opcode =
        std::uint32_t{index} << 8 | static_cast<std::uint32_t>(mlx5::WqeOpcode::kRdmaWrite);
    wqe.control.qpn_ds = kQpn << 8 | 3;
    wqe.remote = {0x1000, 0x77, 0};
    wqe.data = {8, key_, offset_bytes};
    std::memcpy(ring_.data() + index % kBlocks * mlx5::kWqeBasicBlockBytes, &wqe, sizeof wqe);
  }
  // Takes the doorbell that brings the WQE at `index`.
  DoorbellWrite ring(std::uint16_t index) {
    std::memcpy(page_.data() + mlx5::kUarBlueFlame,
                ring_.data() + index % kBlocks * mlx5::kWqeBasicBlockBytes, mlx5::kWqeBasicBlockBytes);
    return DoorbellWrite::take(page_.data(), mlx5::kUarBlueFlame).value();
  }
  // Fetches all that is announced, and gives each WQE a slot.
  SendQueue::Fetched fetch(std::span<const DoorbellWrite> rings = {}) {
    SendQueue::Fetched fetched;
    while (queue_.fetch(rings, fetched, wqe_)) queue_.push(wqe_);
    return fetched;
  }
  bool complete() {
    const bool unchanged = queue_.release_front();
    queue_.pop();
    return unchanged;
  }

  alignas(8) std::array<std::byte, kBlocks * mlx5::kWqeBasicBlockBytes> ring_{};
  alignas(8) std::array<std::byte, mlx5::kUarPageBytes> page_{};
  std::array<std::byte, 128> device_{};
  Be32 record_{0};
  MemoryTable keys_;
  std::uint32_t key_ =
      keys_.add({.pd = kPd, .base = device_.data(), .length_bytes = device_.size(), .device_memory = true},
                [] { return 0x4711u; });
  ForeignMemory foreign_;
  StagingAudit staging_{device_};
  PcieCounters pcie_;
  test::StillWire wire_;
  MemoryAccess memory_{{kPd, kQpn}, {keys_, foreign_, pcie_, wire_, device_, false}};
  SendWqe wqe_;
  SendQueue queue_{
      {.qpn = kQpn, .ring = ring_.data(), .blocks = kBlocks, .record = &record_}, foreign_, staging_};
};

TEST_F(SendQueueTest, wqes_get_slots_in_the_order_of_the_ring_across_the_wrap_of_its_counter) {
  for (std::uint32_t index = 0; index < 0x20000; ++index) {
    put(static_cast<std::uint16_t>(index));
    record_ = static_cast<std::uint16_t>(index + 1);
    ASSERT_EQ(queue_.read_announced({}), 1u);
    ASSERT_EQ(fetch().taken, 1);
    ASSERT_EQ(queue_.front().wqe_counter, static_cast<std::uint16_t>(index));
    ASSERT_STREQ(queue_.check_invariants(), nullptr);
    ASSERT_TRUE(complete());
    ASSERT_STREQ(queue_.check_invariants(), nullptr);
  }
}

TEST_F(SendQueueTest, record_announces_no_more_than_the_ring_holds_and_never_less_than_before) {
  for (std::uint16_t index = 0; index < kBlocks; ++index) put(index);
  record_ = kBlocks + 1;
  EXPECT_EQ(queue_.read_announced({}), std::nullopt);
  record_ = kBlocks;
  EXPECT_EQ(queue_.read_announced({}), kBlocks);
  EXPECT_EQ(queue_.read_announced({}), 0u);
  EXPECT_EQ(fetch().taken, int{kBlocks});
  record_ = kBlocks + 1;
  EXPECT_EQ(queue_.read_announced({}), std::nullopt) << "no slot has completed";
  EXPECT_TRUE(complete());
  EXPECT_EQ(queue_.read_announced({}), 1u);
  record_ = kBlocks - 1;
  EXPECT_EQ(queue_.read_announced({}), std::nullopt) << "backwards";
  EXPECT_STREQ(queue_.check_invariants(), nullptr);
}

TEST_F(SendQueueTest, copy_in_a_doorbell_saves_the_read_of_its_wqe_and_of_the_record) {
  put(0);
  record_ = 1;
  ASSERT_EQ(queue_.read_announced({}), 1u);
  const std::array whole{ring(0)};
  const SendQueue::Fetched copied = fetch(whole);
  EXPECT_EQ(copied.taken, 1);
  EXPECT_EQ(copied.copied, 1);
  EXPECT_TRUE(copied.newest_is_copy);
  queue_.count(whole, copied, pcie_);
  EXPECT_EQ(pcie_.wqe_reads + pcie_.record_reads, 0u);
  EXPECT_EQ(pcie_.blueflame_wqes, 1u);

  put(1);
  record_ = 2;
  ASSERT_EQ(queue_.read_announced({}), 1u);
  std::array torn{ring(1)};
  torn[0].tear();
  queue_.count(torn, fetch(torn), pcie_);
  EXPECT_EQ(pcie_.wqe_reads, 1u);
  EXPECT_EQ(pcie_.record_reads, 1u);
  EXPECT_EQ(pcie_.blueflame_torn, 1u);
}

TEST_F(SendQueueTest, wqe_whose_own_doorbell_is_still_to_come_waits_for_it) {
  put(0);
  put(1);
  record_ = 2;
  ASSERT_EQ(queue_.read_announced({}), 2u);
  const std::array first{ring(0)};
  const std::array second{ring(1)};
  EXPECT_EQ(fetch(first).taken, 1);
  EXPECT_STREQ(queue_.check_invariants(), nullptr) << "one is announced and not fetched";
  EXPECT_EQ(fetch(second).taken, 1);
  EXPECT_FALSE(queue_.is_late(second[0]));
  EXPECT_TRUE(queue_.is_late(first[0]));
}

TEST_F(SendQueueTest, slot_holds_the_device_memory_that_it_gathers_from_until_it_completes) {
  put(0, 0);
  put(1, 64);
  put(2, 8);
  record_ = 3;
  ASSERT_EQ(queue_.read_announced({}), 3u);
  ASSERT_EQ(fetch().taken, 3);
  EXPECT_TRUE(queue_.hold(queue_[0], memory_));
  EXPECT_TRUE(queue_.hold(queue_[1], memory_));
  EXPECT_FALSE(queue_.hold(queue_[2], memory_)) << "of the granule of the first";
  EXPECT_STREQ(queue_.check_invariants(), nullptr);
  EXPECT_TRUE(complete());
  device_[64] = std::byte{1};
  EXPECT_FALSE(complete());
  EXPECT_TRUE(complete());
  EXPECT_FALSE(staging_.held(0, device_.size()));
}

TEST_F(SendQueueTest, invariants_find_a_slot_that_is_left_out_and_a_hold_that_is_gone) {
  put(0);
  put(1);
  record_ = 2;
  ASSERT_EQ(queue_.read_announced({}), 2u);
  SendQueue::Fetched fetched;
  ASSERT_TRUE(queue_.fetch({}, fetched, wqe_));
  EXPECT_STREQ(queue_.check_invariants(), "the slots are not the WQEs fetched and not completed");
  ASSERT_TRUE(queue_.fetch({}, fetched, wqe_));
  SendSlot& slot = queue_.push(wqe_);
  EXPECT_STREQ(queue_.check_invariants(), "slots leave out a WQE, or hold one twice");
  slot.wqe_counter = 0;
  slot.body.blocks = 2;
  EXPECT_STREQ(queue_.check_invariants(), nullptr);
  ASSERT_TRUE(queue_.hold(slot, memory_));
  ASSERT_TRUE(staging_.release(slot.holds[0]));
  EXPECT_STREQ(queue_.check_invariants(), "a slot holds device memory that its audit counts as free");
}

}  // namespace send_queue_test
}  // namespace gdx::softhca
