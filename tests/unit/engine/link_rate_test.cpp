// A link with a rate: packets wait in their queue pair, and nothing is lost or sent again.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/engine/virtual_pair.h"

namespace gdx::softhca::test {
namespace link_rate_test {

constexpr std::uint32_t kBytes = 4 << 20;
constexpr std::uint64_t kPacketBytes = 4096 + 12 + 4 + 8 + 20 + 38;  // one amid a WRITE, on the link

HcaConfig limited(double rate_gbps) {
  HcaConfig config;
  config.rate_gbps = rate_gbps;
  return config;
}

TEST(LinkRate, write_takes_as_long_as_the_link_needs_and_no_packet_twice) {
  VirtualPair pair(limited(2));
  std::generate_n(pair.a.memory.begin(), kBytes,
                  [n = 0]() mutable { return static_cast<std::byte>(n++ * 7); });
  const std::uint64_t start_ns = pair.now_ns;
  pair.a.post_write(pair.a.local(0, kBytes), pair.b.remote(8 << 20));
  pair.a.ring();
  std::uint64_t most_ahead = 0;
  const bool completed = pair.run([&] {
    const std::uint64_t permitted = (pair.now_ns - start_ns) / 4;  // 2 Gb/s are a byte in 4 ns
    const std::uint64_t sent = pair.packets_of_a() * kPacketBytes;
    most_ahead = std::max(most_ahead, sent > permitted ? sent - permitted : 0);
    return pair.a.poll_send().has_value();
  });
  ASSERT_TRUE(completed);
  EXPECT_TRUE(
      std::equal(pair.a.memory.begin(), pair.a.memory.begin() + kBytes, pair.b.memory.begin() + (8 << 20)));
  // A burst of 64 KiB and 100 us at the start, what a step adds, then the rate.
  constexpr std::uint64_t kBurst = 65'536 + 25'000 + 2 * kPacketBytes;
  EXPECT_LE(most_ahead, kBurst);
  EXPECT_GE(most_ahead, 65'536u + 25'000u) << "the whole burst";
  const double seconds = static_cast<double>(pair.now_ns - start_ns) * 1e-9;
  const double on_link = kBytes / 4096.0 * static_cast<double>(kPacketBytes);
  EXPECT_GE(seconds, (on_link - static_cast<double>(kBurst)) * 8 / 2e9);
  EXPECT_LE(seconds, on_link * 8 / 2e9 * 1.01);
  const HcaCounters counters = pair.a.hca->counters();
  EXPECT_EQ(counters.transport.retransmitted_packets, 0u);
  EXPECT_EQ(counters.transport.packets_sent, kBytes / 4096);
}

TEST(LinkRate, idle_time_is_until_the_link_is_free_again) {
  VirtualPair pair(limited(0.1));
  pair.a.post_write(pair.a.local(0, kBytes), pair.b.remote(8 << 20));
  pair.a.ring();
  pair.a.hca->progress();
  const std::uint64_t idle_ns = pair.a.hca->idle_ns();
  EXPECT_GT(idle_ns, 0u);
  EXPECT_LE(idle_ns, kPacketBytes * 80) << "the packet that went beyond the budget, at 10 MB/s";
  const std::uint64_t sent = pair.packets_of_a();
  pair.now_ns += idle_ns;
  pair.a.hca->progress();
  EXPECT_GT(pair.packets_of_a(), sent);
}

// 32 packets, after which the requester asks for an ACK, take three timeouts here.
TEST(LinkRate, timer_does_not_run_while_packets_wait_for_the_link) {
  constexpr std::uint32_t kFewBytes = 256 << 10;
  constexpr std::uint8_t kImpatient = 12;  // 16.8 ms
  VirtualPair pair(limited(0.02), {}, kImpatient);
  pair.a.post_write(pair.a.local(0, kFewBytes), pair.b.remote(8 << 20));
  pair.a.ring();
  ASSERT_TRUE(pair.run([&] { return pair.a.poll_send().has_value(); }));
  EXPECT_EQ(pair.a.hca->counters().transport.timeouts, 0u);
  EXPECT_EQ(pair.a.hca->counters().transport.packets_sent, kFewBytes / 4096);
}

// The responder of a READ is a sender too.
TEST(LinkRate, read_is_answered_at_the_responders_rate) {
  VirtualPair pair(limited(2));
  const std::uint64_t start_ns = pair.now_ns;
  pair.b.post_read(pair.b.local(0, kBytes), pair.a.remote(0));
  pair.b.ring();
  ASSERT_TRUE(pair.run([&] { return pair.b.poll_send().has_value(); }));
  EXPECT_GE(pair.now_ns - start_ns, (kBytes - 100'000u) * 4u);
}

// Both directions of a queue pair are senders, and bytes in the peer's memory tell them apart.
TEST(LinkRate, requests_and_responses_of_a_queue_pair_get_half_each) {
  VirtualPair pair(limited(2));
  std::fill_n(pair.a.memory.begin(), kBytes, std::byte{1});
  pair.a.post_write(pair.a.local(0, kBytes), pair.b.remote(8 << 20));
  pair.a.ring();
  pair.b.post_read(pair.b.local(0, kBytes), pair.a.remote(0));
  pair.b.ring();
  static_cast<void>(pair.run([] { return false; }, 8'000'000));
  const auto arrived = [&pair](std::size_t offset) {
    const auto first = pair.b.memory.begin() + static_cast<std::ptrdiff_t>(offset);
    return static_cast<double>(std::count(first, first + kBytes, std::byte{1}));
  };
  EXPECT_GT(arrived(0), 900'000);
  EXPECT_NEAR(arrived(0), arrived(8 << 20), 120'000) << "beside the first burst";
}

// Headers and the gap between frames are most of a small packet.
TEST(LinkRate, small_packets_take_the_link_for_their_headers_too) {
  constexpr int kWrites = 2'000;
  constexpr double kSmallBytes = 8 + 12 + 16 + 4 + 8 + 20 + 38;
  VirtualPair pair(limited(0.1));
  const std::uint64_t start_ns = pair.now_ns;
  for (int done = 0; done < kWrites; done += 250) {
    for (int i = 1; i <= 250; ++i) pair.a.post_write(pair.a.local(0, 8), pair.b.remote(0), i == 250);
    pair.a.ring();
    ASSERT_TRUE(pair.run([&] { return pair.a.poll_send().has_value(); }));
  }
  const double burst_bytes = 65'536 + 1'250;
  const double expected_ns = (kWrites * kSmallBytes - burst_bytes) * 80;
  EXPECT_NEAR(static_cast<double>(pair.now_ns - start_ns), expected_ns, expected_ns * 0.003);
}

TEST(LinkRate, without_a_rate_nothing_waits) {
  VirtualPair pair;
  const std::uint64_t start_ns = pair.now_ns;
  pair.a.post_write(pair.a.local(0, kBytes), pair.b.remote(8 << 20));
  pair.a.ring();
  ASSERT_TRUE(pair.run([&] { return pair.a.poll_send().has_value(); }));
  EXPECT_LE(pair.now_ns - start_ns, 30'000u) << "a few steps, for the window";
}

}  // namespace link_rate_test
}  // namespace gdx::softhca::test
