// Queue pairs of each service in virtual time: PSNs, whole completions, rights, Q_Keys, limits and counters.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "proto/roce/codec.h"
#include "proto/roce/ip_header.h"
#include "tests/unit/engine/virtual_pair.h"

namespace gdx::softhca::test {
namespace services_test {

using mlx5::CqeOpcode;
using mlx5::Syndrome;
using mlx5::WqeOpcode;

constexpr std::uint32_t kFirstPsn = 0xfffff0;  // as Node::connect() sets it
constexpr std::uint64_t kLimitNs = 1'000'000'000;

template <typename Segment>
void append(std::vector<std::byte>& to, const Segment& segment) {
  const auto* const at = reinterpret_cast<const std::byte*>(&segment);
  to.insert(to.end(), at, at + sizeof segment);
}

std::uint16_t post_datagram(Node& from, const wire::Address& to, std::uint32_t qpn, std::uint32_t qkey,
                            const Local& local) {
  mlx5::AddressVector vector{};
  vector.qkey = qkey;
  vector.destination_qpn = mlx5::kExtendedAddressVector | qpn;
  std::ranges::copy(to.gid, vector.remote_gid);
  std::vector<std::byte> segments;
  append(segments, vector);
  append(segments, mlx5::DataSegment{local.length_bytes, local.lkey, local.address});
  return from.post_raw(WqeOpcode::kSend, segments, mlx5::kCompletionAlways | mlx5::kSolicited);
}

class Services : public testing::Test {
 protected:
  explicit Services(QpType type = QpType::kRc, const HcaConfig& config = {})
      : pair(config, config, VirtualPair::kPatient, type) {}
  std::optional<Polled> next(bool of_receive) {
    std::optional<Polled> polled;
    Node& node = of_receive ? pair.b : pair.a;
    EXPECT_TRUE(
        pair.run([&] { return (polled = of_receive ? node.poll_receive() : node.poll_send()).has_value(); },
                 kLimitNs));
    return polled;
  }
  Syndrome next_send() {
    const std::optional<Polled> polled = next(false);
    return polled ? polled->syndrome : Syndrome::kRemoteAborted;
  }
  QpAttributes of(Node& node) { return node.hca->query_qp(node.qpn).value(); }
  transport::TransportCounters count(Node& node) { return node.hca->counters().transport; }
  static Errno modify(Node& node, std::uint32_t mask, const QpAttributes& attributes) {
    return node.hca->modify_qp(node.qpn, mask, attributes);
  }
  // Gives a node a packet of its peer.
  void forge(Node& node, roce::Headers headers, std::size_t payload_bytes = 0) {
    headers.bth.pkey = roce::kDefaultPkey;
    headers.bth.destination_qpn = node.qpn;
    std::vector<std::byte> datagram(roce::header_bytes(headers.bth.opcode) + payload_bytes);
    EXPECT_NE(roce::encode(headers, datagram), 0u);
    const bool is_a = &node == &pair.a;
    (is_a ? pair.to_a : pair.to_b).push_back({(is_a ? pair.b : pair.a).hca->address(), datagram});
    node.hca->progress();
  }
  static roce::Headers packet(roce::Opcode opcode, std::uint32_t psn, std::uint8_t syndrome = 0) {
    roce::Headers headers;
    headers.bth.opcode = opcode;
    headers.bth.psn = psn & roce::kPsnMask;
    headers.aeth.syndrome = syndrome;
    return headers;
  }

