#include "driver-shim/softhca/transport/uc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/transport/recording_ports.h"

namespace gdx::softhca::transport {
namespace uc_test {

using mlx5::CqeOpcode;
using mlx5::Syndrome;
using mlx5::WqeOpcode;
using roce::Opcode;
using test::kAddress;
using test::kAll;
using test::kMtu;
using test::kRkey;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

constexpr std::uint32_t kFirstPsn = 0xffffff;  // wraps at once

UcConfig make_config() {
  return {.remote_qpn = 0x22,
          .send_psn = kFirstPsn,
          .receive_psn = kFirstPsn,
          .mtu_bytes = kMtu,
          .remote_write = true};
}

WorkRequest make_request(WqeOpcode opcode, std::uint32_t length_bytes, std::uint64_t cookie) {
  WorkRequest request;
  request.opcode = opcode;
  request.length_bytes = length_bytes;
  request.remote_address = kAddress;
  request.rkey = kRkey;
  request.immediate = 0xabcd;
  request.cookie = cookie;
  return request;
}

class UcRequesterTest : public testing::Test {
 protected:
  std::vector<Opcode> opcodes() const {
    std::vector<Opcode> list;
    for (const test::SentSegment& segment : port.sent) list.push_back(segment.headers.bth.opcode);
    return list;
  }

