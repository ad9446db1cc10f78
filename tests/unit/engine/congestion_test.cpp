// Marked packets slow their sender down, and it recovers: in time that the test counts.
#include <gtest/gtest.h>

#include <algorithm>

#include "proto/roce/codec.h"
#include "tests/unit/engine/virtual_pair.h"

namespace gdx::softhca::test {
namespace congestion_test {

constexpr std::uint32_t kBytes = 4 << 20;
constexpr std::size_t kTarget = 8 << 20;
constexpr double kRateGbps = 10;

HcaConfig limited() {
  HcaConfig config;
  config.rate_gbps = kRateGbps;
  return config;
}

class Congestion : public testing::Test {
 protected:
  // Returns the time of a write of kBytes from a to b.
  std::uint64_t write_ns() {
    const std::uint64_t start_ns = pair.now_ns;
    pair.a.post_write(pair.a.local(0, kBytes), pair.b.remote(kTarget));
    pair.a.ring();
    EXPECT_TRUE(pair.run([&] { return pair.a.poll_send().has_value(); }));
    return pair.now_ns - start_ns;
  }
  [[nodiscard]] HcaCounters of_a() { return pair.a.hca->counters(); }
  [[nodiscard]] HcaCounters of_b() { return pair.b.hca->counters(); }

  // A notification for a's queue pair, as if from `source`.
  void notify_a(const wire::Address& source, std::size_t payload_bytes = roce::kNotificationBytes) {
    roce::Headers headers{};
    headers.bth.opcode = roce::Opcode::kCongestionNotification;
    headers.bth.pkey = roce::kDefaultPkey;
    headers.bth.destination_qpn = pair.a.qpn;
    std::vector<std::byte> datagram(roce::kBthBytes + payload_bytes);
    ASSERT_EQ(roce::encode(headers, datagram), roce::kBthBytes);
    pair.to_a.push_back({source, datagram, pair.marks});
    pair.a.hca->progress();
  }

  void send_of_a() {
    pair.a.post_write(pair.a.local(0, 64), pair.b.remote(kTarget));
    pair.a.ring();
    EXPECT_TRUE(pair.run([&] { return pair.a.poll_send().has_value(); }));
  }
  // A notification in each of 12 intervals, after a packet that it could answer.
  void slow_a() {
    send_of_a();
    for (int i = 0; i < 12; ++i) {
      notify_a(pair.b.hca->address());
      pair.now_ns += 50'000;
    }
  }

