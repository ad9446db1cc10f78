#include "driver-shim/softhca/transport/credits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "tests/unit/transport/recording_ports.h"

namespace gdx::softhca::transport {
namespace credits_test {

using mlx5::WqeOpcode;
using roce::Opcode;
using test::kAll;
using test::kMtu;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

constexpr std::uint64_t kTimeoutNs = 4096 << 4;
constexpr std::uint64_t kRnrNs = 10'000;

// The AETH's table.
constexpr std::array<std::uint32_t, 31> kCounts{
    0,   1,   2,   3,   4,    6,    8,    12,   16,   24,   32,   48,    64,    96,    128,  192,
    256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768};

TEST(CreditCode, every_count_is_that_of_the_specification) {
  for (std::uint8_t code = 0; code < kCounts.size(); ++code) {
    EXPECT_EQ(credits_of(code), kCounts[code]) << unsigned{code};
  }
}

TEST(CreditCode, any_number_of_receives_gets_the_largest_count_not_above_it) {
  for (std::uint32_t receives = 0; receives <= 70'000; ++receives) {
    const auto above = std::upper_bound(kCounts.begin(), kCounts.end(), receives);
    ASSERT_EQ(credit_code(receives), above - kCounts.begin() - 1) << receives;
  }
}

class HoldingRequester : public testing::Test {
 protected:
  static RcConfig config(std::uint32_t first_msn = 0) {
    RcConfig config = test::make_config();
    config.ack_timeout = 4;
    config.first_msn = first_msn;
    return config;
  }
  explicit HoldingRequester(const RcConfig& config = HoldingRequester::config()) : requester(config, port) {}

  void post(WqeOpcode opcode, std::uint32_t length_bytes = 8) {
    WorkRequest request;
    request.opcode = opcode;
    request.length_bytes = length_bytes;
    request.cookie = next_cookie++;
    requester.post(request);
  }
  void post_sends(int count) {
    for (; count > 0; --count) post(WqeOpcode::kSend);
  }
  std::vector<std::uint32_t> pump() {
    requester.pump(now_ns, kAll);
    return port.take_psns();
  }
  void acknowledge(std::uint32_t psn, std::uint32_t msn, std::uint32_t receives) {
    answer(psn, msn, static_cast<std::uint8_t>(roce::kAethKindAck | credit_code(receives)));
  }
  void answer(std::uint32_t psn, std::uint32_t msn, std::uint8_t syndrome) {
    roce::Headers headers;
    headers.bth.opcode = Opcode::kRcAcknowledge;
    headers.bth.psn = psn;
    headers.aeth = {syndrome, msn};
    requester.on_packet(now_ns, headers, {});
  }
  void refuse(std::uint32_t psn, std::uint32_t msn) { answer(psn, msn, roce::kAethKindRnr | 1); }
  void expire() {
    now_ns = std::max(now_ns, requester.next_deadline_ns());
    requester.on_timer(now_ns);
  }