  test::RecordingRequesterPort port;
  UcRequester requester{make_config(), port};
};

TEST_F(UcRequesterTest, umr_is_executed_between_its_neighbours) {
  requester.post(make_request(WqeOpcode::kSend, 8, 1));
  requester.post(make_request(WqeOpcode::kUmr, 0, 2));
  requester.post(make_request(WqeOpcode::kSend, 8, 3));
  EXPECT_EQ(requester.pump(0, kAll), 2u);
  EXPECT_THAT(port.applied, ElementsAre(Pair(2, 1u)));
  EXPECT_THAT(port.completed,
              ElementsAre(Pair(1, Syndrome::kNone), Pair(2, Syndrome::kNone), Pair(3, Syndrome::kNone)));
}

TEST_F(UcRequesterTest, umr_refused_fails_and_flushes) {
  port.apply_result = Syndrome::kMemoryWindowBind;
  requester.post(make_request(WqeOpcode::kUmr, 0, 1));
  requester.post(make_request(WqeOpcode::kSend, 8, 2));
  EXPECT_EQ(requester.pump(0, kAll), 0u);
  EXPECT_THAT(port.completed, ElementsAre(Pair(1, Syndrome::kMemoryWindowBind), Pair(2, Syndrome::kFlushed)));
}

TEST_F(UcRequesterTest, send_of_three_packets_completes_with_its_last) {
  requester.post(make_request(WqeOpcode::kSendImmediate, 2 * kMtu + 5, 1));
  EXPECT_EQ(requester.pump(0, 2), 2u);
  EXPECT_THAT(port.completed, IsEmpty());
  EXPECT_TRUE(requester.can_send(0));
  EXPECT_EQ(requester.pump(0, kAll), 1u);
  EXPECT_THAT(port.completed, ElementsAre(Pair(1, Syndrome::kNone)));
  EXPECT_THAT(opcodes(),
              ElementsAre(Opcode::kUcSendFirst, Opcode::kUcSendMiddle, Opcode::kUcSendLastImmediate));
  EXPECT_EQ(port.sent[2].length_bytes, 5u);
  EXPECT_EQ(port.sent[2].headers.immediate, 0xabcdu);
  EXPECT_EQ(port.sent[2].headers.bth.pad_count, 3);
  EXPECT_FALSE(port.sent[2].headers.bth.ack_request);
  EXPECT_THAT(port.take_psns(), ElementsAre(0xffffff, 0, 1));
  EXPECT_TRUE(requester.idle());
}

TEST_F(UcRequesterTest, writes_carry_their_range) {
  requester.post(make_request(WqeOpcode::kRdmaWrite, kMtu + 1, 1));
  requester.post(make_request(WqeOpcode::kRdmaWriteImmediate, 8, 2));
  requester.post(make_request(WqeOpcode::kNop, 0, 3));
  EXPECT_EQ(requester.pump(0, kAll), 3u);
  EXPECT_THAT(opcodes(),
              ElementsAre(Opcode::kUcWriteFirst, Opcode::kUcWriteLast, Opcode::kUcWriteOnlyImmediate));
  EXPECT_EQ(port.sent[0].headers.reth.length_bytes, kMtu + 1);
  EXPECT_EQ(port.completed.size(), 3u);
}

TEST_F(UcRequesterTest, headers_are_those_of_the_request_and_only_the_last_packet_is_solicited) {
  WorkRequest request = make_request(WqeOpcode::kRdmaWriteImmediate, 2 * kMtu + 6, 1);
  request.fm_ce_se = mlx5::kSolicited;
  requester.post(request);
  EXPECT_EQ(requester.pump(0, kAll), 3u);
  ASSERT_EQ(port.sent.size(), 3u);
  const Opcode opcodes[] = {Opcode::kUcWriteFirst, Opcode::kUcWriteMiddle, Opcode::kUcWriteLastImmediate};
  for (std::uint32_t i = 0; i < 3; ++i) {
    roce::Headers expected;
    expected.bth.opcode = opcodes[i];
    expected.bth.solicited = i == 2;
    expected.bth.pad_count = i == 2 ? 2 : 0;
    expected.bth.pkey = roce::kDefaultPkey;
    expected.bth.destination_qpn = 0x22;
    expected.bth.psn = (kFirstPsn + i) & roce::kPsnMask;
    expected.reth = {kAddress, kRkey, 2 * kMtu + 6};
    expected.immediate = 0xabcd;
    EXPECT_EQ(test::encoded(port.sent[i].headers), test::encoded(expected)) << i;
    EXPECT_EQ(port.sent[i].offset_bytes, i * kMtu);
    EXPECT_EQ(port.sent[i].length_bytes, i == 2 ? 6u : kMtu);
  }
  EXPECT_EQ(requester.counters().packets_sent, 3u);
  EXPECT_EQ(requester.next_psn(), 2u);
}

TEST_F(UcRequesterTest, read_posted_fails_and_flushes_what_follows) {
  requester.post(make_request(WqeOpcode::kRdmaRead, 8, 1));
  requester.post(make_request(WqeOpcode::kSend, 8, 2));
  EXPECT_EQ(requester.pump(0, kAll), 0u);
  requester.post(make_request(WqeOpcode::kSend, 8, 3));
  EXPECT_THAT(port.completed, ElementsAre(Pair(1, Syndrome::kLocalQpOperation), Pair(2, Syndrome::kFlushed),
                                          Pair(3, Syndrome::kFlushed)));
  EXPECT_TRUE(requester.in_error());
}

class UcResponderTest : public testing::Test {
 protected:
  void receive(Opcode opcode, std::uint32_t psn, std::size_t payload_bytes, std::uint32_t length_bytes = 0,
               std::uint32_t rkey = kRkey) {
    roce::Headers headers;
    headers.bth.opcode = opcode;
    headers.bth.psn = psn;
    headers.reth = {kAddress, rkey, length_bytes};
    headers.immediate = 7;
    responder.on_packet(headers, std::vector<std::byte>(payload_bytes, std::byte{0xee}));
  }

