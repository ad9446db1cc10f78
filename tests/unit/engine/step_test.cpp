// Steps of one HCA on a wire that the test scripts: packets byte for byte, limits, and the sleep between.
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "driver-shim/softhca/engine/blueflame.h"
#include "proto/mad/mad.h"
#include "proto/mlx5/doorbell.h"
#include "proto/roce/codec.h"
#include "proto/roce/window.h"
#include "tests/unit/engine/node.h"

namespace gdx::softhca::test {
namespace step_test {

using Bytes = std::vector<std::byte>;

constexpr std::uint64_t kStartNs = 1'000'000'000;
constexpr std::uint64_t kLongestIdleNs = 1'000'000'000;
constexpr std::uint8_t kPatient = 20;  // local ACK timeout code: 4 s
const wire::Address own_address = wire::Address::ipv4(0x0a000001);
const wire::Address peer_address = wire::Address::ipv4(0x0a000002);
const wire::Address other_address = wire::Address::ipv4(0x0a000003);

struct Arrival {
  wire::Address source;
  Bytes datagram;
  std::uint16_t port = 0;
};
struct Departure {
  wire::Address destination;
  Bytes datagram;
};
// State of a wire, which outlives it.
struct Script {
  std::deque<Arrival> inbox;
  std::vector<Departure> sent;
  bool flushed = true;  // since the newest packet
  bool armed = true;
  bool lost = false;
  int lost_checks = 0;
  int asked = 0;  // calls of awaits()
  std::size_t socket_bytes = 0;
  std::function<void()> on_receive;
};

class ScriptedWire final : public wire::Wire {
 public:
  ScriptedWire(const wire::Address& local, Script& script) : local_(local), script_(script) {}
  const wire::Address& local() const override { return local_; }
  std::size_t room(const wire::Address& /*destination*/) override { return SIZE_MAX; }
  bool awaits(const wire::Address& /*destination*/) override { return ++script_.asked, false; }
  // Leaves no byte zero that nobody sets.
  std::span<std::byte> begin_packet(const wire::Address& /*destination*/) override {
    packet_.assign(wire::kMaxPacketBytes, std::byte{0xff});
    return packet_;
  }
  void commit_packet(const wire::Address& destination, std::size_t length_bytes) override {
    const auto end = packet_.begin() + static_cast<std::ptrdiff_t>(length_bytes);
    script_.sent.push_back({destination, {packet_.begin(), end}});
    script_.flushed = false;
  }
  void flush() override { script_.flushed = true; }
  std::size_t receive(std::size_t max_packets, const Sink& sink) override {
    if (script_.on_receive) script_.on_receive();
    std::size_t taken = 0;
    for (; taken < max_packets && !script_.inbox.empty(); ++taken) {
      const Arrival arrival = script_.inbox.front();
      script_.inbox.pop_front();
      port_ = arrival.port;
      sink(arrival.source, arrival.datagram);
    }
    return taken;
  }
  std::uint16_t arrival_port() const override { return port_; }
  std::size_t socket_bytes() const override { return script_.socket_bytes; }
  int poll_fd() const override { return -1; }
  bool lost() const override { return ++script_.lost_checks, script_.lost; }
  bool arm() override { return script_.armed; }
  const wire::WireCounters& counters() const override { return counters_; }

 private:
  wire::Address local_;
  Script& script_;
  std::uint16_t port_ = 0;
  wire::WireCounters counters_;
  Bytes packet_;
};

Bytes encoded(const roce::Headers& headers, std::span<const std::byte> payload = {}) {
  Bytes bytes(roce::header_bytes(headers.bth.opcode));
  EXPECT_EQ(roce::encode(headers, bytes), bytes.size());
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  bytes.resize(bytes.size() + headers.bth.pad_count);
  return bytes;
}

Bytes counting(std::size_t length_bytes) {
  Bytes bytes(length_bytes);
  for (std::size_t i = 0; i < length_bytes; ++i) bytes[i] = static_cast<std::byte>(i + 1);
  return bytes;
}

class Step : public testing::Test {
 protected:
  explicit Step(std::size_t socket_bytes = 0, const HcaConfig& config = {}) {
    script.socket_bytes = socket_bytes;
    node.emplace(std::make_unique<ScriptedWire>(own_address, script), 4 << 20, config,
                 [this] { return now_ns; });
    peer.emplace(std::make_unique<ScriptedWire>(peer_address, peers_script), 4 << 20);
    node->connect(*peer, kPatient);
  }
  Hca& hca() { return *node->hca; }
  void arrive(const roce::Headers& headers, std::span<const std::byte> payload = {}, std::uint16_t port = 0) {
    script.inbox.push_back({peer_address, encoded(headers, payload), port});
  }
  std::atomic_ref<std::uint64_t> word(std::size_t offset) {
    return std::atomic_ref(node->uar_page[offset / 8]);
  }
  void post_write(std::uint32_t length_bytes) {
    node->post_write(node->local(0, length_bytes), peer->remote(0));
    node->ring();
  }

