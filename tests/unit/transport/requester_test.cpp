#include "driver-shim/softhca/transport/requester.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/transport/recording_ports.h"

namespace gdx::softhca::transport {
namespace requester_test {

using mlx5::Syndrome;
using mlx5::WqeOpcode;
using roce::Opcode;
using test::kAll;
using test::kMtu;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

constexpr std::uint64_t kTimeoutNs = 4096 << 1;

class RequesterTest : public testing::Test {
 protected:
  explicit RequesterTest(const RcConfig& config = test::make_config()) : requester(config, port) {}

  void post(WqeOpcode opcode, std::uint32_t length_bytes, std::uint8_t fm_ce_se = 0) {
    WorkRequest request;
    request.opcode = opcode;
    request.fm_ce_se = fm_ce_se;
    request.length_bytes = length_bytes;
    request.remote_address = test::kAddress;
    request.rkey = test::kRkey;
    request.immediate = 0xabcd;
    request.swap_or_add = 5;
    request.compare = 6;
    request.cookie = next_cookie++;
    requester.post(request);
  }
  std::vector<std::uint32_t> pump() {
    requester.pump(now_ns, kAll);
    return port.take_psns();
  }
  void acknowledge(std::uint32_t psn, std::uint8_t syndrome = roce::kAethAck) {
    roce::Headers headers;
    headers.bth.opcode = Opcode::kRcAcknowledge;
    headers.bth.psn = psn;
    headers.aeth.syndrome = syndrome;
    requester.on_packet(now_ns, headers, {});
  }
  void respond(Opcode opcode, std::uint32_t psn, std::size_t payload_bytes) {
    roce::Headers headers;
    headers.bth.opcode = opcode;
    headers.bth.psn = psn;
    headers.aeth.syndrome = roce::kAethAck;
    headers.atomic_original = 0x1122334455667788;
    const std::vector<std::byte> payload(payload_bytes, std::byte{1});
    requester.on_packet(now_ns, headers, payload);
  }
  void expire() {
    now_ns = requester.next_deadline_ns();
    requester.on_timer(now_ns);
  }

