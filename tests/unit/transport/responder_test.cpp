#include "driver-shim/softhca/transport/responder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/transport/recording_ports.h"

namespace gdx::softhca::transport {
namespace responder_test {

using mlx5::CqeOpcode;
using mlx5::Syndrome;
using roce::Opcode;
using test::kAddress;
using test::kAll;
using test::kMtu;
using test::kRkey;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

class ResponderTest : public testing::Test {
 protected:
  explicit ResponderTest(const RcConfig& config = test::make_config()) : responder(config, port) {}

  static roce::Headers request(Opcode opcode, std::uint32_t psn, std::uint32_t length_bytes = 0) {
    roce::Headers headers;
    headers.bth.opcode = opcode;
    headers.bth.psn = psn;
    headers.bth.ack_request = true;
    headers.reth = {kAddress, kRkey, length_bytes};
    headers.atomic = {kAddress, kRkey, 7, 0};
    headers.immediate = kRkey;
    return headers;
  }
  void receive(const roce::Headers& headers, std::size_t payload_bytes = 0) {
    const std::vector<std::byte> payload(payload_bytes, std::byte{0xee});
    responder.on_packet(0, headers, payload);
  }
  void receive(Opcode opcode, std::uint32_t psn, std::size_t payload_bytes = 0) {
    receive(request(opcode, psn, static_cast<std::uint32_t>(payload_bytes)), payload_bytes);
  }
  void pump() { responder.pump(0, kAll); }
  std::vector<std::pair<std::uint32_t, int>> answers() const {
    std::vector<std::pair<std::uint32_t, int>> list;
    for (const roce::Headers& headers : port.sent) list.push_back({headers.bth.psn, headers.aeth.syndrome});
    return list;
  }

