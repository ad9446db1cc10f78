// A tail without an answer is sent again long before a patient ACK timeout, which alone takes retries.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "driver-shim/softhca/transport/requester.h"
#include "tests/unit/transport/recording_ports.h"

namespace gdx::softhca::transport {
namespace tail_resend_test {

using mlx5::Syndrome;
using mlx5::WqeOpcode;
using roce::Opcode;
using test::kAll;
using test::kMtu;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

constexpr std::uint64_t kMs = 1'000'000;

class TailResend : public testing::Test {
 protected:
  static RcConfig config() {
    RcConfig patient = test::make_config();
    patient.ack_timeout = 20;  // 4.3 s
    patient.retry_count = 1;
    return patient;
  }
  void post(WqeOpcode opcode, std::uint32_t length_bytes) {
    WorkRequest request;
    request.opcode = opcode;
    request.length_bytes = length_bytes;
    request.remote_address = test::kAddress;
    request.cookie = next_cookie++;
    requester.post(request);
  }
  std::vector<std::uint32_t> pump() {
    requester.pump(now_ns, kAll);
    return port.take_psns();
  }
  void answer(Opcode opcode, std::uint32_t psn, std::uint8_t syndrome = roce::kAethAck) {
    roce::Headers headers;
    headers.bth.opcode = opcode;
    headers.bth.psn = psn;
    headers.aeth.syndrome = syndrome;
    requester.on_packet(now_ns, headers, {});
  }
  void acknowledge(std::uint32_t psn) { answer(Opcode::kRcAcknowledge, psn); }
  void expect_timer(std::uint64_t wait_ns) {
    ASSERT_EQ(requester.next_deadline_ns(), now_ns + wait_ns);
    now_ns += wait_ns;
    requester.on_timer(now_ns);
  }
  // Returns the time until a message to a silent peer fails.
  std::uint64_t time_until_dead_ns(std::uint8_t ack_timeout, std::uint8_t retries) {
    RcConfig asked = config();
    asked.ack_timeout = ack_timeout;
    asked.retry_count = retries;
    requester.reconfigure(now_ns, asked);
    const std::uint64_t posted_ns = now_ns;
    post(WqeOpcode::kRdmaWrite, 8);
    pump();
    while (!requester.in_error()) {
      now_ns = requester.next_deadline_ns();
      requester.on_timer(now_ns);
      pump();
    }
    return now_ns - posted_ns;
  }
  // One message there and back, so that the round trip is known.
  void measure(std::uint64_t round_trip_ns) {
    post(WqeOpcode::kRdmaWrite, 8);
    pump();
    now_ns += round_trip_ns;
    acknowledge(requester.next_psn() - 1);
    port.completed.clear();
  }