  std::uint64_t now_ns = kStartNs;
  Script script;
  Script peers_script;
  std::optional<Node> node;
  std::optional<Node> peer;
};

class Agent final : public ManagementAgent {
 public:
  void on_datagram(const wire::Address& source, std::span<const std::byte> datagram) override {
    sources.push_back(source);
    datagrams.emplace_back(datagram.begin(), datagram.end());
  }
  int step(std::uint64_t now_ns) override {
    stepped_ns = now_ns;
    return 5;
  }
  [[nodiscard]] std::uint64_t next_deadline_ns() const override { return deadline_ns; }

  std::vector<wire::Address> sources;
  std::vector<Bytes> datagrams;
  std::uint64_t stepped_ns = 0;
  std::uint64_t deadline_ns = transport::kNever;
};

class Management : public Step {
 protected:
  Management() { hca().set_management_agent(&agent); }
  ~Management() override { hca().set_management_agent(nullptr); }
  static roce::Headers headers() {
    roce::Headers headers;
    headers.bth.opcode = roce::Opcode::kUdSendOnly;
    headers.bth.pkey = roce::kDefaultPkey;
    headers.bth.destination_qpn = mad::kGsiQpn;
    headers.deth = {.qkey = mad::kGsiQkey, .source_qpn = mad::kGsiQpn};
    return headers;
  }

