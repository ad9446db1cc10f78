#include "driver-shim/softhca/engine/link_clock.h"

#include <gtest/gtest.h>

#include <random>

namespace gdx::softhca {
namespace link_clock_test {

TEST(LinkClock, without_a_rate_never_says_no) {
  LinkClock link(0, 1000);
  link.charge(5, 1u << 30);
  EXPECT_GT(link.budget_bytes(5), 1ull << 40);
  EXPECT_EQ(link.wait_ns(5), 0u);
}

TEST(LinkClock, idle_gives_a_burst_and_then_the_rate) {
  LinkClock link(8, 1000);  // a byte a nanosecond
  EXPECT_EQ(link.budget_bytes(1'000'000), 1000u);
  link.charge(1'000'000, 1000);
  EXPECT_EQ(link.budget_bytes(1'000'000), 0u);
  EXPECT_EQ(link.budget_bytes(1'000'300), 300u);
  EXPECT_EQ(link.budget_bytes(2'000'000), 1000u) << "a longer pause saves up no more";
}

TEST(LinkClock, what_goes_beyond_the_budget_is_owed) {
  LinkClock link(8, 1000);
  link.charge(0, 3000);
  EXPECT_EQ(link.budget_bytes(2000), 0u);
  const std::uint64_t wait_ns = link.wait_ns(500);
  EXPECT_GT(link.budget_bytes(500 + wait_ns), 0u);
  EXPECT_EQ(link.budget_bytes(500 + wait_ns - 2), 0u);
}

TEST(LinkClock, another_rate_pays_off_the_same_bytes) {
  LinkClock link(8, 0);
  link.charge(1'000, 4'000);
  link.set_rate(2'000, 80);  // 3000 bytes are owed
  EXPECT_EQ(link.wait_ns(2'000), 301u);
  link.set_rate(2'100, 4);  // 2000 bytes
  EXPECT_EQ(link.wait_ns(2'100), 4'003u);
  link.set_rate(2'200, 0);
  EXPECT_EQ(link.wait_ns(2'200), 0u);
  link.set_rate(2'300, 8);
  EXPECT_EQ(link.wait_ns(2'300), 0u) << "no limit forgives the rest";
}

TEST(LinkClock, burst_is_as_many_bytes_at_any_rate) {
  LinkClock link(0, 1'000);
  for (const double gbps : {8.0, 80.0, 0.8}) {
    link.set_rate(1'000'000, gbps);
    EXPECT_EQ(link.budget_bytes(1'000'000), 1'000u) << gbps;
    EXPECT_EQ(link.wait_ns(1'000'000), 0u) << gbps;
  }
}

// A sender that sends as soon as permitted, however late it polls, reaches the rate and never exceeds it.
TEST(LinkClock, random_senders_get_the_rate_and_no_more) {
  for (const double gbps : {0.37, 1.0, 10.0, 333.3}) {
    std::mt19937 random(7);
    constexpr std::uint64_t kBurst = 100'000;
    constexpr std::uint64_t kMaxPacket = 4'200;
    LinkClock link(gbps, kBurst);
    std::uint64_t now_ns = 1'000'000'000;
    const std::uint64_t start_ns = now_ns;
    std::uint64_t sent = 0;
    for (int i = 0; i < 200'000; ++i) {
      if (link.budget_bytes(now_ns) == 0) {
        now_ns += link.wait_ns(now_ns) + random() % 200;
        ASSERT_GT(link.budget_bytes(now_ns), 0u);
      }
      const std::uint64_t bytes = 60 + random() % (kMaxPacket - 60);
      link.charge(now_ns, bytes);
      sent += bytes;
      const double permitted =
          static_cast<double>(now_ns - start_ns) * gbps / 8 + static_cast<double>(kBurst + kMaxPacket);
      ASSERT_LE(static_cast<double>(sent), permitted + 1);
    }
    const double elapsed_ns = static_cast<double>(now_ns - start_ns);
    EXPECT_GT(static_cast<double>(sent) * 8 / elapsed_ns, gbps * 0.99) << gbps << " Gb/s";
  }
}

}  // namespace link_clock_test
}  // namespace gdx::softhca
