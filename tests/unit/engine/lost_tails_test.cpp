// Whole HCAs whose queue pairs ask for ACK timeouts of seconds, on a wire that loses packets.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/unit/engine/virtual_pair.h"

namespace gdx::softhca::test {
namespace lost_tails_test {

constexpr std::uint64_t kMs = 1'000'000;
constexpr std::uint64_t kLimitNs = 1000 * kMs;  // far below the ACK timeout

// Each message is one packet, so each loss is that of a tail: of the packet, or of its ACK.
TEST(LostTails, of_patient_queue_pairs_cost_a_tenth_of_a_second_at_most) {
  constexpr int kMessages = 3000;
  VirtualPair pair;
  std::mt19937 random(1);
  int losses = 0;
  pair.loses = [&] {
    const bool lost = random() % 100 == 0;
    losses += lost ? 1 : 0;
    return lost;
  };
  std::vector<std::uint64_t> delays_ns;  // of messages that met a loss
  for (int i = 0; i < kMessages; ++i) {
    const int losses_before = losses;
    const std::uint64_t posted_ns = pair.now_ns;
    pair.a.post_write(pair.a.local(0, 64), pair.b.remote(0));
    pair.a.ring();
    std::optional<Polled> completion;
    const auto completed = [&] { return (completion = pair.a.poll_send()).has_value(); };
    ASSERT_TRUE(pair.run(completed, kLimitNs)) << "message " << i << " waits for its timeout";
    ASSERT_EQ(completion->opcode, mlx5::CqeOpcode::kRequester);
    if (losses > losses_before) delays_ns.push_back(pair.now_ns - posted_ns);
  }
  ASSERT_GE(delays_ns.size(), 30u);
  std::ranges::sort(delays_ns);
  EXPECT_LE(delays_ns[delays_ns.size() * 99 / 100], 100 * kMs);
  EXPECT_GE(delays_ns.back(), 10 * kMs) << "nothing was a lost tail";
  const transport::TransportCounters counters = pair.a.hca->counters().transport;
  EXPECT_GE(counters.tail_resends, delays_ns.size() / 2);
  EXPECT_EQ(counters.timeouts, 0u);
}

}  // namespace lost_tails_test
}  // namespace gdx::softhca::test