  test::RecordingRequesterPort port;
  Requester requester;
  std::uint64_t now_ns = 1000;
  std::uint64_t next_cookie = 0;
};

TEST_F(HoldingRequester, before_any_ack_one_message_asks_and_the_others_follow_what_is_advertised) {
  post_sends(5);
  EXPECT_THAT(pump(), ElementsAre(100));
  acknowledge(100, 1, 2);
  EXPECT_THAT(pump(), ElementsAre(101, 102));
  EXPECT_FALSE(requester.can_send(now_ns));
  acknowledge(102, 3, 0);
  EXPECT_THAT(pump(), IsEmpty());
  EXPECT_EQ(requester.counters().credit_waits, 2u);
  acknowledge(102, 3, 100);  // word of receives: nothing new is acknowledged
  EXPECT_THAT(pump(), ElementsAre(103, 104));
  EXPECT_EQ(requester.counters().credit_probes, 0u);
}

TEST_F(HoldingRequester, peer_without_credits_bounds_nothing_once_it_has_answered) {
  post_sends(200);
  EXPECT_THAT(pump(), ElementsAre(100));
  answer(100, 1, roce::kAethAck);
  EXPECT_EQ(pump().size(), std::size_t{test::make_config().max_unacked_packets});
  answer(110, 11, roce::kAethKindAck);  // and no later count binds it
  EXPECT_TRUE(requester.can_send(now_ns));
}

TEST_F(HoldingRequester, first_message_beyond_what_acks_of_writes_permit_asks_at_once) {
  post(WqeOpcode::kRdmaWrite);
  pump();
  acknowledge(100, 1, 0);
  post_sends(2);
  EXPECT_THAT(pump(), ElementsAre(101));
}

TEST_F(HoldingRequester, peer_that_stops_counting_bounds_nothing_any_more) {
  post_sends(1);
  pump();
  acknowledge(100, 1, 0);
  post_sends(3);
  EXPECT_FALSE(requester.can_send(now_ns));
  expire();  // starts the wait before a probe
  EXPECT_NE(requester.next_deadline_ns(), kNever);
  answer(100, 1, roce::kAethAck);
  EXPECT_EQ(requester.next_deadline_ns(), kNever);
  EXPECT_THAT(pump(), ElementsAre(101, 102, 103));
}

TEST_F(HoldingRequester, peer_that_refuses_before_any_ack_is_asked_after_the_rnr_timer) {
  post_sends(2);
  pump();
  refuse(100, 0);
  EXPECT_EQ(requester.next_deadline_ns(), now_ns + kRnrNs);
  expire();
  EXPECT_THAT(pump(), ElementsAre(100));
}

TEST_F(HoldingRequester, writes_and_reads_need_no_receive) {
  post(WqeOpcode::kRdmaWrite);
  pump();
  acknowledge(100, 1, 0);
  post(WqeOpcode::kRdmaWrite);
  post(WqeOpcode::kRdmaRead);
  EXPECT_THAT(pump(), ElementsAre(101, 102));
}

TEST_F(HoldingRequester, late_ack_takes_nothing_back) {
  post_sends(1);
  pump();
  acknowledge(100, 1, 8);
  post_sends(3);
  EXPECT_THAT(pump(), ElementsAre(101, 102, 103));
  acknowledge(103, 4, 8);
  acknowledge(101, 2, 0);
  post_sends(1);
  EXPECT_THAT(pump(), ElementsAre(104));
}

TEST_F(HoldingRequester, held_message_without_word_asks_after_the_timeout_with_one_packet) {
  post_sends(1);
  pump();
  acknowledge(100, 1, 0);
  post(WqeOpcode::kSend, 3 * kMtu);
  EXPECT_FALSE(requester.can_send(now_ns));
  expire();  // starts the wait
  EXPECT_EQ(requester.next_deadline_ns(), now_ns + kTimeoutNs);
  expire();
  requester.pump(now_ns, kAll);
  ASSERT_EQ(port.sent.size(), 1u);
  EXPECT_EQ(port.sent[0].headers.bth.opcode, Opcode::kRcSendFirst);
  EXPECT_TRUE(port.sent[0].headers.bth.ack_request);
  EXPECT_EQ(requester.counters().credit_probes, 1u);
  port.sent.clear();
  acknowledge(101, 1, 0);  // it has its receive now
  EXPECT_THAT(pump(), ElementsAre(102, 103));
}

TEST_F(HoldingRequester, held_message_asks_after_40_ms_however_patient_its_timeout) {
  RcConfig patient = config();
  patient.ack_timeout = 20;
  requester.reconfigure(now_ns, patient);
  post_sends(1);
  pump();
  acknowledge(100, 1, 0);
  post_sends(1);
  EXPECT_EQ(requester.next_deadline_ns(), 0u);
  requester.on_timer(now_ns);
  EXPECT_EQ(requester.next_deadline_ns(), now_ns + 40'000'000);
  now_ns += 39'999'999;
  requester.on_timer(now_ns);
  EXPECT_THAT(pump(), IsEmpty());
  now_ns += 1;
  requester.on_timer(now_ns);
  EXPECT_THAT(pump(), ElementsAre(101));
}

TEST_F(HoldingRequester, ack_that_tells_nothing_new_does_not_put_off_asking) {
  post_sends(1);
  pump();
  acknowledge(100, 1, 0);
  post_sends(1);
  expire();  // starts the wait
  const std::uint64_t asks_ns = requester.next_deadline_ns();
  now_ns += kTimeoutNs / 2;
  acknowledge(100, 1, 0);
  requester.on_timer(now_ns);
  EXPECT_EQ(requester.next_deadline_ns(), asks_ns);
}

TEST_F(HoldingRequester, refused_probe_waits_for_word_and_not_only_for_the_rnr_timer) {
  post_sends(1);
  pump();
  acknowledge(100, 1, 0);
  post_sends(1);
  expire();
  expire();
  EXPECT_THAT(pump(), ElementsAre(101));
  refuse(101, 1);
  expire();  // starts the wait
  now_ns += kRnrNs;
  requester.on_timer(now_ns);
  EXPECT_THAT(pump(), IsEmpty());
  EXPECT_EQ(requester.next_deadline_ns(), now_ns - kRnrNs + kTimeoutNs);
  acknowledge(100, 1, 1);
  EXPECT_THAT(pump(), ElementsAre(101));
}

TEST_F(HoldingRequester, probe_that_nobody_answers_ends_in_retries_exceeded) {
  post_sends(1);
  pump();
  acknowledge(100, 1, 0);
  post_sends(1);
  for (int i = 0; i < 10 && !requester.in_error(); ++i) {
    expire();
    pump();
  }
  EXPECT_EQ(port.completed.back(),
            (std::pair<std::uint64_t, mlx5::Syndrome>{1, mlx5::Syndrome::kRetryExceeded}));
}

TEST_F(HoldingRequester, write_with_immediate_refused_at_its_last_packet_goes_on_when_told) {
  post_sends(1);
  pump();
  acknowledge(100, 1, 0);
  post(WqeOpcode::kRdmaWriteImmediate, 3 * kMtu);
  expire();
  expire();
  EXPECT_THAT(pump(), ElementsAre(101, 102, 103));
  refuse(103, 1);
  acknowledge(102, 1, 1);
  now_ns += kRnrNs;
  EXPECT_THAT(pump(), ElementsAre(103));
}

class WrappingRequester : public HoldingRequester {
 protected:
  WrappingRequester() : HoldingRequester(config(0xfffffe)) {}
};

TEST_F(WrappingRequester, limit_beyond_the_wrap_permits_what_is_before_it) {
  post_sends(6);
  EXPECT_THAT(pump(), ElementsAre(100));
  acknowledge(100, 0xffffff, 3);
  EXPECT_THAT(pump(), ElementsAre(101, 102, 103));
  acknowledge(103, 2, 0);
  EXPECT_THAT(pump(), IsEmpty());
  acknowledge(103, 2, 1);
  EXPECT_THAT(pump(), ElementsAre(104));
}

class AdvertisingResponder : public testing::Test {
 protected:
  void receive(Opcode opcode, std::uint32_t psn, std::uint32_t length_bytes = 8) {
    roce::Headers headers;
    headers.bth.opcode = opcode;
    headers.bth.psn = psn;
    headers.bth.ack_request = true;
    headers.reth = {test::kAddress, test::kRkey, length_bytes};
    headers.atomic = {test::kAddress, test::kRkey, 7, 0};
    const std::vector<std::byte> payload(opcode == Opcode::kRcReadRequest ? 0 : length_bytes);
    responder.on_packet(0, headers, payload);
  }
  // PSN and syndrome of what was sent since the last call.
  std::vector<std::pair<std::uint32_t, int>> answers() {
    responder.pump(0, kAll);
    std::vector<std::pair<std::uint32_t, int>> list;
    for (const roce::Headers& headers : port.sent) list.push_back({headers.bth.psn, headers.aeth.syndrome});
    port.sent.clear();
    return list;
  }
  void advertise(int receives) {
    port.advertises = true;
    port.receives = receives;
  }

