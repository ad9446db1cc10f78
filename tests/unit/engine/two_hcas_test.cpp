// Two HCAs in one process, on two loopback addresses, stepped in turn: everything that should work.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <thread>

#include "proto/mlx5/doorbell.h"
#include "tests/unit/engine/node.h"

namespace gdx::softhca::test {
namespace two_hcas_test {

using mlx5::CqeOpcode;
using mlx5::Syndrome;

constexpr std::size_t kSource = 0;
constexpr std::size_t kTarget = 2 << 20;

void fill(Node& node, std::size_t offset, std::size_t length_bytes, unsigned seed) {
  std::mt19937 random(seed);
  for (std::size_t i = 0; i < length_bytes; ++i) node.memory[offset + i] = static_cast<std::byte>(random());
}

bool same(const Node& a, std::size_t at_a, const Node& b, std::size_t at_b, std::size_t length_bytes) {
  return std::equal(a.memory.begin() + at_a, a.memory.begin() + at_a + length_bytes, b.memory.begin() + at_b);
}

void expect_success(const std::optional<Polled>& polled, std::uint16_t wqe_counter) {
  ASSERT_TRUE(polled) << "no completion";
  EXPECT_EQ(polled->opcode, CqeOpcode::kRequester) << mlx5::syndrome_name(polled->syndrome);
  EXPECT_EQ(polled->wqe_counter, wqe_counter);
}

class TwoHcas : public testing::Test {
 protected:
  void SetUp() override {
    a.connect(b);
    b.connect(a);
    introduce(a, b);
  }
  // Requires that packets arrived sound and in order, because RC would mend the rest unseen. A timeout may be
  // the machine's.
  void TearDown() override {
    for (Node* node : {&a, &b}) {
      const HcaCounters counters = node->hca->counters();
      EXPECT_EQ(counters.wire.icrc_errors, 0u);
      if (counters.wire.socket_drops + counters.wire.send_errors > 0) continue;
      EXPECT_EQ(counters.transport.out_of_sequence, 0u);
    }
  }