  test::RecordingRequesterPort port;
  Requester requester{config(), port};
  std::uint64_t now_ns = 1000;
  std::uint64_t next_cookie = 0;
};

// Mean and deviation of RFC 6298 give each wait to the nanosecond.
TEST(RoundTripTime, wait_is_the_mean_and_four_deviations_within_its_bounds) {
  RoundTrip round_trip;
  EXPECT_EQ(round_trip.wait_ns(0), 30 * kMs);
  std::uint64_t now_ns = 0;
  ExtendedPsn psn = 0;
  const auto sample = [&](std::uint64_t took_ns) {
    round_trip.begin(now_ns, ++psn);
    round_trip.begin(now_ns + 1, psn + 5);
    EXPECT_FALSE(round_trip.end(now_ns + took_ns - 1, psn - 1)) << "of an earlier packet";
    EXPECT_TRUE(round_trip.end(now_ns + took_ns, psn));
    EXPECT_FALSE(round_trip.end(now_ns + took_ns, psn)) << "once";
    now_ns += 1'000 * kMs;
    return round_trip.wait_ns(0);
  };
  EXPECT_EQ(sample(8 * kMs), 24 * kMs);     // 8 and 4
  EXPECT_EQ(sample(4 * kMs), 23'500'000u);  // 7.5 and 4
  EXPECT_EQ(sample(4 * kMs), 22'562'500u);  // 7.0625 and 3.875
  round_trip.begin(now_ns, ++psn);
  round_trip.forget();
  EXPECT_FALSE(round_trip.end(now_ns, psn));
  const std::uint64_t once_ns = round_trip.wait_ns(0);
  EXPECT_EQ(round_trip.wait_ns(1), 2 * once_ns);
  EXPECT_EQ(round_trip.wait_ns(2), 4 * once_ns);
  EXPECT_EQ(round_trip.wait_ns(9), 100 * kMs);
  EXPECT_EQ(sample(400 * kMs), 2 * 56'179'687u) << "a path slower than the bounds: twice its mean";
  RoundTrip fast;
  fast.begin(0, 1);
  EXPECT_TRUE(fast.end(1'000, 2));
  EXPECT_EQ(fast.wait_ns(0), 10 * kMs);
  EXPECT_EQ(fast.wait_ns(4), 100 * kMs);
}

TEST_F(TailResend, oldest_and_newest_packet_go_again_and_ask) {
  measure(20'000);
  post(WqeOpcode::kRdmaWrite, 4 * kMtu);
  EXPECT_THAT(pump(), ElementsAre(101, 102, 103, 104));
  expect_timer(10 * kMs);
  EXPECT_GT(requester.next_deadline_ns(), now_ns) << "once";
  EXPECT_TRUE(requester.can_send(now_ns));
  requester.pump(now_ns, kAll);
  ASSERT_EQ(port.sent.size(), 2u);
  EXPECT_EQ(port.sent[0].headers.bth.opcode, Opcode::kRcWriteFirst);
  EXPECT_TRUE(port.sent[0].headers.bth.ack_request);
  EXPECT_EQ(port.sent[1].headers.bth.psn, 104u);
  EXPECT_EQ(port.sent[1].offset_bytes, 3 * kMtu);
  EXPECT_FALSE(requester.can_send(now_ns)) << "what is only late is not sent again";
  EXPECT_THAT(port.resends, ElementsAre(Pair(ResendCause::kTail, 101), Pair(ResendCause::kTail, 104)));
  EXPECT_EQ(requester.counters().retransmitted_packets, 2u);
  EXPECT_EQ(requester.counters().packets_sent, 7u);
  EXPECT_EQ(requester.counters().tail_resends, 2u);
  EXPECT_EQ(requester.counters().timeouts, 0u);
  acknowledge(104);
  EXPECT_THAT(port.completed, ElementsAre(Pair(1, Syndrome::kNone)));
  EXPECT_EQ(requester.next_deadline_ns(), kNever);
}

// Two messages that ask, and a long one that has begun: packets after the tail are those that it came
// between.
TEST_F(TailResend, message_goes_on_after_it_and_asks_as_if_it_had_not_been) {
  measure(20'000);
  post(WqeOpcode::kRdmaWrite, 8);
  post(WqeOpcode::kRdmaWrite, 8);
  post(WqeOpcode::kRdmaWrite, 80 * kMtu);
  EXPECT_EQ(requester.pump(now_ns, 12), 12u);
  port.sent.clear();
  expect_timer(10 * kMs);
  EXPECT_EQ(requester.pump(now_ns, 1), 1u);
  EXPECT_THAT(port.take_psns(), ElementsAre(101));
  EXPECT_EQ(requester.pump(now_ns, kAll), 71u);
  ASSERT_EQ(port.sent.size(), 71u);
  EXPECT_EQ(port.sent[0].cookie, 2u);
  std::vector<std::uint32_t> asking;
  for (std::uint32_t i = 0; i < 71; ++i) {
    const roce::Bth& bth = port.sent[i].headers.bth;
    EXPECT_EQ(bth.psn, i == 0 ? 102 : 112 + i);
    if (bth.ack_request) asking.push_back(bth.psn);
  }
  EXPECT_THAT(asking, ElementsAre(102, 134, 166, 182));
}

TEST_F(TailResend, memory_that_has_gone_since_fails_its_message) {
  measure(20'000);
  post(WqeOpcode::kRdmaWrite, 8);
  pump();
  port.send_fails_for = 1;
  expect_timer(10 * kMs);
  pump();
  EXPECT_THAT(port.completed, ElementsAre(Pair(1, Syndrome::kLocalProtection)));
}

TEST_F(TailResend, single_packet_goes_once_at_a_time_and_less_often_each_time) {
  measure(20'000);
  post(WqeOpcode::kRdmaWrite, 8);
  EXPECT_THAT(pump(), ElementsAre(101));
  for (const std::uint64_t wait_ms : {10, 20, 40, 80, 100, 100}) {
    expect_timer(wait_ms * kMs);
    EXPECT_THAT(pump(), ElementsAre(101)) << wait_ms << " ms";
  }
  acknowledge(101);
  post(WqeOpcode::kRdmaWrite, 8);
  pump();
  EXPECT_EQ(requester.next_deadline_ns(), now_ns + 40 * kMs)
      << "whether that answered the last sending is open";
  acknowledge(102);
  post(WqeOpcode::kRdmaWrite, 8);
  pump();
  EXPECT_EQ(requester.next_deadline_ns(), now_ns + 10 * kMs) << "a timed answer begins anew";
}

// A refusal is an answer, so the next wait is short again.
TEST_F(TailResend, nak_begins_the_waits_anew) {
  for (const std::uint8_t nak :
       {std::uint8_t{roce::kAethKindRnr | 1}, std::uint8_t{roce::kNakSequenceError}}) {
    measure(20'000);
    post(WqeOpcode::kRdmaWrite, 8);
    const std::uint32_t psn = requester.next_psn();
    pump();
    for (const std::uint64_t wait_ms : {10, 20, 40}) {
      expect_timer(wait_ms * kMs);
      pump();
    }
    answer(Opcode::kRcAcknowledge, psn, nak);
    now_ns += kMs;
    requester.on_timer(now_ns);
    pump();
    EXPECT_EQ(requester.next_deadline_ns(), now_ns + 10 * kMs);
    acknowledge(psn);
    port.completed.clear();
  }
}

TEST_F(TailResend, nak_after_which_nothing_goes_again_leaves_the_waits_as_they_are) {
  measure(20'000);
  post(WqeOpcode::kRdmaWrite, 4 * kMtu);
  pump();
  answer(Opcode::kRcAcknowledge, 101, roce::kNakSequenceError);
  EXPECT_THAT(pump(), ElementsAre(101, 102, 103, 104));
  for (const std::uint64_t wait_ms : {10, 20, 40, 80}) {
    expect_timer(wait_ms * kMs);
    EXPECT_THAT(pump(), ElementsAre(101, 104)) << wait_ms << " ms";
    answer(Opcode::kRcAcknowledge, 101, roce::kNakSequenceError);
    EXPECT_THAT(pump(), IsEmpty());
  }
}

TEST_F(TailResend, slow_path_is_learned_and_then_waited_for) {
  constexpr std::uint64_t kPathNs = 50 * kMs;
  for (int burst = 0; burst < 3; ++burst) {
    post(WqeOpcode::kRdmaWrite, 8);
    EXPECT_EQ(pump().size(), 1u);
    const std::uint64_t answered_ns = now_ns + kPathNs;
    while (requester.next_deadline_ns() < answered_ns) {
      EXPECT_EQ(burst, 0) << "sent again although the path is known";
      now_ns = requester.next_deadline_ns();
      requester.on_timer(now_ns);
      pump();
    }
    now_ns = answered_ns;
    acknowledge(static_cast<std::uint32_t>(100 + burst));
  }
}

TEST_F(TailResend, twice_lost_is_back_within_100_ms) {
  post(WqeOpcode::kRdmaWrite, 8);
  pump();
  expect_timer(30 * kMs);
  pump();
  expect_timer(60 * kMs);
  EXPECT_THAT(pump(), ElementsAre(100));
}

// The wait of no try grows: the program has asked for more than a second.
TEST_F(TailResend, asked_timeout_decides_when_the_peer_is_dead) {
  const std::uint64_t asked_ns = 4096ull << 20;
  EXPECT_EQ(time_until_dead_ns(20, 7), 8 * asked_ns) << "34 s";
  EXPECT_EQ(requester.counters().timeouts, 8u);
  EXPECT_THAT(port.completed, ElementsAre(Pair(0, Syndrome::kRetryExceeded)));
}

TEST_F(TailResend, short_timeouts_grow_fourfold) {
  EXPECT_EQ(time_until_dead_ns(14, 7), (1 + 2 + 6 * 4) * (4096ull << 14)) << "1.8 s";
}

TEST_F(TailResend, timeouts_grow_to_a_second_at_most) {
  const std::uint64_t asked_ns = 4096ull << 17;
  EXPECT_EQ(time_until_dead_ns(17, 3), asked_ns + 3 * 1000 * kMs);
}

TEST_F(TailResend, read_is_asked_for_from_the_missing_point) {
  measure(20'000);
  post(WqeOpcode::kRdmaRead, 3 * kMtu);
  post(WqeOpcode::kRdmaWrite, 8);
  EXPECT_THAT(pump(), ElementsAre(101, 104));
  roce::Headers first;
  first.bth.opcode = Opcode::kRcReadResponseFirst;
  first.bth.psn = 101;
  first.aeth.syndrome = roce::kAethAck;
  requester.on_packet(now_ns, first, std::vector<std::byte>(kMtu));
  expect_timer(10 * kMs);
  requester.pump(now_ns, kAll);
  ASSERT_EQ(port.sent.size(), 2u);
  EXPECT_EQ(port.sent[0].headers.bth.psn, 102u);
  EXPECT_EQ(port.sent[0].headers.reth.address, test::kAddress + kMtu);
  EXPECT_EQ(port.sent[0].headers.reth.length_bytes, 2 * kMtu);
  EXPECT_EQ(port.sent[1].headers.bth.psn, 104u);
}

TEST_F(TailResend, nak_that_it_draws_brings_the_rest) {
  measure(20'000);
  post(WqeOpcode::kRdmaWrite, 4 * kMtu);
  pump();
  expect_timer(10 * kMs);
  pump();
  acknowledge(101);
  EXPECT_THAT(pump(), IsEmpty());
  answer(Opcode::kRcAcknowledge, 102, roce::kNakSequenceError);
  EXPECT_THAT(pump(), ElementsAre(102, 103, 104));
}

TEST_F(TailResend, queue_pair_without_a_timeout_has_no_timer) {
  RcConfig endless = config();
  endless.ack_timeout = 0;
  requester.reconfigure(now_ns, endless);
  post(WqeOpcode::kRdmaWrite, 8);
  pump();
  EXPECT_EQ(requester.next_deadline_ns(), kNever);
}

}  // namespace tail_resend_test
}  // namespace gdx::softhca::transport
