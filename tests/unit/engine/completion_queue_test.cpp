#include "driver-shim/softhca/engine/completion_queue.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "proto/mlx5/doorbell.h"

namespace gdx::softhca {
namespace completion_queue_test {

// Checks the invariants after each event.
struct CheckedQueue : CompletionQueue {
  using CompletionQueue::CompletionQueue;
  bool write(const Completion& completion) { return checked(CompletionQueue::write(completion)); }
  void check_arm() { CompletionQueue::check_arm(), checked(0); }
  Errno resize(std::byte* ring, std::uint32_t log_entries) {
    return checked(CompletionQueue::resize(ring, log_entries));
  }
  template <typename T>
  T checked(T result) {
    EXPECT_STREQ(check_invariants(), nullptr);
    return result;
  }
};

class CompletionQueueTest : public testing::Test {
 protected:
  static constexpr std::uint32_t kLogEntries = 2;

  CompletionQueueTest() : ring_(4 * 128, std::byte{0xff}) {
    spec_.ring = ring_.data();
    spec_.doorbell_record = record_.data();
    spec_.log_entries = kLogEntries;
    spec_.on_event = [this] { ++events_; };
  }

  [[nodiscard]] mlx5::Cqe64 entry(std::size_t index) const {
    mlx5::Cqe64 cqe;
    std::memcpy(&cqe, ring_.data() + (index + 1) * spec_.entry_bytes - sizeof cqe, sizeof cqe);
    return cqe;
  }
  static Completion numbered(std::uint16_t wqe_counter) {
    Completion completion;
    completion.wqe_counter = wqe_counter;
    completion.qpn = 0x123456;
    completion.user_index = 0x77;
    completion.send_opcode = 8;
    return completion;
  }
  void arm(std::uint32_t consumer, std::uint32_t sequence, bool solicited = false) {
    record_[mlx5::kArmRecord] = sequence << 28 | (solicited ? mlx5::kArmSolicitedOnly : 0) | consumer;
  }