  test::RecordingResponderPort port;
  UcResponder responder{make_config(), port};
};

TEST_F(UcResponderTest, send_in_sequence_completes_and_answers_nothing) {
  port.receives = 1;
  receive(Opcode::kUcSendFirst, 0xffffff, kMtu);
  receive(Opcode::kUcSendLastImmediate, 0, 4);
  EXPECT_EQ(port.trace, "C");
  EXPECT_EQ(port.completions[0].byte_count, kMtu + 4);
  EXPECT_THAT(port.received_at, ElementsAre(0u, kMtu));
  EXPECT_EQ(responder.counters().packets_received, 2u);
  EXPECT_EQ(port.completions[0].opcode, CqeOpcode::kResponderSendImmediate);
  EXPECT_EQ(port.completions[0].immediate_or_rkey, 7u);
}

TEST_F(UcResponderTest, middle_lost_drops_the_message_and_takes_the_next) {
  port.receives = 2;
  receive(Opcode::kUcSendFirst, 0xffffff, kMtu);
  receive(Opcode::kUcSendLast, 1, 4);
  EXPECT_THAT(port.completions, IsEmpty());
  EXPECT_EQ(responder.counters().out_of_sequence, 1u);
  receive(Opcode::kUcSendOnly, 2, 9);
  ASSERT_EQ(port.completions.size(), 1u);
  EXPECT_EQ(port.completions[0].byte_count, 9u);
}

TEST_F(UcResponderTest, gap_before_only_costs_nothing_more) {
  receive(Opcode::kUcWriteOnly, 50, 8, 8);
  EXPECT_EQ(port.trace, "W");
  EXPECT_EQ(responder.expected_psn(), 51u);
}

TEST_F(UcResponderTest, copy_and_late_packet_are_not_delivered_again) {
  port.receives = 4;
  receive(Opcode::kUcSendOnly, 0xffffff, 4);
  receive(Opcode::kUcSendOnly, 0xffffff, 4);
  receive(Opcode::kUcSendFirst, 2, kMtu);
  receive(Opcode::kUcSendOnly, 1, 4);
  receive(Opcode::kUcSendLast, 3, 4);
  EXPECT_EQ(port.trace, "CC") << "a late packet does not end the message around it";
  EXPECT_EQ(responder.counters().duplicate_requests, 2u);
  receive(Opcode::kUcSendOnly, (4 - 1 - kMaxLatePackets) & roce::kPsnMask, 4);
  EXPECT_EQ(port.trace, "CCC") << "so far behind, it is a peer that was away for long";
}

TEST_F(UcResponderTest, key_faults_beyond_the_bound_kill_the_queue) {
  port.receives = 1;
  std::uint32_t psn = 0xffffff;
  for (std::uint32_t i = 0; i < kMaxKeyFaults; ++i) {
    EXPECT_EQ(port.fatal_syndrome, Syndrome::kNone);
    receive(Opcode::kUcWriteOnly, psn++ & roce::kPsnMask, 8, 8, kRkey + 1 + i);
  }
  EXPECT_EQ(port.fatal_syndrome, Syndrome::kRemoteAccess);
  EXPECT_EQ(responder.counters().key_faults, kMaxKeyFaults);
  receive(Opcode::kUcSendOnly, psn & roce::kPsnMask, 8);
  EXPECT_EQ(port.trace, "F");
}

TEST_F(UcResponderTest, reconfigured_rights_hold_for_the_next_write) {
  UcConfig config = make_config();
  config.remote_write = false;
  responder.reconfigure(config);
  receive(Opcode::kUcWriteOnly, 0xffffff, 8, 8);
  EXPECT_EQ(port.trace, "");
  responder.reconfigure(make_config());
  receive(Opcode::kUcWriteOnly, 0, 8, 8);
  EXPECT_EQ(port.trace, "W");
}

TEST_F(UcResponderTest, write_of_two_packets_lands) {
  receive(Opcode::kUcWriteFirst, 0xffffff, kMtu, kMtu + 8);
  receive(Opcode::kUcWriteLast, 0, 8);
  EXPECT_EQ(port.trace, "WW");
  EXPECT_EQ(port.memory[kMtu + 7], std::byte{0xee});
  EXPECT_EQ(port.memory[kMtu + 8], std::byte{0});
}

TEST_F(UcResponderTest, write_outside_its_range_leaves_no_trace) {
  receive(Opcode::kUcWriteOnly, 0xffffff, 8, 9);
  receive(Opcode::kUcWriteFirst, 0, kMtu, 1 << 20);
  receive(Opcode::kUcWriteMiddle, 1, kMtu);
  EXPECT_EQ(port.trace, "");
}

TEST_F(UcResponderTest, send_without_a_receive_is_lost_and_counted) {
  receive(Opcode::kUcSendOnly, 0xffffff, 4);
  EXPECT_EQ(port.trace, "");
  EXPECT_EQ(responder.counters().out_of_buffer, 1u);
  port.receives = 1;
  receive(Opcode::kUcSendOnly, 0, 4);
  EXPECT_EQ(port.trace, "C");
  EXPECT_EQ(responder.counters().out_of_buffer, 1u);
  receive(Opcode::kUcWriteOnlyImmediate, 1, 4, 4);
  EXPECT_EQ(port.trace, "C");
  EXPECT_EQ(responder.counters().out_of_buffer, 2u);
}

TEST_F(UcResponderTest, send_too_long_for_its_receive_is_fatal) {
  port.receives = 2;
  port.receive_result = Syndrome::kLocalLength;
  receive(Opcode::kUcSendOnly, 0xffffff, 4);
  receive(Opcode::kUcSendOnly, 0, 4);
  EXPECT_EQ(port.trace, "CF");
  EXPECT_EQ(port.completions[0].syndrome, Syndrome::kLocalLength);
}

TEST_F(UcResponderTest, message_begins_at_its_receive_whatever_was_lost_before) {
  port.receives = 1;
  receive(Opcode::kUcSendFirst, 0xffffff, kMtu);
  receive(Opcode::kUcSendMiddle, 1, kMtu);  // one is missing
  receive(Opcode::kUcSendFirst, 2, kMtu);
  receive(Opcode::kUcSendLast, 3, 5);
  EXPECT_EQ(port.trace, "C");
  EXPECT_EQ(port.completions[0].byte_count, kMtu + 5);
  EXPECT_THAT(port.received_at, ElementsAre(0u, 0u, kMtu)) << "in the receive that the lost one had taken";
}

TEST_F(UcResponderTest, lengths_are_those_of_the_opcode_and_the_range) {
  const struct {
    std::vector<std::tuple<Opcode, std::size_t, std::uint32_t>> packets;  // payload, length in the RETH
    const char* trace;
  } cases[] = {{{{Opcode::kUcWriteOnly, kMtu, kMtu}}, "W"},
               {{{Opcode::kUcWriteOnly, kMtu + 1, kMtu + 1}}, ""},
               {{{Opcode::kUcWriteOnly, 0, 0}}, ""},
               {{{Opcode::kUcSendOnly, 0, 0}}, "C"},
               {{{Opcode::kUcSendFirst, kMtu + 1, 0}, {Opcode::kUcSendLast, 1, 0}}, ""},
               {{{Opcode::kUcSendFirst, kMtu, 0}, {Opcode::kUcSendLast, 0, 0}}, ""},
               {{{Opcode::kUcWriteFirst, kMtu, kMtu}, {Opcode::kUcWriteLast, 1, 0}}, ""},
               {{{Opcode::kUcWriteFirst, kMtu, kMtu + 2}, {Opcode::kUcWriteLast, 1, 0}}, "W"},
               {{{Opcode::kUcWriteFirst, kMtu, 2 * kMtu}, {Opcode::kUcWriteMiddle, kMtu, 0}}, "W"},
               {{{Opcode::kUcWriteFirst, kMtu, kMtu + 1}, {Opcode::kUcSendLast, 1, 0}}, "W"},
               {{{Opcode::kUcWriteLast, 1, 1}}, ""}};
  std::uint32_t psn = 0xffffff;
  for (const auto& one : cases) {
    port.trace.clear();
    port.receives = 1;
    for (const auto& [opcode, payload_bytes, length_bytes] : one.packets)
      receive(opcode, psn++ & roce::kPsnMask, payload_bytes, length_bytes);
    EXPECT_EQ(port.trace, one.trace) << &one - cases;
  }
  EXPECT_EQ(responder.counters().key_faults, 0u);
  EXPECT_EQ(UcResponder(UcConfig{0, 0, 0x1000005, kMtu, true}, port).expected_psn(), 5u) << "of 24 bits";
}

TEST_F(UcResponderTest, short_first_and_foreign_middle_are_dropped) {
  port.receives = 1;
  receive(Opcode::kUcSendFirst, 0xffffff, kMtu - 1);
  receive(Opcode::kUcSendFirst, 0, kMtu);
  receive(Opcode::kUcWriteMiddle, 1, kMtu);
  receive(Opcode::kUcSendLast, 2, 4);
  EXPECT_EQ(port.trace, "");
}

}  // namespace uc_test
}  // namespace gdx::softhca::transport
