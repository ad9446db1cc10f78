// BlueFlame: a whole WQE in its doorbell is executed from there, any other from the ring.
#include "driver-shim/softhca/engine/blueflame.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "proto/mlx5/wqe.h"
#include "tests/unit/engine/node.h"

namespace gdx::softhca::test {
namespace blueflame_test {

constexpr std::size_t kSource = 0;
constexpr std::size_t kTarget = 2 << 20;
constexpr std::size_t kFirstHalf = mlx5::kUarBlueFlame;
constexpr std::size_t kSecondHalf = mlx5::kUarBlueFlame + mlx5::kBlueFlameBufferBytes;
constexpr std::size_t kBlockWords = mlx5::kWqeBasicBlockBytes / sizeof(std::uint64_t);

class BlueFlame : public testing::Test {
 protected:
  explicit BlueFlame(double spoiled_copies = 0)
      : a(*wire::open_wire({}, {}), 4 << 20, {.spoiled_copies = spoiled_copies}) {}

  void SetUp() override {
    a.connect(b);
    b.connect(a);
    std::generate_n(a.memory.begin(), 4096, [n = 1]() mutable { return static_cast<std::byte>(n++ * 37); });
  }

  // Posts a write of 64 B from and to a place of its own, and returns its index.
  std::uint16_t post(std::uint32_t place) {
    return a.post_write(a.local(kSource + place * 64, 64), b.remote(kTarget + place * 64));
  }
  void expect_arrived(std::uint16_t index, std::uint32_t place) {
    const std::optional<Polled> polled = await_send(a, b);
    ASSERT_TRUE(polled);
    EXPECT_EQ(polled->syndrome, mlx5::Syndrome::kNone);
    EXPECT_EQ(polled->wqe_counter, index);
    const auto sent = a.memory.begin() + kSource + place * 64;
    EXPECT_TRUE(std::equal(sent, sent + 64, b.memory.begin() + kTarget + place * 64));
  }
  [[nodiscard]] PcieCounters pcie() { return a.hca->counters().pcie; }