  alignas(8) std::vector<std::byte> ring_;
  std::array<Be32, 2> record_{};
  CompletionQueueSpec spec_;
  int events_ = 0;
};

TEST_F(CompletionQueueTest, datagram_says_what_network_header_it_came_with) {
  CheckedQueue cq(spec_);
  Completion completion = numbered(9);
  completion.source_qpn = 0xabcdef;
  completion.has_grh = true;
  completion.roce_type = mlx5::CqeRoceType::kV2Ipv4;
  ASSERT_TRUE(cq.write(completion));
  EXPECT_EQ(entry(0).flags_remote_qpn, 0x1aabcdefu);
  EXPECT_EQ(entry(0).source_lid, 0);

  Completion by_lid = numbered(10);
  by_lid.source_qpn = 0xabcdef;
  by_lid.source_lid = 0x0304;
  ASSERT_TRUE(cq.write(by_lid));
  EXPECT_EQ(entry(1).flags_remote_qpn, 0x00abcdefu);
  EXPECT_EQ(entry(1).source_lid, 0x0304);
}

TEST_F(CompletionQueueTest, success_fills_the_fields_of_the_prm) {
  CheckedQueue cq(spec_);
  Completion completion = numbered(9);
  completion.byte_count = 4096;
  completion.immediate = 0xcafe;
  completion.timestamp_ns = 0x0102030405060708;
  completion.solicited = true;
  ASSERT_TRUE(cq.write(completion));
  mlx5::Cqe64 cqe = entry(0);
  EXPECT_EQ(cqe.wqe_counter, 9);
  EXPECT_EQ(cqe.send_opcode_qpn, 0x08123456u);
  EXPECT_EQ(cqe.srqn_user_index, 0x77u);
  EXPECT_EQ(cqe.byte_count, 4096u);
  EXPECT_EQ(cqe.immediate_or_invalidated_rkey, 0xcafeu);
  EXPECT_EQ(cqe.timestamp, 0x0102030405060708u);
  EXPECT_EQ(cqe.op_own, mlx5::kCqeSolicited) << "opcode 0, owner 0 on the first pass";
  cqe.wqe_counter = 0, cqe.op_own = 0;
  cqe.send_opcode_qpn = cqe.srqn_user_index = cqe.byte_count = cqe.immediate_or_invalidated_rkey = 0;
  cqe.timestamp = 0;
  const mlx5::Cqe64 nothing{};
  EXPECT_EQ(std::memcmp(&cqe, &nothing, sizeof cqe), 0) << "and nothing else";
}

TEST_F(CompletionQueueTest, failure_carries_the_syndrome) {
  CheckedQueue cq(spec_);
  Completion completion = numbered(1);
  completion.syndrome = mlx5::Syndrome::kRemoteAccess;
  completion.vendor_syndrome = 0x99;
  completion.byte_count = 77;
  ASSERT_TRUE(cq.write(completion));
  EXPECT_EQ(std::to_integer<int>(ring_[54]), 0x99);
  EXPECT_EQ(entry(0).wqe_counter, 1);
  EXPECT_EQ(entry(0).send_opcode_qpn, 0x08123456u);
  EXPECT_EQ(entry(0).srqn_user_index, 0x77u);
  EXPECT_EQ(entry(0).byte_count, 0u) << "of success only";
  completion.opcode = mlx5::CqeOpcode::kResponderSend;
  ASSERT_TRUE(cq.write(completion));
  EXPECT_EQ(std::to_integer<int>(ring_[55]), 0x13);
  EXPECT_EQ(entry(0).op_own >> 4, 13);
  EXPECT_EQ(entry(1).op_own >> 4, 14);
}

TEST_F(CompletionQueueTest, owner_bit_flips_on_each_pass) {
  CheckedQueue cq(spec_);
  for (std::uint16_t i = 0; i < 12; ++i) {
    ASSERT_TRUE(cq.write(numbered(i)));
    EXPECT_EQ(entry(i % 4).op_own & 1, (i / 4) & 1) << i;
    EXPECT_EQ(entry(i % 4).wqe_counter, i);
    record_[mlx5::kConsumerRecord] = i + 1u;
  }
}

TEST_F(CompletionQueueTest, big_entries_use_their_second_half) {
  spec_.entry_bytes = 128;
  CheckedQueue cq(spec_);
  ASSERT_TRUE(cq.write(numbered(1)));
  ASSERT_TRUE(cq.write(numbered(2)));
  EXPECT_EQ(entry(1).wqe_counter, 2);
  EXPECT_EQ(ring_[0], std::byte{0xff}) << "the first half is left alone";
}

TEST_F(CompletionQueueTest, collapsed_queue_reuses_its_first_entry_for_ever) {
  spec_.collapsed = true;
  CheckedQueue cq(spec_);
  for (std::uint16_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(cq.write(numbered(i)));
    EXPECT_EQ(entry(0).wqe_counter, i);
  }
  EXPECT_EQ(ring_[64], std::byte{0xff});
}

TEST_F(CompletionQueueTest, full_queue_refuses_and_stays_in_error) {
  CheckedQueue cq(spec_);
  for (std::uint16_t i = 0; i < 4; ++i) ASSERT_TRUE(cq.write(numbered(i)));
  EXPECT_FALSE(cq.write(numbered(4)));
  record_[mlx5::kConsumerRecord] = 4u;
  EXPECT_FALSE(cq.write(numbered(5)));
  EXPECT_EQ(entry(0).wqe_counter, 0);
}

TEST_F(CompletionQueueTest, ignored_overrun_overwrites) {
  spec_.ignore_overrun = true;
  CheckedQueue cq(spec_);
  for (std::uint16_t i = 0; i < 5; ++i) ASSERT_TRUE(cq.write(numbered(i)));
  EXPECT_EQ(entry(0).wqe_counter, 4);
}

TEST_F(CompletionQueueTest, first_arm_value_zero_counts) {
  CheckedQueue cq(spec_);
  EXPECT_NE(record_[mlx5::kArmRecord], 0u);
  arm(0, 0);
  cq.check_arm();
  EXPECT_EQ(events_, 0);
  ASSERT_TRUE(cq.write(numbered(0)));
  EXPECT_EQ(events_, 1);
  ASSERT_TRUE(cq.write(numbered(1)));
  EXPECT_EQ(events_, 1) << "one event an arm";
}

TEST_F(CompletionQueueTest, arm_behind_a_completion_fires_at_once) {
  CheckedQueue cq(spec_);
  ASSERT_TRUE(cq.write(numbered(0)));
  arm(0, 1);
  cq.check_arm();
  EXPECT_EQ(events_, 1);
  cq.check_arm();
  EXPECT_EQ(events_, 1) << "the same record is no new arm";
  arm(1, 2);
  cq.check_arm();
  EXPECT_EQ(events_, 1) << "nothing waits";
}

TEST_F(CompletionQueueTest, arm_behind_an_announced_completion_waits_for_the_next) {
  CheckedQueue cq(spec_);
  arm(0, 0);
  cq.check_arm();
  ASSERT_TRUE(cq.write(numbered(0)));
  ASSERT_EQ(events_, 1);
  arm(0, 1);  // not polled yet
  cq.check_arm();
  EXPECT_EQ(events_, 1) << "the first event told of it";
  ASSERT_TRUE(cq.write(numbered(1)));
  EXPECT_EQ(events_, 2);
  ASSERT_TRUE(cq.write(numbered(2)));
  arm(0, 2);
  cq.check_arm();
  EXPECT_EQ(events_, 3) << "no event has told of the third";
}

// Half of the 24 bits of an index lie between the last event and this one: programs that poll seldom arm.
TEST_F(CompletionQueueTest, arm_after_half_of_all_indices_without_an_event_fires) {
  constexpr std::uint32_t kMany = (1u << 23) + 5;
  spec_.ignore_overrun = true;
  CheckedQueue cq(spec_);
  for (std::uint32_t i = 0; i < kMany; ++i) ASSERT_TRUE(cq.write(numbered(0)));
  record_[mlx5::kConsumerRecord] = kMany - 1;
  arm(kMany - 1, 1);
  cq.check_arm();
  EXPECT_EQ(events_, 1);
  record_[mlx5::kConsumerRecord] = kMany;
  arm(kMany, 2);
  cq.check_arm();
  EXPECT_EQ(events_, 1);
  ASSERT_TRUE(cq.write(numbered(1)));
  EXPECT_EQ(events_, 2);
}

TEST_F(CompletionQueueTest, arm_before_a_poll_of_everything_waits_for_the_next) {
  CheckedQueue cq(spec_);
  ASSERT_TRUE(cq.write(numbered(0)));
  arm(0, 0);
  record_[mlx5::kConsumerRecord] = 1u;  // polled before the doorbell is served
  cq.check_arm();
  EXPECT_EQ(events_, 0);
  ASSERT_TRUE(cq.write(numbered(1)));
  EXPECT_EQ(events_, 1);
}

TEST_F(CompletionQueueTest, overrun_is_told_once) {
  int overruns = 0;
  spec_.on_overrun = [&overruns] { ++overruns; };
  CheckedQueue cq(spec_);
  for (std::uint16_t i = 0; i < 4; ++i) ASSERT_TRUE(cq.write(numbered(i)));
  EXPECT_EQ(overruns, 0);
  EXPECT_FALSE(cq.write(numbered(4)));
  EXPECT_FALSE(cq.write(numbered(5)));
  EXPECT_EQ(overruns, 1);
}

TEST_F(CompletionQueueTest, resized_marks_the_old_ring_and_goes_on_one_further_in_the_new) {
  CheckedQueue cq(spec_);
  for (std::uint16_t i = 0; i < 6; ++i) {
    ASSERT_TRUE(cq.write(numbered(i)));
    if (i < 4) record_[mlx5::kConsumerRecord] = i + 1u;
  }
  alignas(8) std::array<std::byte, 8 * 64> larger{};
  ASSERT_EQ(cq.resize(larger.data(), 3), 0);
  EXPECT_EQ(entry(6 % 4).op_own, 5 << 4 | 1) << "the mark belongs to the second pass";
  ASSERT_TRUE(cq.write(numbered(6)));
  mlx5::Cqe64 first;
  std::memcpy(&first, larger.data() + 7 * 64, sizeof first);
  EXPECT_EQ(first.wqe_counter, 6);
  EXPECT_EQ(first.op_own & 1, 0) << "the first pass of a ring of eight";
  ASSERT_TRUE(cq.write(numbered(7)));
  std::memcpy(&first, larger.data(), sizeof first);
  EXPECT_EQ(first.op_own & 1, 1);
}

TEST_F(CompletionQueueTest, resized_below_what_is_unpolled_is_refused_and_changes_nothing) {
  CheckedQueue cq(spec_);
  for (std::uint16_t i = 0; i < 2; ++i) ASSERT_TRUE(cq.write(numbered(i)));
  alignas(8) std::array<std::byte, 2 * 64> smaller{};
  EXPECT_EQ(cq.resize(smaller.data(), 1), EINVAL) << "the mark needs a place too";
  ASSERT_TRUE(cq.write(numbered(2)));
  EXPECT_EQ(entry(2).wqe_counter, 2);
  record_[mlx5::kConsumerRecord] = 2u;
  EXPECT_EQ(cq.resize(smaller.data(), 1), 0);
}

TEST_F(CompletionQueueTest, resized_is_no_collapsed_no_full_and_no_overrun_queue) {
  alignas(8) std::array<std::byte, 8 * 64> larger{};
  CheckedQueue full(spec_);
  for (std::uint16_t i = 0; i < 4; ++i) ASSERT_TRUE(full.write(numbered(i)));
  EXPECT_EQ(full.resize(larger.data(), 3), EINVAL) << "no place for the mark";
  EXPECT_FALSE(full.write(numbered(4)));
  record_[mlx5::kConsumerRecord] = 4u;
  EXPECT_EQ(full.resize(larger.data(), 3), EINVAL);
  spec_.collapsed = true;
  EXPECT_EQ(CheckedQueue(spec_).resize(larger.data(), 3), EINVAL);
  EXPECT_EQ(larger, (std::array<std::byte, 8 * 64>{}));
}

TEST_F(CompletionQueueTest, solicited_arm_waits_for_a_solicited_or_failed_completion) {
  CheckedQueue cq(spec_);
  ASSERT_TRUE(cq.write(numbered(0)));
  arm(0, 1, true);
  cq.check_arm();
  EXPECT_EQ(events_, 0);
  Completion completion = numbered(1);
  completion.solicited = true;
  ASSERT_TRUE(cq.write(completion));
  EXPECT_EQ(events_, 1);
  arm(2, 2, true);
  cq.check_arm();
  completion = numbered(2);
  completion.syndrome = mlx5::Syndrome::kFlushed;
  ASSERT_TRUE(cq.write(completion));
  EXPECT_EQ(events_, 2);
}

// Counts with fewer bits than 64 wrap here, and marks that stay behind would seem ahead.
TEST_F(CompletionQueueTest, counts_pass_two_to_the_32_without_an_event) {
  constexpr std::uint64_t kWritten = (1ull << 32) - 3;
  CheckedQueue cq(spec_, nullptr, kWritten);
  for (std::uint16_t i = 0; i < 6; ++i) {
    record_[mlx5::kConsumerRecord] = static_cast<std::uint32_t>(kWritten + i) & 0xffffff;
    ASSERT_TRUE(cq.write(numbered(i)));
  }
  EXPECT_EQ(entry((kWritten + 5) % 4).wqe_counter, 5);
  EXPECT_EQ(events_, 0);
}

TEST_F(CompletionQueueTest, first_arm_after_two_to_the_31_completions_fires_at_once) {
  constexpr std::uint64_t kWritten = (1ull << 31) + 5;
  record_[mlx5::kConsumerRecord] = static_cast<std::uint32_t>(kWritten) & 0xffffff;
  CheckedQueue cq(spec_, nullptr, kWritten);
  ASSERT_TRUE(cq.write(numbered(0)));
  arm(static_cast<std::uint32_t>(kWritten) & 0xffffff, 1);
  cq.check_arm();
  EXPECT_EQ(events_, 1);
}

}  // namespace completion_queue_test
}  // namespace gdx::softhca