  test::RecordingRequesterPort port;
  Requester requester;
  std::uint64_t now_ns = 1000;
  std::uint64_t next_cookie = 0;
};

TEST_F(RequesterTest, write_of_three_packets_is_segmented_and_completes_on_ack) {
  post(WqeOpcode::kRdmaWrite, 2 * kMtu + 1);
  requester.pump(now_ns, kAll);
  ASSERT_EQ(port.sent.size(), 3u);
  EXPECT_EQ(port.sent[0].headers.bth.opcode, Opcode::kRcWriteFirst);
  EXPECT_EQ(port.sent[0].headers.reth.length_bytes, 2 * kMtu + 1);
  EXPECT_EQ(port.sent[0].headers.bth.destination_qpn, 0x22u);
  EXPECT_EQ(port.sent[1].headers.bth.opcode, Opcode::kRcWriteMiddle);
  EXPECT_EQ(port.sent[2].headers.bth.opcode, Opcode::kRcWriteLast);
  EXPECT_EQ(port.sent[2].offset_bytes, 2 * kMtu);
  EXPECT_EQ(port.sent[2].length_bytes, 1u);
  EXPECT_EQ(port.sent[2].headers.bth.pad_count, 3);
  EXPECT_TRUE(port.sent[2].headers.bth.ack_request);
  EXPECT_FALSE(port.sent[1].headers.bth.ack_request);
  EXPECT_EQ(requester.next_psn(), 103u);
  acknowledge(101);
  EXPECT_THAT(port.completed, IsEmpty());
  acknowledge(102);
  EXPECT_THAT(port.completed, ElementsAre(Pair(0, Syndrome::kNone)));
  EXPECT_TRUE(requester.idle());
  EXPECT_EQ(requester.next_deadline_ns(), kNever);
}

TEST_F(RequesterTest, empty_messages_take_one_packet_each) {
  post(WqeOpcode::kRdmaWrite, 0);
  post(WqeOpcode::kSendImmediate, 0, mlx5::kSolicited);
  post(WqeOpcode::kRdmaRead, 0);
  requester.pump(now_ns, kAll);
  ASSERT_EQ(port.sent.size(), 3u);
  EXPECT_EQ(port.sent[0].headers.bth.opcode, Opcode::kRcWriteOnly);
  EXPECT_EQ(port.sent[1].headers.bth.opcode, Opcode::kRcSendOnlyImmediate);
  EXPECT_EQ(port.sent[1].headers.immediate, 0xabcdu);
  EXPECT_TRUE(port.sent[1].headers.bth.solicited);
  respond(Opcode::kRcReadResponseOnly, 102, 0);
  EXPECT_EQ(port.completed.size(), 3u);
}

TEST_F(RequesterTest, nak_sequence_error_resends_from_its_psn_once) {
  post(WqeOpcode::kRdmaWrite, 4 * kMtu);
  pump();
  acknowledge(102, roce::kNakSequenceError);
  EXPECT_THAT(pump(), ElementsAre(102, 103));
  acknowledge(102, roce::kNakSequenceError);
  EXPECT_THAT(pump(), IsEmpty());
  EXPECT_THAT(port.resends, ElementsAre(Pair(ResendCause::kNak, 102)));
  EXPECT_EQ(requester.counters().naks_received, 2u);
  EXPECT_EQ(requester.counters().packets_sent, 6u);
  EXPECT_EQ(requester.counters().retransmitted_packets, 2u);
  acknowledge(103);
  EXPECT_THAT(port.completed, ElementsAre(Pair(0, Syndrome::kNone)));
}

TEST_F(RequesterTest, packets_that_arrived_after_all_do_not_go_again) {
  post(WqeOpcode::kRdmaWrite, 4 * kMtu);
  pump();
  acknowledge(100, roce::kNakSequenceError);
  acknowledge(101);
  EXPECT_THAT(pump(), ElementsAre(102, 103));
}

// IBA 1.4, 9.7.6.1.3: the timer is that of packets with AckReq. The rest may have to wait for a turn.
TEST_F(RequesterTest, packets_that_ask_for_no_ack_run_no_timer) {
  constexpr std::uint32_t kAskEvery = 32;
  post(WqeOpcode::kRdmaWrite, kMtu);
  pump();
  acknowledge(100);
  post(WqeOpcode::kRdmaWrite, 40 * kMtu);
  requester.pump(now_ns, 10);
  EXPECT_EQ(requester.next_deadline_ns(), kNever);
  now_ns += 100 * kTimeoutNs;
  requester.pump(now_ns, kAskEvery - 10);
  EXPECT_EQ(requester.next_deadline_ns(), now_ns + kTimeoutNs);
  requester.pump(now_ns, 4);
  acknowledge(100 + kAskEvery);
  EXPECT_EQ(requester.next_deadline_ns(), kNever) << "four are outstanding, and none of them asked";
  pump();
  EXPECT_EQ(requester.next_deadline_ns(), now_ns + kTimeoutNs) << "the last one asks";
  EXPECT_EQ(requester.counters().retransmitted_packets, 0u);
}

// The answer's sender decides how much may be sent, so an answer must come soon.
TEST_F(RequesterTest, first_packet_of_a_connection_asks_though_its_message_goes_on) {
  post(WqeOpcode::kRdmaWrite, 40 * kMtu);
  requester.pump(now_ns, 2);
  EXPECT_EQ(requester.next_deadline_ns(), now_ns + kTimeoutNs);
  acknowledge(100);
  EXPECT_EQ(requester.next_deadline_ns(), kNever) << "the second one did not ask";
}

TEST_F(RequesterTest, timeout_starts_no_timer_before_a_resent_packet_asks) {
  post(WqeOpcode::kRdmaWrite, 4 * kMtu);
  pump();
  expire();
  requester.pump(now_ns, 3);
  EXPECT_EQ(requester.next_deadline_ns(), kNever);
  requester.pump(now_ns, 1);
  EXPECT_EQ(requester.next_deadline_ns(), now_ns + 2 * kTimeoutNs);
}

TEST_F(RequesterTest, timeouts_resend_then_exceed_after_retry_count) {
  post(WqeOpcode::kRdmaWrite, 8);
  post(WqeOpcode::kRdmaWrite, 8);
  EXPECT_THAT(pump(), ElementsAre(100, 101));
  EXPECT_EQ(requester.next_deadline_ns(), now_ns + kTimeoutNs);
  for (int retry = 0; retry < 2; ++retry) {
    expire();
    EXPECT_THAT(pump(), ElementsAre(100, 101)) << "retry " << retry;
    EXPECT_EQ(requester.next_deadline_ns(), now_ns + (kTimeoutNs << (retry + 1)));
  }
  expire();
  EXPECT_THAT(port.completed, ElementsAre(Pair(0, Syndrome::kRetryExceeded), Pair(1, Syndrome::kFlushed)));
  EXPECT_THAT(port.resends, ElementsAre(Pair(ResendCause::kTimeout, 100), Pair(ResendCause::kTimeout, 100)));
  EXPECT_TRUE(requester.in_error());
  EXPECT_FALSE(requester.can_send(now_ns));
  EXPECT_EQ(requester.next_deadline_ns(), kNever);
  EXPECT_EQ(requester.counters().timeouts, 3u);
  post(WqeOpcode::kRdmaWrite, 8);
  ASSERT_FALSE(port.completed.empty());
  EXPECT_EQ(port.completed.back(), std::pair(std::uint64_t{2}, Syndrome::kFlushed));
}

TEST_F(RequesterTest, progress_restores_the_retries) {
  post(WqeOpcode::kRdmaWrite, 2 * kMtu);
  pump();
  for (int round = 0; round < 2; ++round) expire(), pump();
  acknowledge(100);
  for (int round = 0; round < 2; ++round) expire(), pump();
  EXPECT_FALSE(requester.in_error());
}

TEST_F(RequesterTest, rnr_nak_waits_for_its_timer_and_resends) {
  acknowledge(99);  // from a peer that advertises no receives
  post(WqeOpcode::kSend, 8);
  post(WqeOpcode::kSend, 8);
  pump();
  acknowledge(100, roce::kAethKindRnr | 12);
  acknowledge(100, roce::kNakSequenceError);  // drawn by the second SEND
  EXPECT_THAT(pump(), IsEmpty());
  EXPECT_FALSE(requester.can_send(now_ns));
  EXPECT_EQ(requester.next_deadline_ns(), now_ns + 640'000);
  expire();
  EXPECT_THAT(pump(), ElementsAre(100, 101));
  EXPECT_THAT(port.resends, ElementsAre(Pair(ResendCause::kNotReady, 100)));
  EXPECT_EQ(requester.counters().rnr_naks_received, 1u);
}

TEST_F(RequesterTest, rnr_nak_restores_the_retries) {
  post(WqeOpcode::kSend, 8);
  pump();
  for (int round = 0; round < 5; ++round) {
    expire();  // lost, or its RNR NAK
    EXPECT_THAT(pump(), ElementsAre(100)) << "round " << round;
    acknowledge(100, roce::kAethKindRnr | 12);
    expire();
    EXPECT_THAT(pump(), ElementsAre(100)) << "round " << round;
  }
  EXPECT_FALSE(requester.in_error());
}

class RequesterLimits : public RequesterTest {
 protected:
  static RcConfig config() {
    RcConfig limited = test::make_config();
    limited.rnr_retry = 1;
    limited.max_unacked_packets = 3;
    limited.max_rd_atomic = 1;
    return limited;
  }
  RequesterLimits() : RequesterTest(config()) {}
};

TEST_F(RequesterLimits, rnr_retries_run_out) {
  post(WqeOpcode::kSend, 8);
  pump();
  acknowledge(100, roce::kAethKindRnr | 1);
  expire();
  pump();
  acknowledge(100, roce::kAethKindRnr | 1);
  EXPECT_THAT(port.completed, ElementsAre(Pair(0, Syndrome::kRnrRetryExceeded)));
}

TEST_F(RequesterLimits, full_window_asks_for_an_ack_and_stops) {
  post(WqeOpcode::kRdmaWrite, 8 * kMtu);
  requester.pump(now_ns, kAll);
  ASSERT_EQ(port.sent.size(), 3u);
  EXPECT_FALSE(port.sent[1].headers.bth.ack_request);
  EXPECT_TRUE(port.sent[2].headers.bth.ack_request);
  EXPECT_FALSE(requester.can_send(now_ns));
  port.sent.clear();
  acknowledge(101);
  EXPECT_THAT(pump(), ElementsAre(103, 104));
}

// Responses acknowledge themselves.
TEST_F(RequesterLimits, window_is_of_requests_without_the_responses_that_are_due) {
  post(WqeOpcode::kRdmaRead, 4 * kMtu);
  post(WqeOpcode::kRdmaWrite, 8 * kMtu);
  EXPECT_THAT(pump(), ElementsAre(100, 104, 105, 106));
}

TEST_F(RequesterLimits, second_read_waits_for_the_first) {
  post(WqeOpcode::kRdmaRead, 2 * kMtu);
  post(WqeOpcode::kAtomicFetchAdd, 8);
  post(WqeOpcode::kRdmaWrite, 8);
  EXPECT_THAT(pump(), ElementsAre(100));
  respond(Opcode::kRcReadResponseFirst, 100, kMtu);
  EXPECT_THAT(pump(), IsEmpty());
  respond(Opcode::kRcReadResponseLast, 101, kMtu);
  EXPECT_THAT(pump(), ElementsAre(102, 103));
}

TEST_F(RequesterLimits, timeout_gives_the_read_credit_back) {
  post(WqeOpcode::kRdmaRead, 2 * kMtu);
  EXPECT_THAT(pump(), ElementsAre(100));
  expire();
  EXPECT_THAT(pump(), ElementsAre(100));
  respond(Opcode::kRcReadResponseFirst, 100, kMtu);
  respond(Opcode::kRcReadResponseLast, 101, kMtu);
  EXPECT_THAT(port.completed, ElementsAre(Pair(0, Syndrome::kNone)));
}

TEST_F(RequesterTest, fence_on_responses_waits_for_reads_and_not_for_acknowledgements) {
  for (const std::uint8_t fence : {mlx5::kFence, mlx5::kFenceReads}) {
    const std::uint32_t psn = requester.next_psn();
    post(WqeOpcode::kRdmaRead, 8);
    post(WqeOpcode::kRdmaWrite, 8);
    post(WqeOpcode::kRdmaWrite, 8, fence);
    EXPECT_THAT(pump(), ElementsAre(psn, psn + 1));
    respond(Opcode::kRcReadResponseOnly, psn, 8);
    EXPECT_THAT(pump(), ElementsAre(psn + 2)) << int{fence};
    acknowledge(psn + 2);
  }
}

TEST_F(RequesterTest, strong_ordering_waits_for_everything_before_it) {
  post(WqeOpcode::kRdmaWrite, 8);
  post(WqeOpcode::kRdmaRead, 8);
  post(WqeOpcode::kRdmaWrite, 8);
  post(WqeOpcode::kRdmaWrite, 8, mlx5::kFenceStrongOrdering);
  EXPECT_THAT(pump(), ElementsAre(100, 101, 102));
  respond(Opcode::kRcReadResponseOnly, 101, 8);
  EXPECT_THAT(pump(), IsEmpty()) << "the WRITE before it is not acknowledged";
  acknowledge(102);
  EXPECT_THAT(pump(), ElementsAre(103));
}

TEST_F(RequesterTest, no_fence_and_the_small_one_wait_for_nothing) {
  for (const std::uint8_t fence : {std::uint8_t{0}, mlx5::kFenceInitiatorSmall}) {
    const std::uint32_t psn = requester.next_psn();
    post(WqeOpcode::kRdmaRead, 8);
    post(WqeOpcode::kRdmaWrite, 8, fence);
    EXPECT_THAT(pump(), ElementsAre(psn, psn + 1)) << int{fence};
    respond(Opcode::kRcReadResponseOnly, psn, 8);
    acknowledge(psn + 1);
  }
}

TEST_F(RequesterTest, reconfigured_amid_a_wait_uses_the_new_timeout_and_retries) {
  RcConfig config = test::make_config();
  config.ack_timeout = 0;
  post(WqeOpcode::kRdmaWrite, 8);
  pump();
  requester.reconfigure(now_ns, config);
  EXPECT_EQ(requester.next_deadline_ns(), kNever);
  config.ack_timeout = 3;
  config.retry_count = 0;
  requester.reconfigure(now_ns, config);
  EXPECT_EQ(requester.next_deadline_ns(), now_ns + 4 * kTimeoutNs);
  expire();
  EXPECT_THAT(port.completed, ElementsAre(Pair(0, Syndrome::kRetryExceeded)));
}

TEST_F(RequesterTest, reconfigured_rnr_retry_counts) {
  RcConfig config = test::make_config();
  config.rnr_retry = 0;
  requester.reconfigure(now_ns, config);
  post(WqeOpcode::kSend, 8);
  pump();
  acknowledge(100, roce::kAethKindRnr | 1);
  EXPECT_THAT(port.completed, ElementsAre(Pair(0, Syndrome::kRnrRetryExceeded)));
}

TEST_F(RequesterTest, lost_read_response_is_asked_for_from_the_missing_point) {
  post(WqeOpcode::kRdmaRead, 3 * kMtu);
  pump();
  respond(Opcode::kRcReadResponseFirst, 100, kMtu);
  respond(Opcode::kRcReadResponseLast, 102, kMtu);
  requester.pump(now_ns, kAll);
  ASSERT_EQ(port.sent.size(), 1u);
  const roce::Headers& again = port.sent[0].headers;
  EXPECT_THAT(port.resends, ElementsAre(Pair(ResendCause::kLostResponse, 101)));
  EXPECT_EQ(again.bth.psn, 101u);
  EXPECT_EQ(again.reth.address, test::kAddress + kMtu);
  EXPECT_EQ(again.reth.length_bytes, 2 * kMtu);
  // Soft-RoCE answers with MIDDLE, without a FIRST.
  respond(Opcode::kRcReadResponseMiddle, 101, kMtu);
  respond(Opcode::kRcReadResponseLast, 102, kMtu);
  EXPECT_THAT(port.scattered, ElementsAre(Pair(0, 0), Pair(0, kMtu), Pair(0, 2 * kMtu)));
  EXPECT_THAT(port.completed, ElementsAre(Pair(0, Syndrome::kNone)));
}

TEST_F(RequesterTest, ack_behind_an_unanswered_atomic_is_an_implied_nak) {
  post(WqeOpcode::kRdmaWrite, 8);
  post(WqeOpcode::kAtomicFetchAdd, 8);
  post(WqeOpcode::kRdmaWrite, 8);
  pump();
  acknowledge(102);
  EXPECT_THAT(port.completed, ElementsAre(Pair(0, Syndrome::kNone)));
  EXPECT_THAT(pump(), ElementsAre(101, 102));
  respond(Opcode::kRcAtomicAcknowledge, 101, 0);
  std::uint64_t original = 0;
  ASSERT_EQ(port.scattered_bytes.size(), sizeof original);
  std::memcpy(&original, port.scattered_bytes.data(), sizeof original);
  EXPECT_EQ(original, 0x1122334455667788u);
}

TEST_F(RequesterTest, fatal_naks_complete_with_their_syndrome_and_flush) {
  const std::pair<std::uint8_t, Syndrome> cases[] = {
      {roce::kNakInvalidRequest, Syndrome::kRemoteInvalidRequest},
      {roce::kNakRemoteAccess, Syndrome::kRemoteAccess},
      {roce::kNakRemoteOperation, Syndrome::kRemoteOperation},
      {roce::kAethKindNak | 4, Syndrome::kBadResponse}};
  for (const auto& [nak, syndrome] : cases) {
    test::RecordingRequesterPort local_port;
    Requester local(test::make_config(), local_port);
    for (std::uint64_t cookie = 0; cookie < 3; ++cookie) {
      local.post({.opcode = WqeOpcode::kRdmaWrite, .length_bytes = 8, .cookie = cookie});
    }
    local.pump(now_ns, kAll);
    roce::Headers headers;
    headers.bth.opcode = Opcode::kRcAcknowledge;
    headers.bth.psn = 101;
    headers.aeth.syndrome = nak;
    local.on_packet(now_ns, headers, {});
    EXPECT_THAT(local_port.completed,
                ElementsAre(Pair(0, Syndrome::kNone), Pair(1, syndrome), Pair(2, Syndrome::kFlushed)));
  }
}

TEST_F(RequesterTest, local_failure_waits_for_its_turn) {
  post(WqeOpcode::kRdmaWrite, 8);
  post(WqeOpcode::kRdmaWrite, 8);
  post(WqeOpcode::kRdmaWrite, 8);
  port.send_fails_for = 1;
  EXPECT_THAT(pump(), ElementsAre(100));
  EXPECT_FALSE(requester.can_send(now_ns));
  EXPECT_THAT(port.completed, IsEmpty());
  acknowledge(100);
  EXPECT_THAT(port.completed, ElementsAre(Pair(0, Syndrome::kNone), Pair(1, Syndrome::kLocalProtection),
                                          Pair(2, Syndrome::kFlushed)));
}

TEST_F(RequesterTest, masked_atomics_carry_their_masks_and_plain_ones_their_operands) {
  WorkRequest request{.opcode = WqeOpcode::kAtomicMaskedCompareSwap,
                      .length_bytes = 8,
                      .swap_or_add = 1,
                      .compare = 2,
                      .swap_mask_or_boundaries = 3,
                      .compare_mask = 4};
  requester.post(request);
  request.opcode = WqeOpcode::kAtomicMaskedFetchAdd;
  requester.post(request);
  requester.pump(now_ns, kAll);
  ASSERT_EQ(port.sent.size(), 2u);
  const roce::Headers& swap = port.sent[0].headers;
  EXPECT_EQ(swap.bth.opcode, Opcode::kMaskedCompareSwap);
  EXPECT_EQ(swap.atomic.swap_or_add, 1u);
  EXPECT_EQ(swap.atomic.compare, 2u);
  EXPECT_EQ(swap.atomic_mask.swap_mask_or_boundaries, 3u);
  EXPECT_EQ(swap.atomic_mask.compare_mask, 4u);
  const roce::Headers& add = port.sent[1].headers;
  EXPECT_EQ(add.bth.opcode, Opcode::kMaskedFetchAdd);
  EXPECT_EQ(add.atomic.compare, 0u);
  EXPECT_EQ(add.atomic_mask.swap_mask_or_boundaries, 3u);
  respond(Opcode::kRcAtomicAcknowledge, 100, 0);
  respond(Opcode::kRcAtomicAcknowledge, 101, 0);
  EXPECT_EQ(port.completed.size(), 2u);
  EXPECT_EQ(port.scattered_bytes.size(), 16u);
}

TEST_F(RequesterTest, requests_that_cannot_be_carried_out_fail_on_pump) {
  post(static_cast<WqeOpcode>(0x7f), 8);
  EXPECT_TRUE(requester.can_send(now_ns));
  pump();
  EXPECT_THAT(port.completed, ElementsAre(Pair(0, Syndrome::kLocalQpOperation)));
  test::RecordingRequesterPort local_port;
  Requester local(test::make_config(), local_port);
  local.post({.opcode = WqeOpcode::kRdmaWrite, .length_bytes = mlx5::kMaxMessageBytes + 1});
  local.pump(now_ns, kAll);
  EXPECT_THAT(local_port.completed, ElementsAre(Pair(0, Syndrome::kLocalLength)));
  test::RecordingRequesterPort long_port;
  Requester longest(test::make_config(), long_port);
  longest.post({.opcode = WqeOpcode::kRdmaRead, .length_bytes = mlx5::kMaxMessageBytes});
  EXPECT_EQ(longest.pump(now_ns, kAll), 1u);
}

TEST_F(RequesterTest, nop_behind_a_read_completes_with_its_response) {
  post(WqeOpcode::kRdmaRead, 8);
  post(WqeOpcode::kNop, 0);
  pump();
  respond(Opcode::kRcReadResponseOnly, 100, 8);
  EXPECT_THAT(port.completed, ElementsAre(Pair(0, Syndrome::kNone), Pair(1, Syndrome::kNone)));
}

TEST_F(RequesterTest, nop_completes_in_order_even_when_the_cursor_went_back_behind_it) {
  post(WqeOpcode::kRdmaWrite, 8);
  post(WqeOpcode::kNop, 0);
  post(WqeOpcode::kRdmaRead, 8);
  pump();
  EXPECT_THAT(port.completed, IsEmpty());
  expire();  // the cursor is at 100 again, and then all answers arrive
  acknowledge(100);
  respond(Opcode::kRcReadResponseOnly, 101, 8);
  EXPECT_THAT(port.completed,
              ElementsAre(Pair(0, Syndrome::kNone), Pair(1, Syndrome::kNone), Pair(2, Syndrome::kNone)));
  EXPECT_THAT(pump(), IsEmpty());
}

TEST_F(RequesterTest, umr_is_executed_when_what_is_before_it_cannot_be_sent_again) {
  post(WqeOpcode::kRdmaWrite, 2 * kMtu);
  post(WqeOpcode::kNop, 0);
  post(WqeOpcode::kUmr, 0);
  post(WqeOpcode::kRdmaWrite, 8);
  EXPECT_THAT(pump(), ElementsAre(100, 101));
  EXPECT_FALSE(requester.can_send(now_ns));
  expire();  // a packet was lost: it is gathered again, by the key as it is
  EXPECT_THAT(pump(), ElementsAre(100, 101));
  acknowledge(100);
  EXPECT_THAT(pump(), IsEmpty());
  EXPECT_THAT(port.applied, IsEmpty());
  acknowledge(101);
  EXPECT_THAT(pump(), ElementsAre(102));
  EXPECT_THAT(port.applied, ElementsAre(Pair(2, 0u)));
  EXPECT_EQ(port.completed.size(), 3u);
  expire();
  EXPECT_THAT(pump(), ElementsAre(102));
  EXPECT_EQ(port.applied.size(), 1u) << "what is behind it is sent again, and it is not executed again";
  acknowledge(102);
  EXPECT_EQ(port.completed.size(), 4u);
}

TEST_F(RequesterTest, umrs_in_a_row_are_executed_in_order_and_at_once) {
  for (int i = 0; i < 3; ++i) post(WqeOpcode::kUmr, 0);
  EXPECT_THAT(pump(), IsEmpty());
  EXPECT_THAT(port.applied, ElementsAre(Pair(0, 0u), Pair(1, 0u), Pair(2, 0u)));
  EXPECT_EQ(port.completed.size(), 3u);
  EXPECT_TRUE(requester.idle());
}

TEST_F(RequesterTest, umr_waits_for_the_reads_before_it_also_without_a_fence) {
  post(WqeOpcode::kRdmaRead, 8);
  post(WqeOpcode::kUmr, 0);
  pump();
  EXPECT_THAT(port.applied, IsEmpty());
  EXPECT_FALSE(requester.can_send(now_ns));
  respond(Opcode::kRcReadResponseOnly, 100, 8);
  pump();
  EXPECT_EQ(port.applied.size(), 1u);
  EXPECT_THAT(port.completed, ElementsAre(Pair(0, Syndrome::kNone), Pair(1, Syndrome::kNone)));
}

TEST_F(RequesterTest, umr_refused_fails_in_its_turn_and_nothing_behind_it_is_sent) {
  port.apply_result = Syndrome::kMemoryWindowBind;
  post(WqeOpcode::kRdmaWrite, 8);
  post(WqeOpcode::kUmr, 0);
  post(WqeOpcode::kRdmaWrite, 8);
  EXPECT_THAT(pump(), ElementsAre(100));
  EXPECT_THAT(port.completed, IsEmpty());
  acknowledge(100);
  EXPECT_THAT(pump(), IsEmpty());
  EXPECT_THAT(port.completed, ElementsAre(Pair(0, Syndrome::kNone), Pair(1, Syndrome::kMemoryWindowBind),
                                          Pair(2, Syndrome::kFlushed)));
  EXPECT_EQ(port.applied.size(), 1u);
}

TEST_F(RequesterTest, answers_to_nothing_we_sent_are_ignored) {
  post(WqeOpcode::kRdmaWrite, 8);
  pump();
  acknowledge(101);
  acknowledge(99);
  acknowledge(99, roce::kNakRemoteAccess);
  respond(Opcode::kRcReadResponseOnly, 101, 8);
  EXPECT_THAT(port.completed, IsEmpty());
  EXPECT_FALSE(requester.in_error());
}

TEST_F(RequesterTest, read_response_of_a_wrong_size_is_a_bad_response) {
  post(WqeOpcode::kRdmaRead, 8);
  pump();
  respond(Opcode::kRcReadResponseOnly, 100, 9);
  EXPECT_THAT(port.completed, ElementsAre(Pair(0, Syndrome::kBadResponse)));
  EXPECT_THAT(port.scattered, IsEmpty());
}

class RequesterAtWrap : public RequesterTest {
 protected:
  RequesterAtWrap() : RequesterTest(test::make_config(0xfffffe)) {}
};

TEST_F(RequesterAtWrap, psn_wraps_to_zero_and_acks_beyond_it_count) {
  post(WqeOpcode::kRdmaWrite, 4 * kMtu);
  EXPECT_THAT(pump(), ElementsAre(0xfffffe, 0xffffff, 0, 1));
  EXPECT_EQ(requester.next_psn(), 2u);
  acknowledge(0xffffff, roce::kAethAck);
  acknowledge(0, roce::kNakSequenceError);
  EXPECT_THAT(pump(), ElementsAre(0, 1));
  acknowledge(1);
  EXPECT_THAT(port.completed, ElementsAre(Pair(0, Syndrome::kNone)));
}

}  // namespace requester_test
}  // namespace gdx::softhca::transport
