// Packets of RC byte for byte, and failures by their cause.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "driver-shim/softhca/transport/requester.h"
#include "driver-shim/softhca/transport/responder.h"
#include "tests/unit/transport/recording_ports.h"

namespace gdx::softhca::transport {
namespace headers_test {

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

roce::Headers request(Opcode opcode, std::uint32_t psn, std::uint32_t length_bytes = 0) {
  roce::Headers headers;
  headers.bth.opcode = opcode;
  headers.bth.psn = psn;
  headers.bth.ack_request = true;
  headers.reth = {kAddress, kRkey, length_bytes};
  headers.atomic = {kAddress, kRkey, 7, 0};
  return headers;
}

TEST(RcHeaders, of_requests_are_theirs_and_only_the_last_packet_is_solicited) {
  test::RecordingRequesterPort port;
  Requester requester(test::make_config(), port);
  WorkRequest posted{.opcode = WqeOpcode::kRdmaWriteImmediate,
                     .fm_ce_se = mlx5::kSolicited,
                     .length_bytes = 2 * kMtu + 6,
                     .remote_address = kAddress,
                     .rkey = kRkey,
                     .immediate = 0xabcd,
                     .swap_or_add = 5,
                     .compare = 6};
  for (const WqeOpcode opcode : {posted.opcode, WqeOpcode::kRdmaRead, WqeOpcode::kAtomicCompareSwap}) {
    posted.opcode = opcode;
    requester.post(posted);
    posted.length_bytes = 2 * kMtu;
    ++posted.cookie;
  }
  requester.pump(0, kAll);
  const Opcode opcodes[] = {Opcode::kRcWriteFirst, Opcode::kRcWriteMiddle, Opcode::kRcWriteLastImmediate,
                            Opcode::kRcReadRequest, Opcode::kRcCompareSwap};
  constexpr std::uint32_t kPsns[] = {100, 101, 102, 103, 105};
  ASSERT_EQ(port.sent.size(), std::size(opcodes));
  for (std::size_t i = 0; i < std::size(opcodes); ++i) {
    roce::Headers expected;
    expected.bth.opcode = opcodes[i];
    expected.bth.solicited = i == 2;
    expected.bth.pad_count = i == 2 ? 2 : 0;
    expected.bth.pkey = roce::kDefaultPkey;
    expected.bth.destination_qpn = 0x22;
    expected.bth.ack_request = i != 1;  // the first packet of a connection requests an ACK too
    expected.bth.psn = kPsns[i];
    expected.reth = {kAddress, kRkey, i == 3 ? 2 * kMtu : 2 * kMtu + 6};
    expected.atomic = {kAddress, kRkey, 5, 6};
    expected.immediate = 0xabcd;
    EXPECT_EQ(test::encoded(port.sent[i].headers), test::encoded(expected)) << i;
    EXPECT_EQ(port.sent[i].cookie, i < 3 ? 0 : i - 2);
  }
  for (const std::size_t i : {3u, 4u}) EXPECT_EQ(port.sent[i].offset_bytes + port.sent[i].length_bytes, 0u);
  EXPECT_EQ(requester.counters().packets_sent, 5u);
}

TEST(RcHeaders, of_answers_count_messages_across_the_wrap) {
  test::RecordingResponderPort port;
  RcConfig config = test::make_config();
  config.first_msn = 0xfffffe;
  Responder wrapping(config, port);
  const auto take = [&](const roce::Headers& headers, std::size_t payload_bytes) {
    wrapping.on_packet(0, headers, std::vector<std::byte>(payload_bytes));
  };
  port.word = 0x1122334455667788;
  take(request(Opcode::kRcWriteOnly, 100, 8), 8);
  wrapping.pump(0, kAll);
  take(request(Opcode::kRcFetchAdd, 101), 0);
  take(request(Opcode::kRcSendOnly, 102), 8);
  take(request(Opcode::kRcReadRequest, 102, 2 * kMtu + 6), 0);
  take(request(Opcode::kRcWriteOnly, 110, 8), 8);
  wrapping.pump(0, kAll);
  const struct {
    Opcode opcode;
    std::uint32_t psn;
    roce::Aeth aeth;
  } expected[] = {{Opcode::kRcAcknowledge, 100, {roce::kAethAck, 0xffffff}},
                  {Opcode::kRcAtomicAcknowledge, 101, {roce::kAethAck, 0}},
                  {Opcode::kRcAcknowledge, 102, {roce::kAethKindRnr | 1, 0}},
                  {Opcode::kRcReadResponseFirst, 102, {roce::kAethAck, 1}},
                  {Opcode::kRcReadResponseMiddle, 103, {}},
                  {Opcode::kRcReadResponseLast, 104, {roce::kAethAck, 1}},
                  {Opcode::kRcAcknowledge, 105, {roce::kNakSequenceError, 1}}};
  ASSERT_EQ(port.sent.size(), std::size(expected));
  for (std::size_t i = 0; i < std::size(expected); ++i) {
    roce::Headers headers;
    headers.bth.opcode = expected[i].opcode;
    headers.bth.pad_count = i == 5 ? 2 : 0;
    headers.bth.pkey = roce::kDefaultPkey;
    headers.bth.destination_qpn = 0x22;
    headers.bth.psn = expected[i].psn;
    headers.aeth = expected[i].aeth;
    headers.atomic_original = 0x1122334455667788;
    EXPECT_EQ(test::encoded(port.sent[i]), test::encoded(headers)) << i;
  }
  EXPECT_EQ(wrapping.counters().packets_sent, std::size(expected));
  EXPECT_EQ(wrapping.counters().packets_received, 5u);
  EXPECT_EQ(wrapping.counters().naks_sent, 2u);
}

TEST(RcFailures, failures_of_a_receive_name_their_cause_to_both_ends) {
  const struct {
    Opcode opcode;
    Syndrome of_receive;
    std::uint32_t rkey;
    std::uint8_t nak;
    Syndrome completed;
    Syndrome fatal;
  } cases[] = {{Opcode::kRcSendOnly, Syndrome::kLocalLength, kRkey, roce::kNakInvalidRequest,
                Syndrome::kLocalLength, Syndrome::kRemoteInvalidRequest},
               {Opcode::kRcSendOnly, Syndrome::kLocalProtection, kRkey, roce::kNakRemoteOperation,
                Syndrome::kLocalProtection, Syndrome::kRemoteOperation},
               {Opcode::kRcSendOnlyInvalidate, Syndrome::kNone, kRkey + 1, roce::kNakRemoteAccess,
                Syndrome::kRemoteInvalidRequest, Syndrome::kRemoteAccess}};
  for (const auto& one : cases) {
    test::RecordingResponderPort local;
    local.receives = 2;
    local.receive_result = one.of_receive;
    Responder target(test::make_config(), local);
    roce::Headers headers = request(one.opcode, 100);
    headers.immediate = one.rkey;
    target.on_packet(0, headers, std::vector<std::byte>(8));
    ASSERT_EQ(local.completions.size(), 1u);
    EXPECT_EQ(local.completions[0].syndrome, one.completed);
    EXPECT_EQ(local.sent.back().aeth.syndrome, one.nak);
    EXPECT_EQ(local.fatal_syndrome, one.fatal);
    EXPECT_TRUE(local.trace.ends_with("SCF")) << local.trace;
  }
}

TEST(RcFailures, read_of_a_queue_pair_that_may_have_none_outstanding_fails_and_writes_do_not) {
  RcConfig none = test::make_config();
  none.max_rd_atomic = 0;
  for (const WqeOpcode opcode : {WqeOpcode::kRdmaRead, WqeOpcode::kAtomicFetchAdd, WqeOpcode::kRdmaWrite}) {
    test::RecordingRequesterPort own;
    Requester local(none, own);
    local.post({.opcode = opcode, .length_bytes = 8, .cookie = 1});
    const bool sends = opcode == WqeOpcode::kRdmaWrite;
    EXPECT_EQ(local.pump(0, kAll), sends ? 1u : 0u);
    EXPECT_EQ(own.completed.empty(), sends);
    if (!sends) {
      EXPECT_EQ(own.completed[0].second, Syndrome::kLocalQpOperation);
    }
  }
}

TEST(RcFailures, response_of_another_kind_than_its_request_is_a_bad_response) {
  const std::pair<WqeOpcode, Opcode> cases[] = {{WqeOpcode::kRdmaRead, Opcode::kRcAtomicAcknowledge},
                                                {WqeOpcode::kAtomicFetchAdd, Opcode::kRcReadResponseOnly},
                                                {WqeOpcode::kRdmaWrite, Opcode::kRcReadResponseOnly}};
  for (const auto& [opcode, response] : cases) {
    test::RecordingRequesterPort own;
    Requester local(test::make_config(), own);
    local.post({.opcode = opcode, .length_bytes = 8, .cookie = 1});
    local.pump(0, kAll);
    roce::Headers headers;
    headers.bth.opcode = response;
    headers.bth.psn = 100;
    headers.aeth.syndrome = roce::kAethAck;
    local.on_packet(0, headers, std::vector<std::byte>(response == Opcode::kRcReadResponseOnly ? 8 : 0));
    EXPECT_THAT(own.completed, ElementsAre(Pair(1, Syndrome::kBadResponse)));
    EXPECT_THAT(own.scattered, IsEmpty());
  }
}

}  // namespace headers_test
}  // namespace gdx::softhca::transport