  Agent agent;
};

TEST_F(Management, datagrams_for_qp_1_reach_its_agent_whole_and_in_order) {
  for (const std::size_t length_bytes : {256u, 9u}) {
    roce::Headers sent = headers();
    sent.bth.pad_count = roce::pad_count_for(length_bytes);
    arrive(sent, counting(length_bytes));
  }
  script.inbox.back().source = other_address;
  EXPECT_EQ(hca().progress(), 2 + 5) << "what the agent does counts";
  EXPECT_EQ(agent.datagrams, (std::vector{counting(256), counting(9)}));
  EXPECT_EQ(agent.sources, (std::vector{peer_address, other_address}));
  EXPECT_EQ(agent.stepped_ns, now_ns);
  EXPECT_EQ(hca().counters().dropped_packets, 0u);
  hca().progress();
  EXPECT_EQ(agent.datagrams.size(), 2u) << "once";
}

TEST_F(Management, datagram_that_differs_in_one_header_field_is_dropped) {
  const std::function<void(roce::Headers&)> changes[] = {
      [](roce::Headers& it) { it.bth.opcode = roce::Opcode::kUdSendOnlyImmediate; },
      [](roce::Headers& it) { it.bth.destination_qpn = 2; },
      [](roce::Headers& it) { it.deth.qkey ^= 1; },
      [](roce::Headers& it) { it.deth.qkey = 0; },
      [](roce::Headers& it) { it.deth.source_qpn = 2; },
      [](roce::Headers& it) { it.deth.source_qpn = 0; },
  };
  std::uint64_t dropped = 0;
  for (const auto& change : changes) {
    roce::Headers changed = headers();
    change(changed);
    arrive(changed, counting(256));
    hca().progress();
    EXPECT_EQ(hca().counters().dropped_packets, ++dropped);
  }
  EXPECT_TRUE(agent.datagrams.empty());
  hca().set_management_agent(nullptr);
  arrive(headers(), counting(256));
  EXPECT_EQ(hca().progress(), 1);
  EXPECT_EQ(hca().counters().dropped_packets, ++dropped) << "without an agent";
}

TEST_F(Management, datagrams_leave_at_once_with_the_headers_of_qp_1) {
  for (std::uint32_t psn = 0; psn < 3; ++psn) {
    hca().send_management(other_address, counting(256 + psn));
    ASSERT_EQ(script.sent.size(), psn + 1);
    EXPECT_TRUE(script.flushed);
    roce::Headers expected = headers();
    expected.bth.psn = psn;
    expected.bth.pad_count = roce::pad_count_for(psn);
    EXPECT_EQ(script.sent.back().destination, other_address);
    EXPECT_EQ(script.sent.back().datagram, encoded(expected, counting(256 + psn)));
  }
  hca().send_management(*wire::Address::parse("fd00::1"), counting(256));
  script.lost = true;
  hca().send_management(other_address, counting(256));
  EXPECT_EQ(script.sent.size(), 3u) << "another kind of address, a lost wire";
}

TEST_F(Management, deadline_of_the_agent_bounds_the_sleep) {
  const std::pair<std::uint64_t, std::uint64_t> cases[] = {
      {transport::kNever, kLongestIdleNs}, {kStartNs + 123, 123}, {kStartNs, 0}, {kStartNs - 1, 0}};
  for (const auto& [deadline_ns, idle_ns] : cases) {
    agent.deadline_ns = deadline_ns;
    EXPECT_EQ(hca().idle_ns(), idle_ns) << deadline_ns;
  }
}

TEST_F(Step, packet_of_another_partition_is_dropped_whatever_its_membership) {
  const std::pair<std::uint16_t, bool> cases[] = {
      {0xffff, true}, {0x7fff, true}, {0x7ffe, false}, {0x8001, false}};
  std::uint64_t dropped = 0;
  std::uint32_t psn = 0xfffff0;
  for (const auto& [pkey, taken] : cases) {
    roce::Headers headers;
    headers.bth.opcode = roce::Opcode::kRcWriteOnly;
    headers.bth.destination_qpn = node->qpn;
    headers.bth.pkey = pkey;
    headers.bth.psn = psn;
    arrive(headers);
    hca().progress();
    dropped += taken ? 0 : 1;
    psn += taken ? 1 : 0;
    EXPECT_EQ(hca().counters().dropped_packets, dropped) << pkey;
    EXPECT_EQ(hca().query_qp(node->qpn)->receive_psn, psn) << pkey;
  }
}

// On a port that requires a GRH and is a limited member of its second partition.
class VirtualFunction : public Step {
 protected:
  VirtualFunction() : Step(0, config()) {}
  static HcaConfig config() {
    HcaConfig config;
    config.infiniband = config.grh_required = true;
    config.pkeys = {0xffff, 0x0001};
    return config;
  }
  Errno modify(std::uint32_t mask, const QpAttributes& attributes) {
    return hca().modify_qp(node->qpn, mask, attributes);
  }
  bool takes(std::uint16_t pkey, bool has_grh) {
    const std::uint32_t psn = hca().query_qp(node->qpn)->receive_psn;
    const std::uint64_t dropped = hca().counters().dropped_packets;
    roce::Headers headers;
    headers.bth.opcode = roce::Opcode::kRcWriteOnly;
    headers.bth.destination_qpn = node->qpn;
    headers.bth.pkey = pkey;
    headers.bth.psn = psn;
    headers.bth.has_grh = has_grh;
    arrive(headers);
    hca().progress();
    const bool taken = hca().query_qp(node->qpn)->receive_psn != psn;
    EXPECT_EQ(hca().counters().dropped_packets, dropped + (taken ? 0 : 1));
    return taken;
  }
};

TEST_F(VirtualFunction, takes_packets_of_its_queue_pairs_partition_from_full_members) {
  EXPECT_TRUE(takes(0xffff, true));
  EXPECT_FALSE(takes(0x8001, true));
  EXPECT_EQ(modify(kQpPkeyIndex, {.pkey_index = 2}), EINVAL) << "beyond the table";
  ASSERT_EQ(modify(kQpPkeyIndex, {.pkey_index = 1}), 0);
  EXPECT_TRUE(takes(0x8001, true));
  EXPECT_FALSE(takes(0x0001, true)) << "both are limited members";
  EXPECT_FALSE(takes(0x8002, true));
  EXPECT_FALSE(takes(0xffff, true));
}

TEST_F(VirtualFunction, drops_what_has_no_grh) {
  EXPECT_FALSE(takes(0xffff, false));
  EXPECT_TRUE(takes(0xffff, true));
}

TEST_F(Step, packet_without_a_grh_is_taken_where_none_is_required) {
  roce::Headers headers;
  headers.bth.opcode = roce::Opcode::kRcWriteOnly;
  headers.bth.destination_qpn = node->qpn;
  headers.bth.psn = 0xfffff0;
  headers.bth.has_grh = false;
  arrive(headers);
  hca().progress();
  EXPECT_EQ(hca().counters().dropped_packets, 0u);
}

TEST_F(VirtualFunction, sends_the_p_key_of_its_table_and_a_grh_by_its_path) {
  for (const bool global : {true, false}) {
    ASSERT_EQ(modify(kQpPkeyIndex | kQpAddress, {.pkey_index = 1, .remote = peer_address, .global = global}),
              0);
    post_write(8);
    hca().progress();
    ASSERT_FALSE(script.sent.empty());
    const auto packet = roce::decode(script.sent.back().datagram);
    ASSERT_TRUE(packet);
    EXPECT_EQ(packet->headers.bth.pkey, 0x0001);
    EXPECT_EQ(packet->headers.bth.has_grh, global);
    EXPECT_EQ(packet->headers.bth.destination_qpn, peer->qpn);
  }
}

TEST_F(Step, padding_is_zeros_whatever_the_buffer_held) {
  post_write(5);
  hca().progress();
  ASSERT_EQ(script.sent.size(), 1u);
  roce::Headers expected;
  expected.bth.opcode = roce::Opcode::kRcWriteOnly;
  expected.bth.pkey = roce::kDefaultPkey;
  expected.bth.destination_qpn = peer->qpn;
  expected.bth.ack_request = true;
  expected.bth.psn = 0xfffff0;
  expected.bth.pad_count = 3;
  expected.reth = {peer->remote(0).address, peer->mkey, 5};
  EXPECT_EQ(script.sent[0].datagram, encoded(expected, Bytes(5)));
  EXPECT_EQ(script.sent[0].destination, peer_address);
  EXPECT_TRUE(script.flushed);
}

TEST_F(Step, counts_what_it_does) {
  EXPECT_EQ(hca().progress(), 0);
  EXPECT_EQ(hca().rung_at_ns(), 0u);
  node->ring_for(node->qpn);  // announces nothing new
  EXPECT_EQ(hca().progress(), 1);
  EXPECT_EQ(hca().rung_at_ns(), now_ns);
  now_ns += 7;
  node->arm(node->send_cqn);
  EXPECT_EQ(hca().progress(), 1);
  EXPECT_EQ(hca().rung_at_ns(), now_ns);
  now_ns += 7;
  for (int i = 0; i < 3; ++i) script.inbox.push_back({peer_address, Bytes(3), 0});
  EXPECT_EQ(hca().progress(), 3);
  EXPECT_EQ(hca().counters().dropped_packets, 3u) << "no packet has 3 bytes";
  EXPECT_EQ(hca().rung_at_ns(), now_ns - 7);
  EXPECT_EQ(hca().counters().doorbells, 1u);
  post_write(8);
  EXPECT_EQ(hca().progress(), 2) << "a doorbell, and what it sent";
  EXPECT_EQ(hca().progress(), 0);
}

TEST_F(Step, sends_twice_half_a_mebibyte_after_a_pause_and_once_in_a_stream) {
  constexpr std::size_t kPackets = 126;  // of 4096 B and 82 B of headers, to pass half a MiB
  bool left_at_once = false;
  script.on_receive = [&] { left_at_once |= script.flushed && script.sent.size() == kPackets; };
  post_write(4 << 20);
  hca().progress();
  script.on_receive = nullptr;
  EXPECT_TRUE(left_at_once) << "before the wire was read";
  EXPECT_EQ(script.sent.size(), 2 * kPackets);
  post_write(8);
  hca().progress();
  EXPECT_EQ(script.sent.size(), 3 * kPackets);
  hca().progress();
  EXPECT_EQ(script.sent.size(), 4 * kPackets);
  hca().progress();
  EXPECT_EQ(script.sent.size(), 512u) << "the window";
}

TEST_F(Step, takes_256_packets_and_is_not_idle_before_the_inbox_was_found_empty) {
  for (int i = 0; i < 300; ++i) script.inbox.push_back({peer_address, Bytes(3), 0});
  EXPECT_EQ(hca().progress(), 256);
  EXPECT_EQ(hca().idle_ns(), 0u);
  EXPECT_EQ(hca().progress(), 44);
  EXPECT_EQ(hca().idle_ns(), 0u);
  EXPECT_EQ(hca().progress(), 0);
  EXPECT_EQ(hca().idle_ns(), kLongestIdleNs);
  script.armed = false;
  EXPECT_EQ(hca().idle_ns(), 0u) << "a packet has come meanwhile";
}

TEST_F(Step, doorbell_in_any_register_ends_the_sleep) {
  std::vector<std::size_t> registers(kSendDoorbells.begin(), kSendDoorbells.end());
  registers.push_back(mlx5::kUarCqDoorbell);
  for (const std::size_t offset : registers) {
    EXPECT_EQ(hca().idle_ns(), kLongestIdleNs);
    word(offset).store(1);
    EXPECT_EQ(hca().idle_ns(), 0u) << offset;
    EXPECT_EQ(hca().progress(), 1) << offset;
    EXPECT_EQ(word(offset).load(), 0u) << offset;
  }
}

TEST_F(Step, timer_of_a_packet_without_an_answer_bounds_the_sleep) {
  post_write(8);
  hca().progress();
  EXPECT_EQ(hca().idle_ns(), 30'000'000u) << "a tail goes again then";
  now_ns += 29'999'999;
  EXPECT_EQ(hca().idle_ns(), 1u);
  EXPECT_EQ(hca().progress(), 0);
  now_ns += 1;
  EXPECT_EQ(hca().idle_ns(), 0u);
  EXPECT_GT(hca().progress(), 0);
  EXPECT_EQ(script.sent.size(), 2u);
}

TEST_F(Step, of_another_thread_holds_the_hca) {
  int done = -1;
  std::uint64_t idle_ns = 0;
  script.on_receive = [&] {
    std::thread([&] {
      idle_ns = hca().idle_ns();
      done = hca().progress();
    }).join();
    script.on_receive = nullptr;
  };
  hca().progress();
  EXPECT_EQ(idle_ns, kHeldElsewhere);
  EXPECT_EQ(done, 0);
}

TEST_F(Step, does_nothing_on_a_lost_wire_and_looks_for_that_every_20_us) {
  hca().progress();
  script.lost_checks = 0;
  script.lost = true;
  script.inbox.push_back({peer_address, Bytes(3), 0});
  now_ns += 19'999;
  EXPECT_EQ(hca().progress(), 1);
  EXPECT_EQ(script.lost_checks, 0);
  script.inbox.push_back({peer_address, Bytes(3), 0});
  now_ns += 1;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(hca().progress(), 0);
  EXPECT_EQ(script.lost_checks, 3);
  EXPECT_EQ(script.inbox.size(), 1u);
  EXPECT_TRUE(hca().wire_is_lost());
  EXPECT_EQ(script.asked, 1) << "when the queue pair reached RTR";
  ASSERT_EQ(node->modify_to_reset(), 0);
  node->connect(*peer, kPatient);
  EXPECT_EQ(script.asked, 1) << "a question is sent through the descriptor";
  EXPECT_TRUE(script.sent.empty());
}

TEST_F(Step, warns_once_of_each_kind_of_doorbell_that_it_cannot_serve) {
  constexpr std::size_t kRecordless = 0x600;
  testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i) {
    word(kRecordless).store(1);
    node->ring_for(node->qpn + 1);
    EXPECT_EQ(hca().progress(), 1);
    EXPECT_EQ(word(kRecordless).load(), 0u);
  }
  const std::string warnings = testing::internal::GetCapturedStderr();
  for (const char* const of_one : {"names no queue of its page", "without a doorbell record"}) {
    const std::size_t first = warnings.find(of_one);
    EXPECT_NE(first, std::string::npos) << of_one;
    EXPECT_EQ(warnings.find(of_one, first + 1), std::string::npos) << of_one;
  }
  EXPECT_EQ(hca().counters().bad_doorbells, 2u);
}

class WindowedStep : public Step {
 protected:
  static constexpr std::size_t kSocketBytes = 1 << 20;
  WindowedStep() : Step(kSocketBytes) {}
  static roce::Headers headers(roce::Opcode opcode) {
    roce::Headers headers;
    headers.bth.opcode = opcode;
    headers.bth.pkey = roce::kDefaultPkey;
    return headers;
  }
  static Bytes body(const roce::WindowGrant& grant) {
    Bytes bytes(roce::kWindowBytes);
    roce::encode_grant(grant, bytes);
    return bytes;
  }
  // Returns what was sent since the last call.
  std::vector<Departure> step() {
    script.sent.clear();
    hca().progress();
    EXPECT_TRUE(script.flushed);
    return script.sent;
  }
};

TEST_F(WindowedStep, peer_that_speaks_is_sent_a_marker_of_the_units_that_left) {
  post_write(8);
  step();
  script.inbox.push_back({peer_address, Bytes(3), roce::kUdpPort});
  now_ns += 77;
  const std::vector<Departure> sent = step();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].destination, peer_address);
  const auto decoded = roce::decode(sent[0].datagram);
  ASSERT_TRUE(decoded);
  const auto marker = roce::decode_window(decoded->payload);
  ASSERT_TRUE(marker);
  EXPECT_NE(marker->marker.incarnation, 0u);
  constexpr std::size_t kWriteBytes = roce::kBthBytes + sizeof(roce::Reth) + 8 + roce::kIcrcBytes;
  const roce::WindowGrant expected{{marker->marker.incarnation, transport::window_units(kWriteBytes), now_ns},
                                   0};
  EXPECT_EQ(sent[0].datagram, encoded(headers(roce::Opcode::kWindowMarker), body(expected)));
  EXPECT_EQ(hca().counters().window.markers, 1u);
}

