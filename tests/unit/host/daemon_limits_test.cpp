#include <gtest/gtest.h>

#include "host/daemon/group.h"

namespace gdx::daemon {
namespace daemon_limits_test {

constexpr std::uint64_t kSecondNs = 1'000'000'000;

// A second's worth goes at once, then each waits for its turn. Idle time gives back no more than that.
TEST(DaemonRate, a_second_of_requests_goes_at_once_and_the_rest_waits) {
  Rate rate(1000, 20);
  std::uint64_t now_ns = 5 * kSecondNs;
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(rate.take(now_ns), 0u) << i;
  for (std::uint64_t i = 1; i <= 10; ++i) EXPECT_EQ(rate.take(now_ns), i * kSecondNs / 1000);
  now_ns += 10 * kSecondNs / 1000;
  EXPECT_EQ(rate.take(now_ns), kSecondNs / 1000);
  now_ns += 100 * kSecondNs;
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(rate.take(now_ns), 0u) << i;
  EXPECT_EQ(rate.take(now_ns), kSecondNs / 1000);
}

// Turns of connections that have gone are not waited for by all others.
TEST(DaemonRate, nobody_waits_for_longer_than_all_who_may_wait_at_once) {
  Rate rate(1000, 20);
  const std::uint64_t now_ns = 5 * kSecondNs;
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(rate.take(now_ns), 0u) << i;
  for (int i = 0; i < 100; ++i) ASSERT_LE(rate.take(now_ns), 20 * kSecondNs / 1000) << i;
  EXPECT_EQ(rate.take(now_ns), 20 * kSecondNs / 1000);
  EXPECT_EQ(rate.take(now_ns + 10 * kSecondNs / 1000), 11 * kSecondNs / 1000);
}

}  // namespace daemon_limits_test
}  // namespace gdx::daemon
