#include "driver-shim/softhca/engine/receive_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "proto/mlx5/wqe.h"

namespace gdx::softhca {
namespace receive_queue_test {

constexpr std::uint32_t kEntries = 4;
constexpr std::uint32_t kStride = 64;

class ReceiveQueueTest : public testing::Test {
 protected:
  template <typename T>
  void put(std::size_t entry, std::size_t offset, const T& value) {
    std::memcpy(ring_.data() + entry * kStride + offset, &value, sizeof value);
  }
  ReceiveQueue::Layout layout(bool shared) {
    return {.ring = ring_.data(),
            .entries = kEntries,
            .stride_bytes = kStride,
            .record = &record_,
            .shared = shared};
  }

  std::array<std::byte, kEntries * kStride> ring_{};
  Be32 record_{0};
  ReceiveWqe wqe_;
};

TEST_F(ReceiveQueueTest, ring_gives_each_posted_entry_once_across_the_counter_wrap) {
  for (std::size_t i = 0; i < kEntries; ++i) {
    put(i, 0, mlx5::DataSegment{100u + static_cast<std::uint32_t>(i), 0x77, 0x1000});
    put(i, 16, mlx5::DataSegment{0, mlx5::kInvalidLkey, 0});
    put(i, 32, mlx5::DataSegment{55, 0x88, 0});
  }
  ReceiveQueue queue(layout(false));
  EXPECT_FALSE(queue.take(wqe_));
  for (std::uint32_t i = 0; i < 70000; ++i) {
    record_ = (i + 1) & 0xffff;
    ASSERT_TRUE(queue.take(wqe_));
    ASSERT_EQ(wqe_.wqe_counter, i & 0xffff);
    ASSERT_EQ(wqe_.capacity_bytes, 100 + i % kEntries) << "the list ends at lkey 0x100";
    ASSERT_FALSE(queue.take(wqe_));
  }
}

TEST_F(ReceiveQueueTest, record_beyond_the_ring_counts_as_nothing) {
  ReceiveQueue queue(layout(false));
  record_ = kEntries + 1;
  EXPECT_FALSE(queue.take(wqe_));
}

TEST_F(ReceiveQueueTest, shared_queue_follows_the_chain_and_reports_the_index) {
  const std::array<std::uint16_t, kEntries> next{2, 3, 1, 0};  // 0 -> 2 -> 1 -> 3
  for (std::size_t i = 0; i < kEntries; ++i) {
    mlx5::SrqNextSegment segment{};
    segment.next_wqe_index = next[i];
    put(i, 0, segment);
    put(i, 16, mlx5::DataSegment{10, static_cast<std::uint32_t>(i), 0});
    put(i, 32, mlx5::DataSegment{0, mlx5::kInvalidLkey, 0});
  }
  ReceiveQueue queue(layout(true));
  record_ = 4;
  std::vector<std::uint16_t> order;
  while (queue.take(wqe_)) {
    order.push_back(wqe_.wqe_counter);
    EXPECT_EQ(wqe_.pieces.at(0).lkey, wqe_.wqe_counter);
  }
  EXPECT_THAT(order, testing::ElementsAre(0, 2, 1, 3));
}

TEST_F(ReceiveQueueTest, limit_reached_tells_once_and_is_gone) {
  ReceiveQueue::Layout with_limit = layout(false);
  int told = 0;
  with_limit.on_limit = [&told] { ++told; };
  ReceiveQueue queue(with_limit);
  record_ = 4;
  queue.set_limit(3);
  EXPECT_EQ(queue.limit(), 3u);
  ASSERT_TRUE(queue.take(wqe_));
  EXPECT_EQ(told, 0) << "three are left";
  ASSERT_TRUE(queue.take(wqe_));
  EXPECT_EQ(told, 1);
  EXPECT_EQ(queue.limit(), 0u);
  ASSERT_TRUE(queue.take(wqe_));
  EXPECT_EQ(told, 1);
}

TEST_F(ReceiveQueueTest, limit_set_above_what_is_posted_tells_at_once) {
  ReceiveQueue::Layout with_limit = layout(false);
  int told = 0;
  with_limit.on_limit = [&told] { ++told; };
  ReceiveQueue queue(with_limit);
  record_ = 1;
  queue.set_limit(2);
  EXPECT_EQ(told, 1);
  queue.set_limit(0);
  EXPECT_EQ(told, 1);
}

// Source: UCX masks the counter of a cyclic queue itself, and never writes a chain.
TEST_F(ReceiveQueueTest, cyclic_shared_queue_ignores_the_chain_and_reports_the_whole_counter) {
  for (std::size_t i = 0; i < kEntries; ++i) {
    mlx5::SrqNextSegment segment{};
    segment.next_wqe_index = 0;
    put(i, 0, segment);
    put(i, 16, mlx5::DataSegment{10, static_cast<std::uint32_t>(i), 0});
    put(i, 32, mlx5::DataSegment{0, mlx5::kInvalidLkey, 0});
  }
  ReceiveQueue::Layout cyclic = layout(true);
  cyclic.cyclic = true;
  ReceiveQueue queue(cyclic);
  for (std::uint32_t i = 0; i < 70000; ++i) {
    record_ = (i + 1) & 0xffff;
    ASSERT_TRUE(queue.take(wqe_));
    ASSERT_EQ(wqe_.wqe_counter, i & 0xffff);
    ASSERT_EQ(wqe_.pieces.at(0).lkey, i % kEntries);
  }
}

TEST_F(ReceiveQueueTest, receives_under_way_are_the_newest_that_were_taken) {
  ReceiveQueue queue(layout(false));
  transport::Ring<std::uint16_t> under_way;
  EXPECT_STREQ(queue.check_invariants(under_way), nullptr);
  for (std::uint16_t i = 0; i < 3; ++i) {
    record_ = i + 1u;
    ASSERT_TRUE(queue.take(wqe_));
    under_way.push_back(wqe_.wqe_counter);
    EXPECT_STREQ(queue.check_invariants(under_way), nullptr);
  }
  under_way.pop_front();
  EXPECT_STREQ(queue.check_invariants(under_way), nullptr);
  under_way.back() = 0;
  EXPECT_STRNE(queue.check_invariants(under_way), nullptr);
}

}  // namespace receive_queue_test
}  // namespace gdx::softhca