TEST_F(WindowedStep, marker_of_a_peer_is_answered_from_its_socket_only) {
  const roce::WindowMarker marker{7, 100, 55};
  arrive(headers(roce::Opcode::kWindowMarker), body({marker, 0}), 0);
  EXPECT_TRUE(step().empty()) << "no socket brought it";
  arrive(headers(roce::Opcode::kWindowMarker), body({marker, 0}), 50'000);
  EXPECT_TRUE(step().empty()) << "software HCAs send it from the RoCE port";
  EXPECT_EQ(hca().counters().dropped_packets, 2u);
  arrive(headers(roce::Opcode::kWindowMarker), body({marker, 0}), roce::kUdpPort);
  const std::vector<Departure> sent = step();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].destination, peer_address);
  EXPECT_EQ(sent[0].datagram,
            encoded(headers(roce::Opcode::kWindowGrant), body({marker, 100 + kSocketBytes / 2 / 32})));
  EXPECT_EQ(hca().counters().window.grants, 1u);
  EXPECT_EQ(hca().counters().dropped_packets, 2u);
}

// On any network: the holder of the peer's port is known by its answer to a marker, which no other got.
TEST_F(WindowedStep, request_from_another_port_than_the_peers_is_dropped_once_the_peer_has_answered) {
  roce::Headers write = headers(roce::Opcode::kRcWriteOnly);
  write.bth.destination_qpn = node->qpn;
  write.bth.ack_request = true;
  const auto forge_write = [&](std::uint32_t psn, std::byte value) {
    write.bth.psn = psn;
    write.reth = {node->remote(0).address, node->mkey, 8};
    arrive(write, Bytes(8, value), 50'000);
    step();
    return node->memory[0] == value;
  };
  EXPECT_TRUE(forge_write(0xfffff0, std::byte{1})) << "a peer of another make may send from there";
  script.inbox.push_back({peer_address, Bytes(3), roce::kUdpPort});
  const std::vector<Departure> sent = step();
  ASSERT_EQ(sent.size(), 1u);
  const auto marker = roce::decode_window(roce::decode(sent[0].datagram)->payload);
  ASSERT_TRUE(marker);
  arrive(headers(roce::Opcode::kWindowGrant), body({marker->marker, 1 << 20}), roce::kUdpPort);
  step();
  EXPECT_FALSE(forge_write(0xfffff1, std::byte{2}));
  EXPECT_EQ(hca().counters().wire.forged_drops, 1u);
  ASSERT_EQ(node->modify_to_reset(), 0);
  node->connect(*peer, kPatient);
  EXPECT_TRUE(forge_write(0xfffff0, std::byte{3})) << "another connection, and perhaps another peer";
}

}  // namespace step_test
}  // namespace gdx::softhca::test