  Node a;
  Node b;
};

TEST_F(TwoHcas, write_of_a_mebibyte_arrives_whole) {
  constexpr std::uint32_t kBytes = (1 << 20) - 3;
  fill(a, kSource, kBytes, 1);
  const std::uint16_t index = a.post_write(a.local(kSource, kBytes), b.remote(kTarget));
  a.ring();
  expect_success(await_send(a, b), index);
  EXPECT_TRUE(same(a, kSource, b, kTarget, kBytes));
  EXPECT_EQ(b.memory[kTarget + kBytes], std::byte{0});
  const HcaCounters counters = a.hca->counters();
  EXPECT_EQ(counters.wqes, 1u);
  EXPECT_EQ(counters.cqes, 1u);
  EXPECT_EQ(counters.doorbells, 1u);
}

TEST_F(TwoHcas, record_without_a_doorbell_is_never_served) {
  a.post_write(a.local(kSource, 8), b.remote(kTarget));
  a.write_record();
  EXPECT_FALSE(drive(
      a, b, [&] { return a.poll_send().has_value(); }, 2000));
  a.ring();
  EXPECT_TRUE(await_send(a, b));
}

TEST_F(TwoHcas, read_brings_the_peers_bytes) {
  fill(b, kTarget, 100'001, 2);
  const std::uint16_t index = a.post_read(a.local(kSource, 100'001), b.remote(kTarget));
  a.ring();
  expect_success(await_send(a, b), index);
  EXPECT_TRUE(same(a, kSource, b, kTarget, 100'001));
}

TEST_F(TwoHcas, atomics_change_the_target_and_return_the_original) {
  const auto word = [](Node& node, std::size_t offset) {
    std::uint64_t value = 0;
    std::memcpy(&value, node.memory.data() + offset, sizeof value);
    return value;
  };
  const std::uint64_t start = 0x1122334455667788;
  std::memcpy(b.memory.data() + kTarget, &start, sizeof start);
  a.post_fetch_add(a.local(kSource, 8), b.remote(kTarget), 5);
  a.ring();
  expect_success(await_send(a, b), 0);
  EXPECT_EQ(word(a, kSource), start);
  EXPECT_EQ(word(b, kTarget), start + 5);

  a.post_compare_swap(a.local(kSource, 8), b.remote(kTarget), start, 1);
  a.post_compare_swap(a.local(kSource + 8, 8), b.remote(kTarget), start + 5, 99);
  a.ring();
  expect_success(await_send(a, b), 1);
  expect_success(await_send(a, b), 2);
  EXPECT_EQ(word(a, kSource), start + 5);
  EXPECT_EQ(word(a, kSource + 8), start + 5);
  EXPECT_EQ(word(b, kTarget), 99u);
}

TEST_F(TwoHcas, masked_atomics_on_eight_bytes_change_their_bits_and_return_host_order) {
  const auto word = [](Node& node, std::size_t offset) {
    std::uint64_t value = 0;
    std::memcpy(&value, node.memory.data() + offset, sizeof value);
    return value;
  };
  const std::uint64_t start = 0x00000000ff0000ff;
  std::memcpy(b.memory.data() + kTarget, &start, sizeof start);
  a.post_masked_fetch_add(a.local(kSource, 8), b.remote(kTarget), 0x01000001, 0x80);
  a.post_masked_compare_swap(a.local(kSource + 8, 8), b.remote(kTarget),
                             {.swap_or_add = 0x5500,
                              .compare = 0x100000000,
                              .swap_mask_or_boundaries = 0xff00,
                              .compare_mask = ~std::uint64_t{0} << 32});
  a.ring();
  expect_success(await_send(a, b), 0);
  expect_success(await_send(a, b), 1);
  EXPECT_EQ(word(a, kSource), start);
  EXPECT_EQ(word(a, kSource + 8), 0x100000000u) << "the low field wrapped, the high one carried";
  EXPECT_EQ(word(b, kTarget), 0x100005500u);
}

TEST_F(TwoHcas, masked_atomics_on_four_bytes_leave_the_other_four_and_return_big_endian) {
  const std::array<std::uint32_t, 2> start{0xffffffff, 0xfffffffe};
  std::memcpy(b.memory.data() + kTarget, start.data(), sizeof start);
  std::fill_n(a.memory.data() + kSource, 16, std::byte{0xee});
  a.post_masked_fetch_add(a.local(kSource, 4), b.remote(kTarget), 0x12345679, 0);
  a.post_masked_fetch_add(a.local(kSource + 4, 4), b.remote(kTarget + 4), 3, 0);
  a.post_masked_compare_swap(a.local(kSource + 8, 4), b.remote(kTarget),
                             {.swap_or_add = 7,
                              .compare = 0x12345678,
                              .swap_mask_or_boundaries = 0xffffffff,
                              .compare_mask = 0xffffffff});
  a.ring();
  for (std::uint16_t i = 0; i < 3; ++i) expect_success(await_send(a, b), i);
  std::array<Be32, 4> results{};
  std::memcpy(results.data(), a.memory.data() + kSource, sizeof results);
  EXPECT_EQ(results[0], start[0]);
  EXPECT_EQ(results[1], start[1]);
  EXPECT_EQ(results[2], 0x12345678u);
  EXPECT_EQ(results[3], 0xeeeeeeeeu) << "a result of 4 bytes takes 4";
  std::array<std::uint32_t, 2> now{};
  std::memcpy(now.data(), b.memory.data() + kTarget, sizeof now);
  EXPECT_EQ(now[0], 7u);
  EXPECT_EQ(now[1], 1u);
}

TEST_F(TwoHcas, masked_atomic_on_four_bytes_that_are_not_aligned_is_refused) {
  a.post_masked_fetch_add(a.local(kSource, 4), b.remote(kTarget + 2), 1, 0);
  a.ring();
  const std::optional<Polled> polled = await_send(a, b);
  ASSERT_TRUE(polled);
  EXPECT_EQ(polled->syndrome, Syndrome::kRemoteInvalidRequest);
}

TEST_F(TwoHcas, send_fills_a_receive_and_reports_the_immediate) {
  b.post_receive(b.local(kTarget, 64));
  constexpr std::string_view kText = "twenty-seven characters now";
  a.post_send_inline(kText, 0xfeedf00d);
  a.ring();
  const std::optional<Polled> received = await_receive(b, a);
  ASSERT_TRUE(received);
  EXPECT_EQ(received->opcode, CqeOpcode::kResponderSendImmediate);
  EXPECT_EQ(received->byte_count, kText.size());
  EXPECT_EQ(received->immediate, 0xfeedf00du);
  EXPECT_EQ(std::memcmp(b.memory.data() + kTarget, kText.data(), kText.size()), 0);
  expect_success(await_send(a, b), 0);
}

TEST_F(TwoHcas, send_without_a_receive_waits_for_one) {
  a.post_send_inline(std::string_view("late"), 1);
  a.ring();
  drive(a, b, [&] { return a.hca->counters().transport.rnr_naks_received > 0; });
  EXPECT_GT(a.hca->counters().transport.rnr_naks_received, 0u);
  EXPECT_GT(b.hca->counters().transport.out_of_buffer, 0u);
  b.post_receive(b.local(kTarget, 64));
  expect_success(await_send(a, b), 0);
  EXPECT_TRUE(await_receive(b, a));
}

TEST_F(TwoHcas, write_with_immediate_completes_at_both_ends) {
  fill(a, kSource, 5000, 3);
  b.post_receive(b.local(0, 0));
  a.post_write_immediate(a.local(kSource, 5000), b.remote(kTarget), 42);
  a.ring();
  const std::optional<Polled> received = await_receive(b, a);
  ASSERT_TRUE(received);
  EXPECT_EQ(received->opcode, CqeOpcode::kResponderWriteImmediate);
  EXPECT_EQ(received->immediate, 42u);
  EXPECT_EQ(received->byte_count, 5000u);
  EXPECT_TRUE(same(a, kSource, b, kTarget, 5000));
}

TEST_F(TwoHcas, unsignaled_writes_wrap_the_ring_and_complete_with_the_signaled_one) {
  fill(a, kSource, 64, 4);
  for (int round = 0; round < 40; ++round) {
    for (std::uint32_t i = 0; i < 15; ++i) {
      a.post_write(a.local(kSource, 64), b.remote(kTarget + i * 64), false);
    }
    const std::uint16_t index = a.post_write(a.local(kSource, 64), b.remote(kTarget + 15 * 64));
    a.ring();
    expect_success(await_send(a, b), index);
    EXPECT_FALSE(a.poll_send());
  }
  EXPECT_EQ(a.hca->counters().wqes, 640u);
  EXPECT_TRUE(same(a, kSource, b, kTarget + 7 * 64, 64));
}

TEST_F(TwoHcas, full_ring_is_served_in_order) {
  constexpr std::uint32_t kWrites = Node::kSendBlocks;
  fill(a, kSource, kWrites * 64, 5);
  std::uint16_t last = 0;
  for (std::uint32_t i = 0; i < kWrites; ++i) {
    last = a.post_write(a.local(kSource + i * 64, 64), b.remote(kTarget + i * 64), i + 1 == kWrites);
  }
  a.ring();
  expect_success(await_send(a, b), last);
  EXPECT_EQ(a.hca->counters().wqes, kWrites);
  EXPECT_TRUE(same(a, kSource, b, kTarget, kWrites * 64));
}

TEST_F(TwoHcas, staged_writes_are_clean_when_each_slot_waits_for_its_credit) {
  auto* slot = reinterpret_cast<std::byte*>(a.device_memory.data());
  for (std::uint32_t i = 0; i < 32; ++i) {
    std::fill_n(slot, 512, static_cast<std::byte>(i));
    a.post_write(a.staging(0, 512), b.remote(kTarget + i * 512));
    a.ring();
    ASSERT_TRUE(await_send(a, b));
    EXPECT_EQ(b.memory[kTarget + i * 512 + 511], static_cast<std::byte>(i));
  }
  EXPECT_EQ(a.hca->counters().staging_sends, 32u);
  EXPECT_EQ(a.hca->counters().staging_violations, 0u);
}

TEST_F(TwoHcas, doorbell_clobbered_by_another_still_serves_the_record) {
  a.post_write(a.local(kSource, 8), b.remote(kTarget));
  a.ring();
  a.post_write(a.local(kSource, 8), b.remote(kTarget));
  a.ring();  // the same register, before the HCA has looked
  expect_success(await_send(a, b), 0);
  expect_success(await_send(a, b), 1);
  EXPECT_EQ(a.hca->counters().doorbells, 1u);
}

TEST_F(TwoHcas, arm_clobbered_by_another_queues_is_served) {
  a.arm(a.send_cqn);
  a.arm(a.receive_cqn);  // the same register, before the HCA has looked
  a.post_write(a.local(kSource, 8), b.remote(kTarget));
  a.ring();
  expect_success(await_send(a, b), 0);
  EXPECT_EQ(a.completion_events, 1);
}

TEST_F(TwoHcas, doorbell_that_names_no_queue_of_its_page_serves_nothing) {
  a.post_write(a.local(kSource, 8), b.remote(kTarget));
  a.write_record();
  for (const std::uint32_t named : {a.qpn + 1, 0xffffffu, 0u}) {
    a.ring_for(named);
    EXPECT_FALSE(drive(
        a, b, [&] { return a.poll_send().has_value(); }, 200));
  }
  a.uar_page[mlx5::kUarCqDoorbell / 8] = ~std::uint64_t{0};
  a.hca->progress();
  EXPECT_EQ(a.hca->counters().bad_doorbells, 4u);
  EXPECT_EQ(a.hca->counters().wqes, 0u);
  a.ring();
  expect_success(await_send(a, b), 0);
}

TEST_F(TwoHcas, doorbell_rung_for_a_queue_that_goes_before_it_is_served_is_no_stray) {
  a.post_write(a.local(kSource, 8), b.remote(kTarget));
  std::array<Be32, 2> record{};
  std::vector<mlx5::Cqe64> ring(4);
  CompletionQueueSpec spec;
  spec.ring = reinterpret_cast<std::byte*>(ring.data());
  spec.doorbell_record = record.data();
  spec.log_entries = 2;
  const auto cqn = a.hca->create_cq(spec);
  ASSERT_TRUE(cqn);
  a.uar_page[mlx5::kUarCqDoorbell / 8] = std::uint64_t{byte_swap(*cqn)} << 32 | 1;
  EXPECT_EQ(a.hca->destroy_cq(*cqn), 0);
  a.ring();
  EXPECT_EQ(a.hca->destroy_qp(a.qpn), 0);
  a.hca->progress();
  EXPECT_EQ(a.hca->counters().bad_doorbells, 0u);
}

TEST_F(TwoHcas, rights_taken_away_in_rts_hold_for_the_next_write) {
  QpAttributes attributes;
  attributes.access = kRemoteRead;
  ASSERT_EQ(b.hca->modify_qp(b.qpn, kQpAccessFlags, attributes), 0);
  a.post_write(a.local(kSource, 8), b.remote(kTarget));
  a.ring();
  const std::optional<Polled> polled = await_send(a, b);
  ASSERT_TRUE(polled);
  EXPECT_EQ(polled->syndrome, Syndrome::kRemoteInvalidRequest);
}

TEST_F(TwoHcas, doorbells_are_remembered_and_packets_are_not) {
  ASSERT_EQ(a.hca->rung_at_ns(), 0u);
  a.post_write(a.local(kSource, 8), b.remote(kTarget));
  a.ring();
  EXPECT_TRUE(await_send(a, b));
  EXPECT_NE(a.hca->rung_at_ns(), 0u);
  EXPECT_EQ(b.hca->rung_at_ns(), 0u) << "it only received";
}

TEST_F(TwoHcas, idle_time_is_zero_with_work_and_bounded_without) {
  EXPECT_GT(a.hca->idle_ns(), 0u);
  EXPECT_LE(a.hca->idle_ns(), 1'000'000'000u);
  a.post_write(a.local(kSource, 8), b.remote(kTarget));
  a.ring();
  EXPECT_EQ(a.hca->idle_ns(), 0u);
  a.hca->progress();
  EXPECT_LE(a.hca->idle_ns(), 30'000'000u) << "a tail goes again then";
}

// A thread spins on a signal as a kernel does, while this one steps the HCAs.
TEST_F(TwoHcas, spinning_reader_sees_the_payload_once_it_sees_the_signal) {
  constexpr std::uint32_t kBytes = 20'000;
  fill(a, kSource, kBytes, 5);
  const std::uint64_t signal = 1;
  std::memcpy(a.memory.data() + (1 << 20), &signal, sizeof signal);
  auto* word = reinterpret_cast<std::uint64_t*>(b.memory.data() + kTarget + (1 << 20));
  std::atomic<bool> give_up{false};
  bool seen = false;
  std::thread reader([&] {
    while (!give_up && std::atomic_ref(*word).load(std::memory_order_acquire) == 0) std::this_thread::yield();
    seen = !give_up && same(a, kSource, b, kTarget, kBytes);
  });
  a.post_write(a.local(kSource, kBytes), b.remote(kTarget), false);
  a.post_write(a.local(1 << 20, 8), b.remote(kTarget + (1 << 20)));
  a.ring();
  const bool completed = await_send(a, b).has_value();
  give_up = !completed;
  reader.join();
  EXPECT_TRUE(completed);
  EXPECT_TRUE(seen);
}

// Two waiting threads step one HCA, one at a time.
TEST_F(TwoHcas, two_threads_may_step_one_hca) {
  fill(a, kSource, 1 << 20, 8);
  std::atomic<bool> stop{false};
  std::thread helper([&] {
    while (!stop) {
      a.hca->progress();
      b.hca->progress();
      std::this_thread::yield();
    }
  });
  for (int round = 0; round < 4; ++round) {
    a.post_write(a.local(kSource, 1 << 20), b.remote(kTarget));
    a.ring();
    EXPECT_TRUE(await_send(a, b));
  }
  stop = true;
  helper.join();
  EXPECT_TRUE(same(a, kSource, b, kTarget, 1 << 20));
}

class LossyHcas : public testing::Test {
 protected:
  static constexpr wire::FaultConfig kFaults{
      .loss = 0.01, .corrupt = 0.005, .duplicate = 0.01, .reorder = 0.01, .seed = 11};
  void SetUp() override {
    a.connect(b, 12);
    b.connect(a, 12);
  }

  Node a{kFaults};
  Node b{kFaults};
};

TEST_F(LossyHcas, everything_arrives_in_spite_of_faults) {
  constexpr std::uint32_t kBytes = 1 << 20;
  fill(a, kSource, kBytes, 6);
  fill(b, 1 << 20, kBytes, 7);
  std::uint64_t expected = 0;
  for (int round = 0; round < 8; ++round) {
    std::fill_n(b.memory.begin() + kTarget, kBytes, std::byte{0});
    a.post_write(a.local(kSource, kBytes), b.remote(kTarget), false);
    a.post_fetch_add(a.local(3 << 20, 8), b.remote(3 << 20), 1);
    a.post_read(a.local(kTarget, kBytes), b.remote(1 << 20));
    a.ring();
    for (int i = 0; i < 2; ++i) {
      const std::optional<Polled> polled = await_send(a, b);
      ASSERT_TRUE(polled);
      ASSERT_EQ(polled->syndrome, Syndrome::kNone) << mlx5::syndrome_name(polled->syndrome);
    }
    ASSERT_TRUE(same(a, kSource, b, kTarget, kBytes));
    ASSERT_TRUE(same(a, kTarget, b, 1 << 20, kBytes));
    std::uint64_t original = 0;
    std::memcpy(&original, a.memory.data() + (3 << 20), sizeof original);
    EXPECT_EQ(original, expected++) << "an atomic must not run twice";
  }
  const HcaCounters counters = a.hca->counters();
  EXPECT_GT(counters.transport.retransmitted_packets, 0u);
  EXPECT_GT(counters.wire.faults_lost, 0u);
  EXPECT_GT(counters.wire.faults_corrupted, 0u);
  EXPECT_GT(counters.wire.icrc_errors + b.hca->counters().wire.icrc_errors, 0u);
}

// Stands for connection management: a program told of its peer's goodbye may destroy its queue pair at once.
// Completions that it has not polled by then are lost to it.
class GoodbyeSeen final : public ManagementAgent {
 public:
  explicit GoodbyeSeen(Node& node) : node_(node) {}
  void on_datagram(const wire::Address&, std::span<const std::byte>) override {
    seen = true;
    while (node_.poll_receive()) ++completed_before;
  }
  int step(std::uint64_t) override { return 0; }
  [[nodiscard]] std::uint64_t next_deadline_ns() const override { return ~std::uint64_t{0}; }

  bool seen = false;
  int completed_before = 0;

 private:
  Node& node_;
};

TEST_F(TwoHcas, goodbye_behind_sends_is_seen_behind_their_completions) {
  GoodbyeSeen agent(b);
  b.hca->set_management_agent(&agent);
  // Different sizes, because equal ones travel as one packet batch. The wire takes one at first, then several
  // at a time, so the last ones come with the DREQ.
  constexpr int kSends = 3;
  constexpr std::string_view kWords = "these are my last words";
  for (int i = 0; i < kSends; ++i) {
    b.post_receive(b.local(kTarget, 64));
    a.post_send_inline(kWords.substr(0, 4 * static_cast<std::size_t>(i + 1)), 1);
  }
  a.ring();
  a.hca->progress();
  a.hca->send_management(b.hca->address(), std::vector<std::byte>(256));
  EXPECT_TRUE(drive(a, b, [&] { return agent.seen; }));
  EXPECT_EQ(agent.completed_before, kSends);
  b.hca->set_management_agent(nullptr);
}

}  // namespace two_hcas_test
}  // namespace gdx::softhca::test