  test::RecordingResponderPort port;
  Responder responder;
};

TEST_F(ResponderTest, writes_land_and_their_acks_merge_until_pump) {
  receive(request(Opcode::kRcWriteFirst, 100, kMtu + 8), kMtu);
  receive(request(Opcode::kRcWriteLast, 101), 8);
  receive(Opcode::kRcWriteOnly, 102, 8);
  EXPECT_EQ(port.trace, "WWW");
  EXPECT_TRUE(responder.can_send());
  pump();
  EXPECT_THAT(answers(), ElementsAre(Pair(102, roce::kAethAck)));
  EXPECT_EQ(port.sent[0].aeth.msn, 2u);
  EXPECT_EQ(port.memory[kMtu + 7], std::byte{0xee});
  EXPECT_EQ(port.memory[kMtu + 8], std::byte{0});
  EXPECT_EQ(responder.expected_psn(), 103u);
  EXPECT_FALSE(responder.can_send());
}

TEST_F(ResponderTest, empty_write_and_read_need_no_key) {
  auto headers = request(Opcode::kRcWriteOnly, 100);
  headers.reth.rkey = 0;
  receive(headers);
  headers.bth.opcode = Opcode::kRcReadRequest;
  headers.bth.psn = 101;
  receive(headers);
  pump();
  EXPECT_THAT(answers(), ElementsAre(Pair(100, roce::kAethAck), Pair(101, roce::kAethAck)));
  EXPECT_EQ(port.sent[1].bth.opcode, Opcode::kRcReadResponseOnly);
  EXPECT_THAT(port.checks, IsEmpty());
}

TEST_F(ResponderTest, gap_draws_one_nak_until_it_is_filled) {
  receive(Opcode::kRcWriteOnly, 101, 8);
  receive(Opcode::kRcWriteOnly, 102, 8);
  EXPECT_THAT(answers(), ElementsAre(Pair(100, roce::kNakSequenceError)));
  receive(Opcode::kRcWriteOnly, 100, 8);
  receive(Opcode::kRcWriteOnly, 102, 8);
  pump();
  EXPECT_THAT(answers(), ElementsAre(Pair(100, roce::kNakSequenceError), Pair(100, roce::kAethAck),
                                     Pair(101, roce::kNakSequenceError)));
  EXPECT_EQ(port.trace, "SWSS");
  EXPECT_EQ(responder.counters().out_of_sequence, 3u);
}

TEST_F(ResponderTest, duplicate_write_is_acknowledged_and_not_executed) {
  receive(Opcode::kRcWriteOnly, 100, 8);
  receive(Opcode::kRcWriteOnly, 101, 8);
  pump();
  receive(Opcode::kRcWriteOnly, 100, 8);
  pump();
  EXPECT_EQ(port.trace, "WWSS");
  EXPECT_EQ(port.sent[1].bth.psn, 101u);
  EXPECT_EQ(responder.counters().duplicate_requests, 1u);
}

TEST_F(ResponderTest, ack_of_a_duplicate_write_names_no_read_that_came_after_it) {
  receive(Opcode::kRcWriteOnly, 100, 8);
  receive(Opcode::kRcWriteOnly, 101, 8);
  receive(request(Opcode::kRcReadRequest, 102, 2 * kMtu));
  pump();
  port.sent.clear();
  receive(Opcode::kRcWriteOnly, 100, 8);
  pump();
  EXPECT_THAT(answers(), ElementsAre(Pair(101, roce::kAethAck)));
}

TEST_F(ResponderTest, duplicate_atomics_replay_what_was_returned_while_remembered) {
  for (std::uint32_t psn = 100; psn < 103; ++psn) receive(Opcode::kRcFetchAdd, psn);
  EXPECT_EQ(port.word, 21u);
  receive(Opcode::kRcFetchAdd, 101);
  receive(Opcode::kRcFetchAdd, 102);
  EXPECT_EQ(port.word, 21u);
  ASSERT_EQ(port.sent.size(), 5u);
  EXPECT_EQ(port.sent[1].atomic_original, 7u);
  EXPECT_EQ(port.sent[3].atomic_original, 7u);
  EXPECT_EQ(port.sent[4].atomic_original, 14u);
  EXPECT_EQ(port.sent[4].bth.opcode, Opcode::kRcAtomicAcknowledge);
  receive(Opcode::kRcFetchAdd, 100);  // older than the cache of two
  EXPECT_EQ(port.sent.size(), 5u);
  EXPECT_EQ(port.word, 21u);
  receive(Opcode::kRcFetchAdd, 103);
  EXPECT_EQ(port.word, 28u) << "duplicates take no part of the depth, and give none back";
}

TEST_F(ResponderTest, atomics_behind_a_read_share_its_depth_and_their_duplicates_are_bounded) {
  receive(request(Opcode::kRcReadRequest, 100, kMtu));
  receive(Opcode::kRcFetchAdd, 101);
  for (int i = 0; i < 5; ++i) receive(Opcode::kRcFetchAdd, 101);  // its answer waits: nothing to repeat
  EXPECT_EQ(responder.pump(0, kAll), 1u) << "the atomic's answer leaves right behind the READ's";
  EXPECT_EQ(port.sent.size(), 2u);
  EXPECT_EQ(port.word, 7u);

  receive(request(Opcode::kRcReadRequest, 102, kMtu));
  receive(Opcode::kRcFetchAdd, 103);
  receive(Opcode::kRcFetchAdd, 104);  // one beyond the depth of two
  EXPECT_EQ(port.word, 14u);
  pump();
  EXPECT_EQ(port.fatal_syndrome, Syndrome::kRemoteInvalidRequest);
}

TEST_F(ResponderTest, duplicate_atomics_behind_a_read_are_answered_once) {
  receive(Opcode::kRcFetchAdd, 100);
  receive(Opcode::kRcFetchAdd, 101);
  receive(request(Opcode::kRcReadRequest, 102, kMtu));
  for (int i = 0; i < 5; ++i) receive(Opcode::kRcFetchAdd, 101);
  receive(Opcode::kRcFetchAdd, 100);  // two requests of a depth of two came after it: a stray
  pump();
  EXPECT_EQ(port.trace, "ASASRS");
}

TEST_F(ResponderTest, reconfigured_rights_and_timer_hold_for_the_next_request) {
  RcConfig config = test::make_config();
  config.min_rnr_timer = 9;
  config.remote_write = false;
  responder.reconfigure(config);
  receive(Opcode::kRcSendOnly, 100, 8);
  EXPECT_THAT(answers(), ElementsAre(Pair(100, roce::kAethKindRnr | 9)));
  receive(Opcode::kRcWriteOnly, 100, 8);
  EXPECT_EQ(port.trace, "SSF");
}

TEST_F(ResponderTest, compare_swap_swaps_on_equality_only) {
  port.word = 3;
  auto headers = request(Opcode::kRcCompareSwap, 100);
  headers.atomic.compare = 4;
  receive(headers);
  EXPECT_EQ(port.word, 3u);
  headers.bth.psn = 101;
  headers.atomic.compare = 3;
  receive(headers);
  EXPECT_EQ(port.word, 7u);
  EXPECT_EQ(port.sent[1].atomic_original, 3u);
}

TEST_F(ResponderTest, read_takes_psns_and_leaves_as_far_as_pump_allows) {
  receive(request(Opcode::kRcReadRequest, 100, 2 * kMtu + 1));
  EXPECT_EQ(responder.expected_psn(), 103u);
  EXPECT_TRUE(responder.can_send());
  EXPECT_FALSE(responder.can_send(false));
  EXPECT_EQ(responder.pump(0, 1), 1u);
  EXPECT_EQ(responder.pump(0, 5), 2u);
  ASSERT_EQ(port.sent.size(), 3u);
  EXPECT_EQ(port.sent[0].bth.opcode, Opcode::kRcReadResponseFirst);
  EXPECT_EQ(port.sent[1].bth.opcode, Opcode::kRcReadResponseMiddle);
  EXPECT_EQ(port.sent[2].bth.opcode, Opcode::kRcReadResponseLast);
  EXPECT_EQ(port.sent[2].bth.pad_count, 3);
  EXPECT_EQ(port.sent[2].aeth.msn, 1u);
  EXPECT_THAT(port.read_ranges,
              ElementsAre(Pair(kAddress, kMtu), Pair(kAddress + kMtu, kMtu), Pair(kAddress + 2 * kMtu, 1)));
}

TEST_F(ResponderTest, acks_leave_where_the_wire_has_no_room_for_read_responses) {
  receive(Opcode::kRcWriteOnly, 100, 8);
  receive(request(Opcode::kRcReadRequest, 101, 2 * kMtu));
  receive(Opcode::kRcWriteOnly, 103, 8);
  EXPECT_EQ(responder.pump(0, kAll, 0), 1u);
  EXPECT_EQ(port.trace, "WWS") << "the ACK in front of the READ, and not the one behind it";
  EXPECT_EQ(responder.pump(0, kAll, 1), 1u);
  EXPECT_EQ(responder.pump(0, kAll, 0), 0u);
  EXPECT_EQ(responder.pump(0, kAll, 1), 1u);
  EXPECT_EQ(port.trace, "WWSRRS");
}

TEST_F(ResponderTest, duplicate_read_from_its_middle_is_answered_from_there) {
  receive(request(Opcode::kRcReadRequest, 100, 3 * kMtu));
  receive(request(Opcode::kRcReadRequest, 100, 3 * kMtu));  // still on its way: not answered twice
  pump();
  EXPECT_EQ(port.sent.size(), 3u);
  auto again = request(Opcode::kRcReadRequest, 101, 2 * kMtu);
  again.reth.address += kMtu;
  receive(again);
  pump();
  ASSERT_EQ(port.sent.size(), 5u);
  EXPECT_EQ(port.sent[3].bth.opcode, Opcode::kRcReadResponseFirst);
  EXPECT_EQ(port.sent[3].bth.psn, 101u);
  EXPECT_EQ(responder.expected_psn(), 103u);
}

TEST_F(ResponderTest, duplicate_of_a_read_that_is_being_answered_begins_the_answer_anew) {
  receive(request(Opcode::kRcReadRequest, 100, 4 * kMtu));
  EXPECT_EQ(responder.pump(0, 3), 3u);
  auto again = request(Opcode::kRcReadRequest, 101, 3 * kMtu);
  again.reth.address += kMtu;
  receive(again);
  pump();
  std::vector<std::uint32_t> psns;
  for (const roce::Headers& sent : port.sent) psns.push_back(sent.bth.psn);
  EXPECT_THAT(psns, ElementsAre(100, 101, 102, 101, 102, 103)) << "what was left goes once";
  EXPECT_EQ(port.sent[3].bth.opcode, Opcode::kRcReadResponseFirst);
  EXPECT_EQ(port.sent[5].bth.opcode, Opcode::kRcReadResponseLast);
  for (std::size_t i = 1; i < 4; ++i)
    EXPECT_EQ(port.read_ranges[2 + i], std::pair(kAddress + i * kMtu, kMtu)) << i;
  receive(request(Opcode::kRcReadRequest, 104, kMtu));
  pump();
  EXPECT_EQ(responder.expected_psn(), 105u) << "it counts once among the peer's READs";
}

TEST_F(ResponderTest, duplicate_of_a_read_does_not_overtake_the_answer_to_an_earlier_one) {
  receive(request(Opcode::kRcReadRequest, 100, 2 * kMtu));
  pump();
  receive(request(Opcode::kRcReadRequest, 102, 4 * kMtu));
  EXPECT_EQ(responder.pump(0, 2), 2u);
  auto first = request(Opcode::kRcReadRequest, 101, kMtu);
  first.reth.address += kMtu;
  receive(first);
  receive(request(Opcode::kRcReadRequest, 102, 4 * kMtu));
  pump();
  std::vector<std::uint32_t> psns;
  for (const roce::Headers& sent : port.sent) psns.push_back(sent.bth.psn);
  EXPECT_THAT(psns, ElementsAre(100, 101, 102, 103, 104, 105, 101, 102, 103, 104, 105));
}

// As many answers to duplicates may wait as the peer may have READs outstanding.
TEST_F(ResponderTest, duplicate_reads_beyond_the_depth_are_not_answered) {
  receive(request(Opcode::kRcReadRequest, 100, 2 * kMtu));
  receive(request(Opcode::kRcReadRequest, 102, 2 * kMtu));
  pump();
  port.sent.clear();
  for (const std::uint32_t psn : {103u, 101u, 100u}) {
    const std::uint32_t skipped = psn % 2;
    auto again = request(Opcode::kRcReadRequest, psn, (2 - skipped) * kMtu);
    again.reth.address += skipped * kMtu;
    receive(again);
  }
  pump();
  EXPECT_THAT(answers(), ElementsAre(Pair(103, roce::kAethAck), Pair(101, roce::kAethAck)));
}

TEST_F(ResponderTest, sends_of_several_packets_are_stored_from_their_beginning) {
  port.receives = 2;
  receive(Opcode::kRcSendFirst, 100, kMtu);
  receive(Opcode::kRcSendLast, 101, 8);
  receive(Opcode::kRcSendFirst, 102, kMtu);
  receive(Opcode::kRcSendLast, 103, 8);
  EXPECT_THAT(port.received_at, ElementsAre(0, kMtu, 0, kMtu));
}

TEST_F(ResponderTest, duplicate_read_of_other_memory_or_of_an_old_request_is_ignored) {
  receive(request(Opcode::kRcReadRequest, 100, 2 * kMtu));
  pump();
  EXPECT_EQ(port.sent.size(), 2u);
  auto elsewhere = request(Opcode::kRcReadRequest, 100, kMtu);
  elsewhere.reth.address += 8;
  receive(elsewhere);
  auto longer = request(Opcode::kRcReadRequest, 100, 2 * kMtu + 1);
  receive(longer);
  auto other_key = request(Opcode::kRcReadRequest, 100, kMtu);
  other_key.reth.rkey ^= 1;
  receive(other_key);
  EXPECT_FALSE(responder.can_send());
  receive(request(Opcode::kRcReadRequest, 102, 8));
  receive(request(Opcode::kRcReadRequest, 103, 8));
  pump();
  receive(request(Opcode::kRcReadRequest, 100, 2 * kMtu));
  EXPECT_FALSE(responder.can_send()) << "two requests of a depth of two came after it";
  EXPECT_EQ(port.fatal_syndrome, Syndrome::kNone);
}

TEST_F(ResponderTest, masked_atomics_apply_their_masks_and_replay_from_the_cache) {
  port.word = 0x00ff'00ff;
  auto swap = request(Opcode::kMaskedCompareSwap, 100);
  swap.atomic = {kAddress, kRkey, 0xaaaa'0000, 0x00ff};
  swap.atomic_mask = {0xffff'0000, 0xffff};
  receive(swap);
  EXPECT_EQ(port.word, 0xaaaa'00ffu);
  auto add = request(Opcode::kMaskedFetchAdd, 101);
  add.atomic.swap_or_add = 1;
  add.atomic_mask = {0x80, 0};
  receive(add);
  EXPECT_EQ(port.word, 0xaaaa'0000u);
  receive(swap);
  receive(add);
  EXPECT_EQ(port.word, 0xaaaa'0000u);
  ASSERT_EQ(port.sent.size(), 4u);
  EXPECT_EQ(port.sent[2].atomic_original, 0x00ff'00ffu);
  EXPECT_EQ(port.sent[3].atomic_original, 0xaaaa'00ffu);
}

TEST_F(ResponderTest, ack_is_sent_before_the_receive_completes) {
  port.receives = 1;
  auto headers = request(Opcode::kRcSendOnlyInvalidate, 100);
  headers.bth.solicited = true;
  receive(headers, 8);
  EXPECT_EQ(port.trace, "ISC");
  ASSERT_EQ(port.completions.size(), 1u);
  EXPECT_EQ(port.completions[0].opcode, CqeOpcode::kResponderSendInvalidate);
  EXPECT_EQ(port.completions[0].byte_count, 8u);
  EXPECT_EQ(port.completions[0].immediate_or_rkey, kRkey);
  EXPECT_TRUE(port.completions[0].solicited);
}

TEST_F(ResponderTest, receives_behind_a_read_wait_for_pump_to_send_its_responses) {
  port.receives = 2;
  receive(request(Opcode::kRcReadRequest, 100, 2 * kMtu));
  receive(Opcode::kRcSendOnly, 102, 8);
  receive(Opcode::kRcSendOnly, 103, 8);
  EXPECT_EQ(port.trace, "") << "a long READ must not be sent in one go";
  EXPECT_EQ(responder.pump(0, 1), 1u);
  EXPECT_EQ(port.trace, "R");
  pump();
  EXPECT_EQ(port.trace, "RRSCSC");
}

TEST_F(ResponderTest, rnr_naks_behind_a_read_do_not_pile_up) {
  receive(request(Opcode::kRcReadRequest, 100, kMtu));
  for (int i = 0; i < 5; ++i) receive(Opcode::kRcSendOnly, 101, 8);
  pump();
  EXPECT_EQ(port.trace, "RS");
  EXPECT_EQ(responder.counters().naks_withheld, 4u);
}

TEST_F(ResponderTest, flood_of_requests_draws_naks_at_a_bounded_rate) {
  constexpr std::uint32_t kFlood = 1000;
  for (std::uint32_t i = 0; i < kFlood; ++i) receive(Opcode::kRcSendOnly, 100, 8);
  EXPECT_EQ(port.sent.size(), kNakBurst);
  EXPECT_EQ(responder.counters().naks_sent, kNakBurst);
  EXPECT_EQ(responder.counters().naks_withheld, kFlood - kNakBurst);
  responder.on_packet(10 * kNakIntervalNs, request(Opcode::kRcSendOnly, 100), {});
  EXPECT_EQ(port.sent.size(), kNakBurst + 1) << "time brings tokens";
  port.receives = 1;
  receive(Opcode::kRcSendOnly, 100, 8);
  EXPECT_EQ(port.completions.size(), 1u) << "the flood has not harmed the queue pair";
}

TEST_F(ResponderTest, missing_receive_draws_rnr_and_leaves_no_trace) {
  receive(Opcode::kRcSendOnly, 100, 8);
  receive(Opcode::kRcWriteOnly, 101, 8);
  EXPECT_THAT(answers(), ElementsAre(Pair(100, roce::kAethKindRnr | 1)));
  EXPECT_EQ(responder.expected_psn(), 100u);
  auto headers = request(Opcode::kRcWriteOnlyImmediate, 100, 8);
  receive(headers, 8);
  EXPECT_EQ(port.trace, "SS") << "no payload may land without a receive";
  EXPECT_EQ(responder.counters().out_of_buffer, 2u) << "the write behind the first is out of sequence";
  port.receives = 1;
  receive(headers, 8);
  EXPECT_EQ(port.trace, "SSWSC");
  EXPECT_EQ(port.completions[0].opcode, CqeOpcode::kResponderWriteImmediate);
}

// Forbidden requests of a peer, and their answers.
struct Violation {
  const char* name;
  std::vector<std::pair<roce::Headers, std::size_t>> packets;
  std::uint8_t nak;
  Syndrome fatal;
};

class ResponderViolation : public ResponderTest {
 protected:
  void expect_refusal(const Violation& violation) {
    SCOPED_TRACE(violation.name);
    test::RecordingResponderPort local;
    local.receives = 4;
    Responder target(test::make_config(), local);
    for (const auto& [headers, payload_bytes] : violation.packets) {
      target.on_packet(0, headers, std::vector<std::byte>(payload_bytes));
    }
    target.pump(0, kAll);
    ASSERT_FALSE(local.sent.empty());
    EXPECT_EQ(local.sent.back().aeth.syndrome, violation.nak);
    EXPECT_EQ(local.fatal_syndrome, violation.fatal);
    EXPECT_EQ(target.counters().key_faults, violation.nak == roce::kNakRemoteAccess ? 1u : 0u);
    EXPECT_EQ(target.counters().naks_sent, 1u);
    EXPECT_TRUE(local.trace.ends_with("SF")) << local.trace;
    const std::size_t sent = local.sent.size();
    target.on_packet(0, request(Opcode::kRcWriteOnly, target.expected_psn(), 0), {});
    target.pump(0, kAll);
    EXPECT_EQ(local.sent.size(), sent) << "a dead responder answers nothing";
  }
};

TEST_F(ResponderViolation, sequence_and_length_violations_are_invalid_requests) {
  const auto last = [](Opcode opcode, std::uint32_t psn) { return request(opcode, psn); };
  const roce::Headers first_write = request(Opcode::kRcWriteFirst, 100, 2 * kMtu);
  auto misaligned = request(Opcode::kRcFetchAdd, 100);
  misaligned.atomic.address += 4;
  const std::vector<Violation> violations{
      {"MIDDLE without FIRST", {{last(Opcode::kRcWriteMiddle, 100), kMtu}}, 0x61, {}},
      {"LAST without FIRST", {{last(Opcode::kRcSendLast, 100), 8}}, 0x61, {}},
      {"FIRST in a message", {{first_write, kMtu}, {request(Opcode::kRcWriteOnly, 101, 8), 8}}, 0x61, {}},
      {"READ in a message", {{first_write, kMtu}, {request(Opcode::kRcReadRequest, 101, 8), 0}}, 0x61, {}},
      {"SEND ends a WRITE", {{first_write, kMtu}, {last(Opcode::kRcSendLast, 101), 8}}, 0x61, {}},
      {"short FIRST", {{first_write, kMtu - 1}}, 0x61, {}},
      {"WRITE too short", {{first_write, kMtu}, {last(Opcode::kRcWriteLast, 101), 8}}, 0x61, {}},
      {"WRITE too long", {{first_write, kMtu}, {last(Opcode::kRcWriteMiddle, 101), kMtu}}, 0x61, {}},
      {"ONLY longer than MTU", {{request(Opcode::kRcWriteOnly, 100, kMtu + 1), kMtu + 1}}, 0x61, {}},
      {"RETH length differs", {{request(Opcode::kRcWriteOnly, 100, 9), 8}}, 0x61, {}},
      {"empty LAST", {{first_write, kMtu}, {last(Opcode::kRcWriteLast, 101), 0}}, 0x61, {}},
      {"empty LAST of a SEND",
       {{last(Opcode::kRcSendFirst, 100), kMtu}, {last(Opcode::kRcSendLast, 101), 0}},
       0x61,
       {}},
      {"misaligned atomic", {{misaligned, 0}}, 0x61, {}},
      {"READ beyond a message",
       {{request(Opcode::kRcReadRequest, 100, mlx5::kMaxMessageBytes + 1), 0}},
       0x61,
       {}},
      {"WRITE beyond a message",
       {{request(Opcode::kRcWriteFirst, 100, mlx5::kMaxMessageBytes + 1), kMtu}},
       0x61,
       {}},
      {"READs beyond the depth",
       {{request(Opcode::kRcReadRequest, 100, 8), 0},
        {request(Opcode::kRcReadRequest, 101, 8), 0},
        {request(Opcode::kRcReadRequest, 102, 8), 0}},
       0x61,
       {}}};
  for (Violation violation : violations) {
    violation.fatal = Syndrome::kRemoteInvalidRequest;
    expect_refusal(violation);
  }
}

TEST_F(ResponderViolation, bad_keys_and_ranges_are_access_errors_before_anything_lands) {
  auto bad_key = request(Opcode::kRcWriteOnly, 100, 8);
  bad_key.reth.rkey ^= 1;
  auto bad_read = request(Opcode::kRcReadRequest, 100, 4097);
  auto bad_atomic = request(Opcode::kRcFetchAdd, 100);
  bad_atomic.atomic.address += 4096;
  // The first packet fits, the message does not.
  const auto too_long = request(Opcode::kRcWriteFirst, 100, 4097);
  for (const Violation& violation :
       {Violation{"rkey", {{bad_key, 8}}, 0x62, Syndrome::kRemoteAccess},
        Violation{"READ range", {{bad_read, 0}}, 0x62, Syndrome::kRemoteAccess},
        Violation{"longest READ",
                  {{request(Opcode::kRcReadRequest, 100, mlx5::kMaxMessageBytes), 0}},
                  0x62,
                  Syndrome::kRemoteAccess},
        Violation{"longest WRITE",
                  {{request(Opcode::kRcWriteFirst, 100, mlx5::kMaxMessageBytes), kMtu}},
                  0x62,
                  Syndrome::kRemoteAccess},
        Violation{"atomic range", {{bad_atomic, 0}}, 0x62, Syndrome::kRemoteAccess},
        Violation{"WRITE range", {{too_long, kMtu}}, 0x62, Syndrome::kRemoteAccess}}) {
    expect_refusal(violation);
  }
}

class ResponderClosed : public ResponderTest {
 protected:
  static RcConfig config() {
    RcConfig closed = test::make_config();
    closed.remote_write = closed.remote_read = closed.remote_atomic = false;
    return closed;
  }
};

TEST_F(ResponderClosed, operations_not_enabled_are_invalid_requests) {
  for (const Opcode opcode : {Opcode::kRcWriteOnly, Opcode::kRcReadRequest, Opcode::kRcFetchAdd}) {
    test::RecordingResponderPort local;
    Responder target(config(), local);
    target.on_packet(0, request(opcode, 100), {});
    EXPECT_EQ(local.trace, "SF");
    EXPECT_EQ(local.sent[0].aeth.syndrome, roce::kNakInvalidRequest);
  }
}

TEST_F(ResponderTest, receive_too_small_completes_in_error_and_refuses) {
  port.receives = 1;
  port.receive_result = Syndrome::kLocalLength;
  receive(Opcode::kRcSendOnly, 100, 8);
  EXPECT_EQ(port.trace, "SCF");
  EXPECT_THAT(answers(), ElementsAre(Pair(100, roce::kNakInvalidRequest)));
  EXPECT_EQ(port.completions[0].syndrome, Syndrome::kLocalLength);
}

TEST_F(ResponderTest, region_gone_under_a_read_draws_an_access_nak_at_its_psn) {
  receive(request(Opcode::kRcReadRequest, 100, 2 * kMtu));
  receive(request(Opcode::kRcReadRequest, 102, kMtu));
  responder.pump(0, 1);
  port.memory_readable = false;
  pump();
  EXPECT_EQ(port.trace, "RSF");
  EXPECT_EQ(responder.counters().naks_sent, 1u);
  EXPECT_EQ(responder.counters().key_faults, 1u);
  EXPECT_FALSE(responder.can_send()) << "the other READ";
  EXPECT_EQ(port.sent[1].bth.psn, 101u);
  EXPECT_EQ(port.sent[1].aeth.syndrome, roce::kNakRemoteAccess);
  receive(Opcode::kRcWriteOnly, 103, 8);
  pump();
  EXPECT_EQ(port.trace, "RSF") << "it is dead";
}

TEST_F(ResponderTest, answer_leaves_with_the_duplicate_read_before_it_whose_region_is_gone) {
  receive(request(Opcode::kRcReadRequest, 100, kMtu));
  pump();
  receive(request(Opcode::kRcReadRequest, 100, kMtu));
  receive(Opcode::kRcFetchAdd, 101);
  const std::size_t before = port.sent.size();
  port.memory_readable = false;
  responder.pump(0, 1);
  EXPECT_STREQ(responder.check_invariants(), nullptr);
  ASSERT_EQ(port.sent.size(), before + 1);
  EXPECT_EQ(port.sent.back().bth.opcode, Opcode::kRcAtomicAcknowledge);
}

TEST_F(ResponderTest, read_that_is_permitted_no_more_is_not_answered_again) {
  receive(request(Opcode::kRcReadRequest, 100, kMtu));
  pump();
  ASSERT_EQ(port.sent.size(), 1u);
  RcConfig closed = test::make_config();
  closed.remote_read = false;
  responder.reconfigure(closed);
  receive(request(Opcode::kRcReadRequest, 100, kMtu));
  pump();
  EXPECT_EQ(port.sent.size(), 1u);
  EXPECT_EQ(responder.counters().duplicate_requests, 1u);
}

TEST_F(ResponderTest, memory_gone_under_an_atomic_draws_an_access_nak_and_nothing_is_remembered) {
  port.memory_is_there = false;
  receive(Opcode::kRcFetchAdd, 100);
  pump();
  EXPECT_EQ(port.trace, "SF");
  ASSERT_EQ(port.sent.size(), 1u);
  EXPECT_EQ(port.sent[0].bth.psn, 100u);
  EXPECT_EQ(port.sent[0].aeth.syndrome, roce::kNakRemoteAccess);
  EXPECT_EQ(port.word, 0u);
}

class ResponderAtWrap : public ResponderTest {
 protected:
  ResponderAtWrap() : ResponderTest(test::make_config(0xffffff)) {}
};

TEST_F(ResponderAtWrap, psn_wraps_and_older_ones_are_duplicates) {
  receive(Opcode::kRcWriteOnly, 0xffffff, 8);
  receive(Opcode::kRcWriteOnly, 0, 8);
  receive(Opcode::kRcWriteOnly, 0xffffff, 8);
  pump();
  EXPECT_EQ(port.trace, "WWS");
  EXPECT_EQ(port.sent[0].bth.psn, 0u);
  EXPECT_EQ(responder.expected_psn(), 1u);
  EXPECT_EQ(responder.counters().duplicate_requests, 1u);
}

TEST_F(ResponderTest, responses_are_not_taken_for_requests) {
  receive(Opcode::kRcAcknowledge, 100);
  receive(Opcode::kRcReadResponseOnly, 100, 8);
  pump();
  EXPECT_EQ(port.trace, "");
  EXPECT_EQ(responder.expected_psn(), 100u);
}

}  // namespace responder_test
}  // namespace gdx::softhca::transport
