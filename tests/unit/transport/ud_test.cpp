#include "driver-shim/softhca/transport/ud.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/transport/recording_ports.h"

namespace gdx::softhca::transport {
namespace ud_test {

using mlx5::Syndrome;
using mlx5::WqeOpcode;
using roce::Opcode;
using test::kAll;
using test::kMtu;
using testing::ElementsAre;
using testing::Pair;

constexpr std::uint32_t kQkey = 0x11111111;
constexpr std::size_t kGrhBytes = 40;

UdConfig make_config() { return {.local_qpn = 0x33, .qkey = kQkey, .send_psn = 9, .mtu_bytes = kMtu}; }

WorkRequest make_request(WqeOpcode opcode, std::uint32_t length_bytes, std::uint32_t qkey) {
  WorkRequest request;
  request.opcode = opcode;
  request.length_bytes = length_bytes;
  request.destination_qpn = 0x44;
  request.qkey = qkey;
  request.cookie = 1;
  return request;
}

TEST(UdRequester, sends_carry_destination_and_qkey_of_their_wqe) {
  test::RecordingRequesterPort port;
  UdRequester requester(make_config(), port);
  requester.post(make_request(WqeOpcode::kSend, kMtu, 0x77));
  requester.post(make_request(WqeOpcode::kSendImmediate, 0, kControlledQkey));
  EXPECT_EQ(requester.pump(0, kAll), 2u);
  ASSERT_EQ(port.sent.size(), 2u);
  EXPECT_EQ(port.sent[0].headers.bth.opcode, Opcode::kUdSendOnly);
  EXPECT_EQ(port.sent[0].headers.bth.destination_qpn, 0x44u);
  EXPECT_EQ(port.sent[0].headers.deth.qkey, 0x77u);
  EXPECT_EQ(port.sent[0].headers.deth.source_qpn, 0x33u);
  EXPECT_EQ(port.sent[1].headers.bth.opcode, Opcode::kUdSendOnlyImmediate);
  EXPECT_EQ(port.sent[1].headers.deth.qkey, kQkey) << "the queue pair's own";
  EXPECT_THAT(port.take_psns(), ElementsAre(9, 10));
}

TEST(UdRequester, message_above_the_mtu_and_write_fail_locally) {
  for (const auto& [opcode, length_bytes, expected] :
       {std::tuple{WqeOpcode::kSend, kMtu + 1, Syndrome::kLocalLength},
        std::tuple{WqeOpcode::kRdmaWrite, 8u, Syndrome::kLocalQpOperation}}) {
    test::RecordingRequesterPort port;
    UdRequester requester(make_config(), port);
    requester.post(make_request(opcode, length_bytes, kQkey));
    EXPECT_EQ(requester.pump(0, kAll), 0u);
    EXPECT_THAT(port.completed, ElementsAre(Pair(1, expected)));
  }
}

class UdResponderTest : public testing::Test {
 protected:
  void receive(std::uint32_t qkey, std::size_t payload_bytes) {
    roce::Headers headers;
    headers.bth.opcode = Opcode::kUdSendOnlyImmediate;
    headers.deth = {qkey, 0x55};
    headers.immediate = 3;
    const std::array<std::byte, kGrhBytes> grh{};
    responder.on_packet(headers, grh, std::vector<std::byte>(payload_bytes));
  }

  test::RecordingResponderPort port;
  UdResponder responder{make_config(), port};
};

TEST_F(UdResponderTest, message_lands_behind_the_grh_and_names_its_sender) {
  port.receives = 1;
  receive(kQkey, 10);
  ASSERT_EQ(port.completions.size(), 1u);
  EXPECT_EQ(port.completions[0].byte_count, kGrhBytes + 10);
  EXPECT_EQ(port.completions[0].source_qpn, 0x55u);
  EXPECT_TRUE(port.completions[0].has_grh);
  EXPECT_EQ(port.completions[0].immediate_or_rkey, 3u);
  EXPECT_EQ(port.received_bytes, kGrhBytes + 10);
}

TEST_F(UdResponderTest, foreign_qkey_and_missing_receive_are_silent) {
  port.receives = 1;
  receive(kQkey + 1, 10);
  EXPECT_EQ(port.receives, 1);
  EXPECT_EQ(responder.counters().qkey_violations, 1u);
  EXPECT_EQ(responder.counters().out_of_buffer, 0u);
  port.receives = 0;
  receive(kQkey, 10);
  EXPECT_EQ(port.trace, "");
  EXPECT_EQ(responder.counters().out_of_buffer, 1u);
  responder.set_qkey(kQkey + 1);
  port.receives = 1;
  receive(kQkey + 1, 10);
  EXPECT_EQ(port.trace, "C");
}

TEST_F(UdResponderTest, message_as_long_as_the_mtu_is_the_longest_and_an_empty_one_has_its_header) {
  port.receives = 3;
  receive(kQkey, kMtu + 1);
  EXPECT_EQ(port.trace, "");
  EXPECT_EQ(port.receives, 3);
  receive(kQkey, kMtu);
  receive(kQkey, 0);
  EXPECT_EQ(port.trace, "CC");
  EXPECT_THAT(port.received_at, ElementsAre(0u, kGrhBytes, 0u)) << "header, message, header";
  EXPECT_EQ(port.completions[1].byte_count, kGrhBytes);
  EXPECT_EQ(responder.counters().packets_received, 3u);
  EXPECT_EQ(responder.counters().qkey_violations, 0u);
  roce::Headers of_uc;
  of_uc.bth.opcode = Opcode::kUcSendOnly;
  of_uc.deth.qkey = kQkey;
  responder.on_packet(of_uc, {}, {});
  EXPECT_EQ(port.receives, 1);
}

TEST_F(UdResponderTest, receive_too_small_is_fatal) {
  port.receives = 2;
  port.receive_result = Syndrome::kLocalLength;
  receive(kQkey, 10);
  receive(kQkey, 10);
  EXPECT_EQ(port.trace, "CF");
  EXPECT_EQ(port.receives, 1);
  EXPECT_EQ(port.fatal_syndrome, Syndrome::kLocalLength);
  EXPECT_EQ(port.completions[0].syndrome, Syndrome::kLocalLength);
}

}  // namespace ud_test
}  // namespace gdx::softhca::transport