  test::RecordingResponderPort port;
  Responder responder{test::make_config(), port};
};

TEST_F(AdvertisingResponder, acks_and_responses_count_receives_rounded_down) {
  advertise(6);
  receive(Opcode::kRcSendOnly, 100);
  EXPECT_THAT(answers(), ElementsAre(Pair(100, 4)));  // 5 left: the count below is 4, code 4
  receive(Opcode::kRcReadRequest, 101);
  EXPECT_THAT(answers(), ElementsAre(Pair(101, 4)));
  receive(Opcode::kRcFetchAdd, 102);
  EXPECT_THAT(answers(), ElementsAre(Pair(102, 4)));
}

TEST_F(AdvertisingResponder, shared_receives_are_not_counted_and_nothing_is_watched) {
  port.receives = 1;
  receive(Opcode::kRcSendOnly, 100);
  EXPECT_THAT(answers(), ElementsAre(Pair(100, roce::kAethAck)));
  EXPECT_FALSE(responder.watches_receives());
  receive(Opcode::kRcSendOnly, 101);
  EXPECT_THAT(answers(), ElementsAre(Pair(101, roce::kAethKindRnr | 1)));
  EXPECT_FALSE(responder.watches_receives());
}

TEST_F(AdvertisingResponder, receives_posted_after_none_were_left_draw_one_ack) {
  advertise(1);
  receive(Opcode::kRcSendOnly, 100);
  EXPECT_THAT(answers(), ElementsAre(Pair(100, 0)));
  EXPECT_TRUE(responder.watches_receives());
  EXPECT_FALSE(responder.can_send());
  port.receives = 3;
  EXPECT_TRUE(responder.can_send());
  EXPECT_THAT(answers(), ElementsAre(Pair(100, 3)));
  EXPECT_FALSE(responder.watches_receives());
  EXPECT_FALSE(responder.can_send());
  EXPECT_EQ(responder.counters().credit_updates, 1u);
}

TEST_F(AdvertisingResponder, first_refusal_says_that_more_will_be_told) {
  advertise(0);
  receive(Opcode::kRcSendOnly, 100);
  EXPECT_THAT(answers(), ElementsAre(Pair(100, roce::kAethKindRnr | 1), Pair(99, 0)));
  EXPECT_FALSE(responder.can_send());
  port.receives = 1;
  EXPECT_THAT(answers(), ElementsAre(Pair(99, 1)));
}

TEST_F(AdvertisingResponder, connection_of_writes_alone_is_not_watched) {
  advertise(0);
  receive(Opcode::kRcWriteOnly, 100);
  EXPECT_THAT(answers(), ElementsAre(Pair(100, 0)));
  EXPECT_FALSE(responder.watches_receives());
}

}  // namespace credits_test
}  // namespace gdx::softhca::transport
