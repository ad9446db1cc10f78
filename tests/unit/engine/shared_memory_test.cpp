// Two HCAs of one process whose packets go through shared memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "tests/unit/engine/node.h"

namespace gdx::softhca::test {
namespace shared_memory_test {

using mlx5::Syndrome;

constexpr std::size_t kMemoryBytes = 4 << 20;
constexpr std::size_t kTarget = 2 << 20;
constexpr std::uint32_t kMebibyte = 1 << 20;

void fill(Node& node, std::size_t offset, std::size_t length_bytes, unsigned seed) {
  std::mt19937 random(seed);
  for (std::size_t i = 0; i < length_bytes; ++i) node.memory[offset + i] = static_cast<std::byte>(random());
}

class LocalHcas : public testing::Test {
 protected:
  explicit LocalHcas(std::uint8_t timeout = Node::kPatient, const wire::FaultConfig& faults = {})
      : timeout_(timeout),
        a(faults, kMemoryBytes, wire::Carrier::kSharedMemory),
        b(faults, kMemoryBytes, wire::Carrier::kSharedMemory) {}
  void SetUp() override {
    a.connect(b, timeout_);
    b.connect(a, timeout_);
  }
  void expect_success() {
    const std::optional<Polled> polled = await_send(a, b);
    ASSERT_TRUE(polled) << "no completion";
    EXPECT_EQ(polled->syndrome, Syndrome::kNone) << mlx5::syndrome_name(polled->syndrome);
  }
  [[nodiscard]] bool same(std::size_t at_a, std::size_t at_b, std::size_t length_bytes) const {
    return std::equal(a.memory.begin() + at_a, a.memory.begin() + at_a + length_bytes,
                      b.memory.begin() + at_b);
  }

  std::uint8_t timeout_;
  Node a;
  Node b;
};

// The answers are more than the ring holds, and nobody reads them for a while: what it has no room for
// waits, and nothing is lost or sent twice.
TEST_F(LocalHcas, messages_beyond_the_ring_arrive_without_a_retransmission) {
  constexpr int kReads = 8;
  fill(a, 0, kMebibyte, 1);
  fill(b, 0, kMebibyte, 2);
  a.post_write(a.local(0, kMebibyte), b.remote(kTarget), false);
  for (int i = 0; i < kReads; ++i) a.post_read(a.local(kTarget, kMebibyte), b.remote(0));
  a.ring();
  const auto sent = [this] { return b.hca->counters().wire.packets_sent; };
  ASSERT_TRUE(drive(a, b, [&] { return sent() > 20; }));
  for (std::uint64_t before = 0; before != sent();) {
    before = sent();
    for (int i = 0; i < 10; ++i) b.hca->progress();
  }
  EXPECT_LT(sent(), std::uint64_t{kReads} * kMebibyte / 4096) << "the ring held everything";
  for (int i = 0; i < kReads; ++i) expect_success();
  EXPECT_TRUE(same(0, kTarget, kMebibyte));
  EXPECT_TRUE(same(kTarget, 0, kMebibyte));
  for (Node* node : {&a, &b}) {
    const HcaCounters counters = node->hca->counters();
    EXPECT_EQ(counters.wire.send_errors, 0u);
    EXPECT_EQ(counters.transport.retransmitted_packets, 0u);
    EXPECT_EQ(counters.transport.duplicate_requests, 0u);
    EXPECT_EQ(counters.wire.shared_memory_sent, counters.wire.packets_sent);
  }
}

class LossyLocalHcas : public LocalHcas {
 protected:
  LossyLocalHcas()
      : LocalHcas(Node::kHasty,
                  {.loss = 0.01, .corrupt = 0.005, .duplicate = 0.01, .reorder = 0.01, .seed = 5}) {}
};

TEST_F(LossyLocalHcas, everything_arrives_in_spite_of_faults) {
  fill(a, 0, kMebibyte, 3);
  fill(b, 0, kMebibyte, 4);
  for (std::uint64_t round = 0; round < 4; ++round) {
    std::fill_n(b.memory.begin() + kTarget, kMebibyte, std::byte{0});
    a.post_write(a.local(0, kMebibyte), b.remote(kTarget), false);
    a.post_fetch_add(a.local(3 << 20, 8), b.remote(3 << 20), 1);
    a.post_read(a.local(kTarget, kMebibyte), b.remote(0));
    a.ring();
    for (int i = 0; i < 2; ++i) expect_success();
    ASSERT_TRUE(same(0, kTarget, kMebibyte));
    ASSERT_TRUE(same(kTarget, 0, kMebibyte));
    std::uint64_t original = 0;
    std::memcpy(&original, a.memory.data() + (3 << 20), sizeof original);
    EXPECT_EQ(original, round) << "an atomic must not run twice";
  }
  const HcaCounters counters = a.hca->counters();
  EXPECT_GT(counters.transport.retransmitted_packets, 0u);
  EXPECT_GT(counters.wire.faults_lost, 0u);
  EXPECT_GT(counters.wire.icrc_errors + b.hca->counters().wire.icrc_errors, 0u);
}

class FailingLocalHcas : public LocalHcas {
 protected:
  FailingLocalHcas() : LocalHcas(Node::kHasty) {}
};

TEST_F(FailingLocalHcas, peer_that_dies_in_the_middle_exceeds_the_retries) {
  a.post_write(a.local(0, kMebibyte), b.remote(kTarget));
  a.ring();
  ASSERT_TRUE(drive(a, b, [&] { return b.hca->counters().wire.packets_received > 20; }));
  b.hca.reset();
  const std::optional<Polled> polled = await_alone(a);
  ASSERT_TRUE(polled) << "no completion";
  EXPECT_EQ(polled->syndrome, Syndrome::kRetryExceeded) << mlx5::syndrome_name(polled->syndrome);
}

// It lives and holds its link open, but takes nothing: the full ring must not hold the verdict up.
TEST_F(FailingLocalHcas, peer_that_hangs_with_a_full_ring_exceeds_the_retries) {
  a.post_write(a.local(0, kMebibyte), b.remote(kTarget));
  a.ring();
  const std::optional<Polled> polled = await_alone(a);
  ASSERT_TRUE(polled) << "no completion";
  EXPECT_EQ(polled->syndrome, Syndrome::kRetryExceeded) << mlx5::syndrome_name(polled->syndrome);
}

}  // namespace shared_memory_test
}  // namespace gdx::softhca::test