  VirtualPair pair{limited()};
};

TEST_F(Congestion, marked_flow_slows_down_and_recovers_when_the_marks_end) {
  const std::uint64_t free_ns = write_ns();
  EXPECT_EQ(of_b().notifications_sent, 0u);
  pair.marks = true;
  const std::uint64_t start_ns = pair.now_ns;
  const std::uint64_t marked_ns = write_ns();
  EXPECT_GT(marked_ns, 4 * free_ns);
  EXPECT_GE(of_b().marked_packets, kBytes / 4096);
  EXPECT_EQ(of_a().notifications_heeded, of_b().notifications_sent);
  EXPECT_LE(of_b().notifications_sent, (pair.now_ns - start_ns) / 50'000 + 1) << "one in 50 us";
  EXPECT_GT(of_b().notifications_sent, 5u);

  pair.marks = false;
  const std::uint64_t first_ns = write_ns();
  EXPECT_LT(first_ns, marked_ns);
  int writes = 1;
  for (; writes < 200 && write_ns() > free_ns + free_ns / 50; ++writes) {
  }
  EXPECT_LT(writes, 200) << "it never got back to the line's rate";
  EXPECT_EQ(of_a().transport.retransmitted_packets, 0u) << "slow, and nothing lost";
}

TEST_F(Congestion, notification_has_the_form_of_annex_a17) {
  pair.marks = true;
  pair.a.post_write(pair.a.local(0, 64), pair.b.remote(kTarget));
  pair.a.ring();
  pair.a.hca->progress();
  pair.b.hca->progress();
  const auto found = std::find_if(pair.to_a.begin(), pair.to_a.end(), [](const VirtualPacket& packet) {
    return packet.datagram[0] == std::byte{0x81};
  });
  ASSERT_NE(found, pair.to_a.end());
  ASSERT_EQ(found->datagram.size(), 12u + 16u);
  const auto byte = [&](std::size_t i) { return static_cast<unsigned>(found->datagram[i]); };
  EXPECT_EQ(byte(1), 0u) << "no SE, M, padding, version";
  EXPECT_EQ(byte(2) << 8 | byte(3), 0xffffu);
  EXPECT_EQ(byte(4), 0x40u) << "BECN";
  EXPECT_EQ(byte(5) << 16 | byte(6) << 8 | byte(7), pair.a.qpn);
  EXPECT_TRUE(std::all_of(found->datagram.begin() + 8, found->datagram.end(), [](std::byte b) {
    return b == std::byte{0};
  })) << "no AckReq, PSN 0, 16 bytes reserved";
}

TEST_F(Congestion, notifications_of_strangers_and_of_another_length_are_dropped) {
  send_of_a();
  const std::uint64_t dropped = of_a().dropped_packets;
  notify_a(wire::Address::ipv4(0x0a0000ff));
  notify_a(pair.b.hca->address(), 12);
  EXPECT_EQ(of_a().notifications_heeded, 0u);
  EXPECT_EQ(of_a().dropped_packets - dropped, 2u);
}

TEST_F(Congestion, notification_to_a_queue_pair_that_sent_nothing_is_dropped) {
  notify_a(pair.b.hca->address());
  EXPECT_EQ(of_a().notifications_heeded, 0u);
  EXPECT_EQ(of_a().dropped_packets, 1u);
}

TEST_F(Congestion, marked_notification_draws_none) {
  send_of_a();
  pair.marks = true;
  notify_a(pair.b.hca->address());
  EXPECT_EQ(of_a().notifications_heeded, 1u);
  EXPECT_TRUE(pair.to_b.empty());
}

TEST_F(Congestion, held_back_queue_pair_still_acknowledges) {
  slow_a();
  pair.a.post_write(pair.a.local(0, kBytes), pair.b.remote(kTarget));
  pair.a.ring();
  pair.b.post_write(pair.b.local(0, 65'536), pair.a.remote(kTarget));
  pair.b.ring();
  EXPECT_TRUE(pair.run([&] { return pair.b.poll_send().has_value(); }, 100'000));
  EXPECT_FALSE(pair.a.poll_send()) << "its own write waits";
  while (!pair.to_a.empty()) pair.a.hca->progress();
  pair.a.hca->progress();
  EXPECT_GT(pair.a.hca->idle_ns(), 0u) << "and its thread may sleep";
}

TEST_F(Congestion, acknowledging_a_stream_takes_nothing_of_the_rate) {
  constexpr std::uint32_t kOwnBytes = 64 << 10;
  int streamed = 0;
  const auto own_write_ns = [&](bool streams) {
    const auto stream = [&] {
      pair.b.post_write(pair.b.local(0, 64), pair.a.remote(0));
      pair.b.ring();
    };
    while (write_ns() > 4'000'000) {  // until nothing limits it
    }
    slow_a();
    const std::uint64_t start_ns = pair.now_ns;
    for (int i = 0; streams && i < 8; ++i) stream();
    pair.a.post_write(pair.a.local(0, kOwnBytes), pair.b.remote(kTarget));
    pair.a.ring();
    EXPECT_TRUE(pair.run([&] {
      for (; pair.b.poll_send(); ++streamed) stream();
      return pair.a.poll_send().has_value();
    }));
    return pair.now_ns - start_ns;
  };
  const std::uint64_t alone_ns = own_write_ns(false);
  const std::uint64_t beside_a_stream_ns = own_write_ns(true);
  EXPECT_GT(streamed, 100);
  EXPECT_LT(beside_a_stream_ns, alone_ns + alone_ns / 10);
}

TEST_F(Congestion, responder_of_a_read_slows_down_too) {
  const auto read_ns = [&] {
    const std::uint64_t start_ns = pair.now_ns;
    pair.b.post_read(pair.b.local(0, kBytes), pair.a.remote(0));
    pair.b.ring();
    EXPECT_TRUE(pair.run([&] { return pair.b.poll_send().has_value(); }));
    return pair.now_ns - start_ns;
  };
  const std::uint64_t free_ns = read_ns();
  pair.marks = true;
  EXPECT_GT(read_ns(), 4 * free_ns);
  EXPECT_GT(of_a().notifications_heeded, 5u);
}

TEST_F(Congestion, reset_queue_pair_forgets_its_congestion) {
  slow_a();
  QpAttributes attributes;
  attributes.state = QpState::kReset;
  ASSERT_EQ(pair.a.hca->modify_qp(pair.a.qpn, kQpState, attributes), 0);
  ASSERT_EQ(pair.b.hca->modify_qp(pair.b.qpn, kQpState, attributes), 0);
  pair.a.connect(pair.b, 20);
  pair.b.connect(pair.a, 20);
  EXPECT_LT(write_ns(), 5'000'000u) << "4 MiB at 10 Gb/s are 3.4 ms";
}

TEST(CongestionOff, nobody_is_told_and_nobody_heeds) {
  HcaConfig config = limited();
  config.congestion_control = CongestionControl::kNone;
  VirtualPair pair(config, config);
  pair.marks = true;
  pair.a.post_write(pair.a.local(0, kBytes), pair.b.remote(kTarget));
  pair.a.ring();
  EXPECT_TRUE(pair.run([&] { return pair.a.poll_send().has_value(); }, 5'000'000));
  EXPECT_GT(pair.b.hca->counters().marked_packets, 0u);
  EXPECT_EQ(pair.b.hca->counters().notifications_sent, 0u);
}

}  // namespace congestion_test
}  // namespace gdx::softhca::test