  Node a;
  Node b;
};

TEST_F(BlueFlame, whole_wqe_is_executed_without_a_read_of_ring_or_record) {
  for (std::uint32_t i = 0; i < 32; ++i) {
    const std::uint16_t index = post(i);
    a.ring_blueflame(index, i % 2 == 0 ? kFirstHalf : kSecondHalf);
    expect_arrived(index, i);
  }
  EXPECT_EQ(pcie().blueflame_wqes, 32u);
  EXPECT_EQ(pcie().wqe_reads, 0u);
  EXPECT_EQ(pcie().record_reads, 0u);
  EXPECT_EQ(pcie().blueflame_torn, 0u);
  EXPECT_EQ(pcie().payload_reads, 32u) << "pulled from host memory";
}

TEST_F(BlueFlame, payload_in_device_memory_needs_no_read_at_all) {
  std::fill_n(reinterpret_cast<std::byte*>(a.device_memory.data()), 512, std::byte{0x77});
  const std::uint16_t index = a.post_write(a.staging(0, 512), b.remote(kTarget));
  a.ring_blueflame(index, kFirstHalf);
  ASSERT_TRUE(await_send(a, b));
  EXPECT_EQ(b.memory[kTarget + 511], std::byte{0x77});
  EXPECT_EQ(pcie().payload_reads + pcie().wqe_reads + pcie().record_reads, 0u);
  EXPECT_EQ(b.hca->counters().pcie.payload_writes, 1u);
}

TEST_F(BlueFlame, plain_doorbell_costs_a_record_and_a_wqe) {
  const std::uint16_t index = post(0);
  a.ring();
  expect_arrived(index, 0);
  EXPECT_EQ(pcie().record_reads, 1u);
  EXPECT_EQ(pcie().wqe_reads, 1u);
  EXPECT_EQ(pcie().blueflame_wqes + pcie().blueflame_torn, 0u);
}

// Content of the register behind the doorbell while its stores are under way, one after another.
TEST_F(BlueFlame, copy_torn_at_any_word_is_fetched_from_the_ring) {
  constexpr std::uint32_t kUsedWords = 6;  // control, remote address, data
  for (std::uint32_t whole = 1; whole < kUsedWords; ++whole) {
    const PcieCounters before = pcie();
    const std::uint16_t index = post(whole);
    const auto cut = [&](std::span<std::uint64_t> words) { std::ranges::fill(words.subspan(whole), 0); };
    a.ring_blueflame(index, kFirstHalf, 1, cut);
    expect_arrived(index, whole);
    EXPECT_EQ(pcie().wqe_reads - before.wqe_reads, 1u) << whole << " words";
    EXPECT_EQ(pcie().blueflame_wqes, 0u);
  }
}

TEST_F(BlueFlame, copy_with_any_word_of_another_wqe_is_fetched_from_the_ring) {
  for (std::uint32_t stale = 1; stale < 6; ++stale) {
    const PcieCounters before = pcie();
    const std::uint16_t index = post(stale);
    a.ring_blueflame(index, kFirstHalf, 1, [&](std::span<std::uint64_t> words) { words[stale] ^= 0x4000; });
    expect_arrived(index, stale);
    EXPECT_EQ(pcie().wqe_reads - before.wqe_reads, 1u) << "word " << stale;
    EXPECT_EQ(pcie().blueflame_torn - before.blueflame_torn, 1u);
  }
}

// As Linux's mlx5_ib_test_wc finds out whether copies are used: the copy alone asks for a completion.
TEST_F(BlueFlame, nop_that_says_otherwise_than_the_ring_is_executed_as_it_says) {
  constexpr std::size_t kFlagsWord = 1;
  constexpr std::uint64_t kAskFlag = std::uint64_t{mlx5::kCompletionAlways} << 24;
  const std::uint16_t index = a.post_raw(mlx5::WqeOpcode::kNop, {}, mlx5::kCompletionOnError);
  a.ring_blueflame(index, kFirstHalf, 1,
                   [](std::span<std::uint64_t> words) { words[kFlagsWord] |= kAskFlag; });
  const std::optional<Polled> polled = await_send(a, b);
  ASSERT_TRUE(polled);
  EXPECT_EQ(polled->wqe_counter, index);
  EXPECT_EQ(pcie().blueflame_wqes, 1u);
}

class SpoiledBlueFlame : public BlueFlame {
 protected:
  SpoiledBlueFlame() : BlueFlame(1) {}
};

TEST_F(SpoiledBlueFlame, copies_come_torn_late_or_not_at_all_and_no_wqe_is_lost) {
  constexpr std::uint32_t kWqes = 60;
  for (std::uint32_t i = 0; i < kWqes; ++i) {
    const std::uint16_t index = post(i % 32);
    a.ring_blueflame(index, i % 2 == 0 ? kFirstHalf : kSecondHalf);
    expect_arrived(index, i % 32);
  }
  const PcieCounters found = pcie();
  EXPECT_GT(found.blueflame_torn, kWqes / 6);
  EXPECT_GT(found.blueflame_wqes, kWqes / 6) << "those that came late, and whole";
  EXPECT_GT(found.wqe_reads - found.blueflame_torn, kWqes / 6) << "without a copy";
  EXPECT_EQ(found.blueflame_wqes + found.wqe_reads, kWqes);
}

TEST_F(SpoiledBlueFlame, write_that_comes_late_follows_a_newer_one) {
  for (int round = 0; round < 20; ++round) {
    const std::uint16_t older = post(0);
    a.ring_blueflame(older, kFirstHalf);
    a.hca->progress();
    const std::uint16_t newer = post(1);
    a.ring();
    expect_arrived(older, 0);
    expect_arrived(newer, 1);
  }
}

// An offender: it writes into the copy alone that it wants a completion.
TEST_F(SpoiledBlueFlame, program_that_relies_on_its_copy_waits_in_vain) {
  constexpr std::uint64_t kAskFlag = std::uint64_t{mlx5::kCompletionAlways} << 24;
  int completions = 0;
  constexpr int kNops = 30;
  for (int i = 0; i < kNops; ++i) {
    const std::uint16_t index = a.post_raw(mlx5::WqeOpcode::kNop, {}, mlx5::kCompletionOnError);
    a.ring_blueflame(index, kFirstHalf, 1, [](std::span<std::uint64_t> words) { words[1] |= kAskFlag; });
    drive(a, b, [&] { return pcie().blueflame_wqes + pcie().wqe_reads == static_cast<unsigned>(i) + 1; });
    completions += a.poll_send() ? 1 : 0;
  }
  EXPECT_GT(completions, 0);
  EXPECT_LT(completions, kNops * 2 / 3);
}

TEST_F(SpoiledBlueFlame, copy_that_comes_late_is_work_at_hand) {
  int late = 0;
  for (std::uint16_t i = 0; i < 32; ++i) {
    const std::uint64_t before = a.hca->counters().wqes;
    a.ring_blueflame(post(i), kFirstHalf);
    a.hca->progress();
    if (a.hca->counters().wqes == before) {
      ++late;
      EXPECT_EQ(a.hca->idle_ns(), 0u);
    }
    expect_arrived(i, i);
  }
  EXPECT_GT(late, 0);
}

TEST_F(BlueFlame, words_behind_the_wqe_are_of_no_account) {
  const std::uint16_t index = post(0);
  a.ring_blueflame(index, kFirstHalf, 1, [](std::span<std::uint64_t> words) { words[7] = words[6] = ~0ull; });
  expect_arrived(index, 0);
  EXPECT_EQ(pcie().blueflame_wqes, 1u);
}

TEST_F(BlueFlame, plain_doorbell_after_a_copy_does_not_find_it_again) {
  a.ring_blueflame(post(0), kFirstHalf);
  expect_arrived(0, 0);
  // But for the index the same WQE.
  post(0);
  a.ring();
  expect_arrived(1, 0);
  EXPECT_EQ(pcie().blueflame_wqes, 1u);
  EXPECT_EQ(pcie().wqe_reads, 1u);
}

TEST_F(BlueFlame, doorbell_overwritten_before_it_is_served_costs_reads_and_no_order) {
  a.ring_blueflame(post(0), kFirstHalf);
  a.ring_blueflame(post(1), kSecondHalf);
  a.ring_blueflame(post(2), kFirstHalf);  // over the first one
  for (std::uint16_t i = 0; i < 3; ++i) expect_arrived(i, i);
  EXPECT_EQ(pcie().wqe_reads, 1u);
  EXPECT_EQ(pcie().record_reads, 1u);
  EXPECT_EQ(pcie().blueflame_wqes, 2u);
}

TEST_F(BlueFlame, wqe_announced_by_the_record_before_it_is_fetched) {
  post(0);
  a.ring_blueflame(post(1), kFirstHalf);
  expect_arrived(0, 0);
  expect_arrived(1, 1);
  EXPECT_EQ(pcie().wqe_reads, 1u);
  EXPECT_EQ(pcie().blueflame_wqes, 1u);
}

TEST_F(BlueFlame, wqe_of_four_blocks_that_wraps_the_ring_travels_in_its_doorbell) {
  constexpr std::uint32_t kBefore = Node::kSendBlocks - 2;
  for (std::uint32_t i = 1; i < kBefore; ++i) {
    a.post_write(a.local(kSource, 8), b.remote(kTarget), false);
  }
  a.post_write(a.local(kSource, 8), b.remote(kTarget));
  a.ring();
  ASSERT_TRUE(await_send(a, b));
  const std::string text(200, 'x');
  b.post_receive(b.local(kTarget, 256));
  const std::uint16_t index = a.post_send_inline(text, 5);
  a.ring_blueflame(index, kSecondHalf, 4);
  ASSERT_TRUE(await_receive(b, a));
  EXPECT_EQ(std::memcmp(b.memory.data() + kTarget, text.data(), text.size()), 0);
  EXPECT_EQ(pcie().blueflame_wqes, 1u);
  EXPECT_EQ(pcie().wqe_reads, kBefore);
}

// A thread posts as libmlx5 does while this one steps the HCAs: whatever is torn, the bytes are right.
TEST_F(BlueFlame, posting_thread_and_polling_thread_never_lose_a_wqe) {
  constexpr std::uint32_t kRounds = 400;
  std::atomic<std::uint32_t> posted{0};
  std::atomic<std::uint32_t> completed{0};
  std::thread poster([&] {
    for (std::uint32_t i = 0; i < kRounds; ++i) {
      while (i - completed.load(std::memory_order_acquire) >= 8) std::this_thread::yield();
      a.ring_blueflame(post(i % 32), i % 2 == 0 ? kFirstHalf : kSecondHalf);
      posted.store(i + 1, std::memory_order_release);
    }
  });
  for (std::uint32_t i = 0; i < kRounds; ++i) {
    // The poster may stand still for longer than a bounded number of steps takes.
    while (posted.load(std::memory_order_acquire) <= i) {
      a.hca->progress();
      b.hca->progress();
      std::this_thread::yield();
    }
    expect_arrived(static_cast<std::uint16_t>(i), i % 32);
    completed.store(i + 1, std::memory_order_release);
  }
  poster.join();
  EXPECT_EQ(pcie().blueflame_wqes + pcie().wqe_reads, kRounds);
}

TEST(DoorbellWrite, of_a_wqe_too_long_for_the_register_has_no_copy) {
  alignas(8) std::array<std::uint64_t, 512> page{};
  page[mlx5::kUarBlueFlame / 8] = std::uint64_t{byte_swap(0x1234u << 8 | 17)} << 32 | byte_swap(0x700u | 8);
  std::fill_n(page.begin() + mlx5::kUarBlueFlame / 8 + 1, 31, ~0ull);
  const auto write = DoorbellWrite::take(reinterpret_cast<std::byte*>(page.data()), mlx5::kUarBlueFlame);
  ASSERT_TRUE(write);
  EXPECT_EQ(write->qpn(), 0x1234u);
  EXPECT_TRUE(write->wqe().empty());
  EXPECT_FALSE(DoorbellWrite::take(reinterpret_cast<std::byte*>(page.data()), mlx5::kUarBlueFlame));
}

TEST(DoorbellWrite, leaves_a_register_empty) {
  alignas(8) std::array<std::uint64_t, 512> page{};
  const std::size_t at = mlx5::kUarBlueFlame / 8;
  page[at] = std::uint64_t{byte_swap(0x1234u << 8 | 8)} << 32 | byte_swap(8u);
  std::fill_n(page.begin() + at + 1, 2 * kBlockWords - 1, 5);
  ASSERT_TRUE(DoorbellWrite::take(reinterpret_cast<std::byte*>(page.data()), mlx5::kUarBlueFlame));
  EXPECT_TRUE(std::all_of(page.begin(), page.end(), [](std::uint64_t word) { return word == 0; }));
}

}  // namespace blueflame_test
}  // namespace gdx::softhca::test