  VirtualPair pair;
};

TEST(QueryQp, tells_the_next_psns_of_each_service_and_those_set_once_it_has_ended) {
  for (const QpType type : {QpType::kRc, QpType::kUc, QpType::kUd}) {
    SCOPED_TRACE(static_cast<int>(type));
    VirtualPair pair({}, {}, VirtualPair::kPatient, type);
    for (std::uint32_t i = 1; i <= 20; ++i) {  // across the wrap
      if (type == QpType::kUd) {
        post_datagram(pair.a, pair.b.hca->address(), pair.b.qpn, Node::kQkey, pair.a.local(0, 8));
      } else {
        pair.a.post_write(pair.a.local(0, 8), pair.b.remote(0));
      }
      pair.a.ring();
      ASSERT_TRUE(pair.run([&] { return pair.a.poll_send().has_value(); }, kLimitNs));
      ASSERT_TRUE(pair.run([&] { return pair.to_b.empty(); }, kLimitNs));
      const QpAttributes sender = pair.a.hca->query_qp(pair.a.qpn).value();
      const QpAttributes receiver = pair.b.hca->query_qp(pair.b.qpn).value();
      EXPECT_EQ(sender.send_psn, (kFirstPsn + i) & roce::kPsnMask);
      EXPECT_EQ(sender.receive_psn, kFirstPsn);
      EXPECT_EQ(receiver.send_psn, kFirstPsn);
      EXPECT_EQ(receiver.receive_psn, type == QpType::kUd ? kFirstPsn : (kFirstPsn + i) & roce::kPsnMask);
    }
    ASSERT_EQ(pair.b.modify_to_error(), 0);
    EXPECT_EQ(pair.b.hca->query_qp(pair.b.qpn)->receive_psn, kFirstPsn);
    EXPECT_EQ(pair.b.hca->query_qp(pair.b.qpn)->state, QpState::kError);
    EXPECT_EQ(pair.b.hca->counters().transport.packets_received, 20u) << "they outlive their transport";
    ASSERT_EQ(pair.a.modify_to_reset(), 0);
    EXPECT_EQ(pair.a.hca->query_qp(pair.a.qpn)->send_psn, 0u);
    EXPECT_EQ(pair.a.hca->counters().transport.packets_sent, 20u);
  }
}

TEST_F(Services, completions_say_everything_of_a_send_and_its_receive) {
  pair.b.post_receive(pair.b.local(0, 64));
  std::vector<std::byte> segments;
  const Local from = pair.a.local(0, 24);
  append(segments, mlx5::DataSegment{from.length_bytes, from.lkey, from.address});
  pair.a.post_raw(WqeOpcode::kSendImmediate, segments, mlx5::kCompletionAlways | mlx5::kSolicited,
                  0x01020304);
  pair.a.ring();
  const std::uint64_t posted_ns = pair.now_ns;
  const mlx5::Cqe64 sent = next(false).value().cqe;
  EXPECT_EQ(sent.op_own, 0);
  EXPECT_EQ(sent.send_opcode_qpn, static_cast<std::uint32_t>(WqeOpcode::kSendImmediate) << 24 | pair.a.qpn);
  EXPECT_EQ(sent.srqn_user_index, 0x55u);
  EXPECT_EQ(sent.byte_count, 24u);
  EXPECT_EQ(sent.wqe_counter, 0);
  EXPECT_EQ(sent.timestamp, posted_ns + 1'000) << "of the step that took the ACK";
  const mlx5::Cqe64 received = next(true).value().cqe;
  EXPECT_EQ(received.op_own, static_cast<int>(CqeOpcode::kResponderSendImmediate) << 4 | mlx5::kCqeSolicited);
  EXPECT_EQ(received.send_opcode_qpn, pair.b.qpn);
  EXPECT_EQ(received.srqn_user_index, 0x55u);
  EXPECT_EQ(received.byte_count, 24u);
  EXPECT_EQ(received.immediate_or_invalidated_rkey, 0x01020304u);
  EXPECT_EQ(received.flags_remote_qpn, 0u) << "a connection has no network header";
  EXPECT_EQ(received.timestamp, posted_ns);
}

TEST_F(Services, message_longer_than_its_connection_permits_fails_before_it_is_sent) {
  QpAttributes limit;
  limit.max_message_bytes = 4096;
  ASSERT_EQ(modify(pair.a, kQpMaxMessage, limit), 0);
  EXPECT_EQ(of(pair.a).max_message_bytes, 4096u);
  for (const std::uint32_t length_bytes : {4096u, 4097u}) {
    pair.a.post_write(pair.a.local(0, length_bytes), pair.b.remote(0));
    pair.a.ring();
    EXPECT_EQ(next_send(), length_bytes > 4096 ? Syndrome::kLocalLength : Syndrome::kNone);
  }
  EXPECT_EQ(pair.packets_of_a(), 1u);
  EXPECT_EQ(of(pair.a).state, QpState::kError);
  EXPECT_EQ(pair.a.hca->failed_queue_pairs(), 1u);
  EXPECT_EQ(pair.b.hca->failed_queue_pairs(), 0u);
  EXPECT_TRUE(pair.a.events.empty()) << "the completion suffices";
}

// Each operation needs its own right of the key, and no other one.
TEST(KeyRights, of_a_region_permit_each_its_operation) {
  constexpr std::uint32_t kRights[] = {kRemoteWrite, kRemoteRead, kRemoteAtomic};
  for (std::size_t right = 0; right < std::size(kRights); ++right) {
    for (std::size_t operation = 0; operation < std::size(kRights); ++operation) {
      VirtualPair pair;
      const auto key = pair.b.hca->register_memory({.pd = pair.b.pd,
                                                    .base = pair.b.memory.data(),
                                                    .iova = pair.b.remote(0).address,
                                                    .length_bytes = 4096,
                                                    .access = kLocalWrite | kRights[right]});
      const Remote target{pair.b.remote(0).address, key.value()};
      if (operation == 0) pair.a.post_write(pair.a.local(0, 8), target);
      if (operation == 1) pair.a.post_read(pair.a.local(0, 8), target);
      if (operation == 2) pair.a.post_fetch_add(pair.a.local(0, 8), target, 1);
      pair.a.ring();
      std::optional<Polled> polled;
      ASSERT_TRUE(pair.run([&] { return (polled = pair.a.poll_send()).has_value(); }, kLimitNs));
      EXPECT_EQ(polled->syndrome, operation == right ? Syndrome::kNone : Syndrome::kRemoteAccess)
          << right << ' ' << operation;
      EXPECT_EQ(pair.b.events.empty(), operation == right);
    }
  }
}

TEST_F(Services, request_that_is_invalid_is_told_as_another_event_than_one_without_access) {
  forge(pair.b, packet(roce::Opcode::kRcWriteMiddle, kFirstPsn), 4096);
  EXPECT_EQ(pair.b.events, std::vector<int>{kEventQpRequestError});
  EXPECT_EQ(of(pair.b).state, QpState::kError);
  EXPECT_EQ(pair.b.hca->failed_queue_pairs(), 1u);
}

TEST_F(Services, receive_takes_what_fits_to_the_byte_and_fails_by_one_more) {
  for (const std::uint32_t length_bytes : {64u, 65u}) {
    pair.b.post_receive(pair.b.local(0, 64));
    pair.a.post_send(pair.a.local(0, length_bytes));
    pair.a.ring();
    EXPECT_EQ(next(true).value().syndrome, length_bytes > 64 ? Syndrome::kLocalLength : Syndrome::kNone);
  }
  EXPECT_EQ(pair.b.events, std::vector<int>{kEventQpRequestError});
}

TEST_F(Services, change_of_state_to_the_same_goes_on_where_it_was) {
  pair.a.post_write(pair.a.local(0, 1 << 20), pair.b.remote(0));
  pair.a.ring();
  pair.a.hca->progress();
  const QpAttributes before = of(pair.a);
  EXPECT_NE(before.send_psn, kFirstPsn);
  QpAttributes same;
  same.state = QpState::kRts;
  ASSERT_EQ(modify(pair.a, kQpState, same), 0);
  EXPECT_EQ(of(pair.a).send_psn, before.send_psn);
  EXPECT_EQ(next_send(), Syndrome::kNone);
  EXPECT_EQ(count(pair.a).packets_sent, (1u << 20) / 4096);
}

// Rights of the peer say nothing of this side's timers.
TEST_F(Services, other_attributes_leave_the_timers_and_their_retries) {
  pair.loses = [] { return true; };
  QpAttributes fast;
  fast.timeout = 8;
  fast.retry_count = 1;
  ASSERT_EQ(modify(pair.a, kQpTimeout | kQpRetryCount, fast), 0);
  pair.a.post_write(pair.a.local(0, 8), pair.b.remote(0));
  pair.a.ring();
  const std::uint64_t posted_ns = pair.now_ns;
  std::optional<Polled> polled;
  ASSERT_TRUE(pair.run(
      [&] {
        QpAttributes rights;
        rights.access = Node::kAllAccess;
        EXPECT_EQ(modify(pair.a, kQpAccessFlags, rights), 0);
        return (polled = pair.a.poll_send()).has_value();
      },
      kLimitNs));
  EXPECT_EQ(polled->syndrome, Syndrome::kRetryExceeded);
  EXPECT_NEAR(static_cast<double>(pair.now_ns - posted_ns), 3 * (4096 << 8), 10'000);
}

class StrictServices : public Services {
 protected:
  StrictServices() : Services(QpType::kRc, {.strict = true}) {}
};

// Each of them happens to one HCA, and its queue pair then leaves the set that counts them.
TEST_F(StrictServices, counters_of_a_set_are_six_and_the_others_count_every_queue_pair) {
  Node& a = pair.a;
  forge(a, packet(roce::Opcode::kRcWriteOnly, kFirstPsn + 5));
  forge(a, packet(roce::Opcode::kRcWriteOnly, kFirstPsn - 1));
  forge(a, packet(roce::Opcode::kRcSendOnly, kFirstPsn));
  pair.loses = [] { return true; };
  QpAttributes attributes;
  attributes.timeout = 13;  // 33.6 ms, behind a tail's 30 ms
  attributes.counter_set = 0;
  ASSERT_EQ(modify(a, kQpTimeout, attributes), 0);
  a.post_write(a.local(0, 8), pair.b.remote(0));
  a.ring();
  ASSERT_TRUE(pair.run([&] { return count(a).timeouts > 0; }, kLimitNs));
  forge(a, packet(roce::Opcode::kRcAcknowledge, kFirstPsn, roce::kNakSequenceError));
  forge(a, packet(roce::Opcode::kRcAcknowledge, kFirstPsn, roce::kAethKindRnr | 1));
  const transport::TransportCounters before = count(a);
  EXPECT_EQ(before.timeouts, 1u);
  EXPECT_EQ(before.naks_received, 1u);
  EXPECT_EQ(before.out_of_sequence, 1u);
  EXPECT_EQ(before.duplicate_requests, 1u);
  EXPECT_EQ(before.rnr_naks_received, 1u);
  EXPECT_EQ(before.out_of_buffer, 1u);
  EXPECT_GT(before.naks_sent, 0u);
  EXPECT_GT(before.tail_resends, 0u);
  ASSERT_EQ(modify(a, kQpCounterSet, attributes), 0);
  transport::TransportCounters expected = before;
  expected.timeouts = expected.naks_received = expected.out_of_sequence = 0;
  expected.duplicate_requests = expected.rnr_naks_received = expected.out_of_buffer = 0;
  const transport::TransportCounters after = count(a);
  EXPECT_EQ(std::memcmp(&after, &expected, sizeof after), 0);
}

class Datagrams : public Services {
 protected:
  Datagrams() : Services(QpType::kUd) {}
  void post(std::uint32_t qkey, std::uint32_t length_bytes = 9) {
    post_datagram(pair.a, pair.b.hca->address(), pair.b.qpn, qkey, pair.a.local(0, length_bytes));
    pair.a.ring();
  }
};

TEST_F(Datagrams, receive_begins_with_the_network_header_and_tells_its_kind_and_its_sender) {
  for (std::size_t i = 0; i < 64; ++i) pair.a.memory[i] = static_cast<std::byte>(i + 1);
  pair.b.post_receive(pair.b.local(0, 64));
  post(Node::kQkey);
  const Polled received = next(true).value();
  EXPECT_EQ(received.cqe.byte_count, roce::kGrhBytes + 9);
  EXPECT_EQ(received.cqe.flags_remote_qpn, pair.a.qpn | mlx5::kCqeHasGrh | std::uint32_t{0xa} << 24)
      << "IPv4";
  EXPECT_EQ(received.cqe.source_lid, 0);
  EXPECT_EQ(received.cqe.op_own, static_cast<int>(CqeOpcode::kResponderSend) << 4 | mlx5::kCqeSolicited);
  // BTH, DETH, 9 B, 3 B of padding and the ICRC, in UDP.
  const auto grh = roce::grh(pair.a.hca->address().gid, pair.b.hca->address().gid, true, 8 + 12 + 8 + 12 + 4);
  EXPECT_EQ(std::memcmp(pair.b.memory.data(), grh.data(), grh.size()), 0);
  EXPECT_EQ(std::memcmp(pair.b.memory.data() + grh.size(), pair.a.memory.data(), 9), 0);
  EXPECT_EQ(pair.b.memory[grh.size() + 9], std::byte{0});
  EXPECT_TRUE(pair.b.events.empty()) << "nothing is established";
}

TEST_F(Datagrams, qkeys_changed_alone_hold_for_the_next_message_of_either_side) {
  constexpr std::uint32_t kOther = 0x55667788;
  QpAttributes attributes;
  attributes.qkey = kOther;
  for (int i = 0; i < 4; ++i) pair.b.post_receive(pair.b.local(0, 64));
  const auto arrives = [&](std::uint32_t qkey) {
    post(qkey);
    EXPECT_EQ(next_send(), Syndrome::kNone);
    static_cast<void>(pair.run([&] { return pair.to_b.empty(); }));
    pair.b.hca->progress();
    return pair.b.poll_receive().has_value();
  };
  EXPECT_TRUE(arrives(transport::kControlledQkey)) << "the sender's own";
  ASSERT_EQ(modify(pair.b, kQpQkey, attributes), 0);
  EXPECT_FALSE(arrives(Node::kQkey));
  EXPECT_EQ(count(pair.b).qkey_violations, 1u);
  EXPECT_TRUE(arrives(kOther));
  EXPECT_FALSE(arrives(transport::kControlledQkey));
  ASSERT_EQ(modify(pair.a, kQpQkey, attributes), 0);
  EXPECT_TRUE(arrives(transport::kControlledQkey));
  EXPECT_EQ(count(pair.b).qkey_violations, 2u);
  EXPECT_EQ(of(pair.a).qkey, kOther);
}

TEST_F(Datagrams, message_to_another_kind_of_address_ends_sending_and_no_packet_leaves) {
  post_datagram(pair.a, *wire::Address::parse("fd00::1"), pair.b.qpn, Node::kQkey, pair.a.local(0, 8));
  pair.a.ring();
  EXPECT_EQ(next_send(), Syndrome::kLocalQpOperation);
  EXPECT_EQ(of(pair.a).state, QpState::kSqe);
  EXPECT_EQ(pair.packets_of_a(), 0u);
  post(Node::kQkey);
  EXPECT_EQ(next_send(), Syndrome::kFlushed) << "sending has ended";
  pair.a.post_raw(WqeOpcode::kSend, {}, mlx5::kCompletionAlways);
  pair.a.ring();
  EXPECT_EQ(next_send(), Syndrome::kFlushed);
}

}  // namespace services_test
}  // namespace gdx::softhca::test
