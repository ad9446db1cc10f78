// Packets of Linux Soft-RoCE and its peer, replayed. The responder must answer the captured requests as the
// captured responder did. The requester must make those requests and take those answers.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "driver-shim/softhca/transport/rc.h"
#include "proto/roce/codec.h"
#include "tests/unit/roce/pcap_reader.h"

namespace gdx::softhca::transport {
namespace capture_replay_test {

using mlx5::Syndrome;
using mlx5::WqeOpcode;
using roce::Opcode;
using roce::Operation;

struct Capture {
  const char* name;
  std::uint32_t mtu_bytes;
  int receives = 64;               // posted when it begins
  std::size_t receives_after = 0;  // answers after which one more is posted; 0: never
  bool keys_valid = true;
  std::vector<std::size_t> lost{};  // requests that the captured responder never saw, by their place
};
// Test names show it; as bytes it would be an address, another in every build.
void PrintTo(const Capture& capture, std::ostream* out) { *out << capture.name; }

struct Packet {
  roce::Headers headers;
  std::vector<std::byte> payload;
};

struct Conversation {
  std::vector<Packet> requests;
  std::vector<Packet> answers;
};

// The requests of whoever made the first one, and what was answered to them.
Conversation load(const Capture& capture) {
  Conversation conversation;
  const auto packets = gdx::test::read_roce_pcap(std::string(GDX_ROCE_VECTORS) + "/" + capture.name);
  const auto from_first = [&packets](const gdx::test::CapturedPacket& packet) {
    return packet.source_ipv4 == packets[0].source_ipv4 && packet.source_ipv6 == packets[0].source_ipv6;
  };
  for (const gdx::test::CapturedPacket& packet : packets) {
    const auto decoded = roce::decode(packet.datagram);
    if (!decoded) continue;
    const bool request = is_request(roce::traits_of(decoded->headers.bth.opcode).operation);
    if (request != from_first(packet)) continue;
    auto& list = request ? conversation.requests : conversation.answers;
    list.push_back({decoded->headers, {decoded->payload.begin(), decoded->payload.end()}});
  }
  return conversation;
}

RcConfig config_for(const Capture& capture, const Conversation& conversation) {
  RcConfig config;
  config.send_psn = config.receive_psn = conversation.requests.front().headers.bth.psn;
  config.mtu_bytes = capture.mtu_bytes;
  config.min_rnr_timer = 12;
  config.max_unacked_packets = 0;
  config.ack_timeout = 0;  // time here is made up: only answers count
  config.remote_write = config.remote_read = config.remote_atomic = true;
  return config;
}

// Opcode, PSN, syndrome and MSN, as text for a readable failure. Only the AETH's holders have the latter.
std::string describe(const roce::Headers& headers) {
  std::string text =
      std::to_string(static_cast<int>(headers.bth.opcode)) + " psn " + std::to_string(headers.bth.psn);
  if (roce::traits_of(headers.bth.opcode).has(roce::kHasAeth)) {
    text += " syndrome " + std::to_string(headers.aeth.syndrome) + " msn " + std::to_string(headers.aeth.msn);
  }
  return text;
}

class Memory final : public ResponderPort {
 public:
  explicit Memory(const Capture& capture) : receives(capture.receives), keys_valid_(capture.keys_valid) {}

  void send(const roce::Headers& headers) override { sent.push_back({headers, {}}); }
  bool send_from_memory(const roce::Headers& headers, std::uint32_t /*rkey*/, std::uint64_t address,
                        std::uint32_t length_bytes) override {
    Packet packet{headers, {}};
    for (std::uint32_t i = 0; i < length_bytes; ++i) {
      const auto known = bytes_.find(address + i);
      if (known == bytes_.end()) break;
      packet.payload.push_back(known->second);
    }
    sent.push_back(std::move(packet));
    return true;
  }
  bool check(RemoteOperation /*operation*/, std::uint32_t /*rkey*/, std::uint64_t /*address*/,
             std::uint32_t /*length_bytes*/) override {
    return keys_valid_;
  }
  bool write(std::uint32_t /*rkey*/, std::uint64_t address, std::span<const std::byte> payload) override {
    for (std::size_t i = 0; i < payload.size(); ++i) bytes_[address + i] = payload[i];
    return true;
  }
  std::optional<std::uint64_t> execute(std::uint32_t /*rkey*/, std::uint64_t address,
                                       const AtomicOperation& operation) override {
    std::uint64_t& word = words_[address];
    const std::uint64_t original = word;
    word = operation.result(original);
    return original;
  }
  bool take_receive() override { return receives > 0 && receives-- > 0; }
  Syndrome scatter_receive(std::uint32_t /*offset_bytes*/, std::span<const std::byte> /*payload*/) override {
    return Syndrome::kNone;
  }
  void complete_receive(const ReceiveCompletion& /*completion*/) override {}
  bool invalidate(std::uint32_t /*rkey*/) override { return true; }
  void fatal(Syndrome /*syndrome*/) override {}

  int receives;
  std::vector<Packet> sent;

 private:
  bool keys_valid_;
  std::map<std::uint64_t, std::byte> bytes_;
  std::map<std::uint64_t, std::uint64_t> words_;
};

// Copies say nothing new: Soft-RoCE repeats its NAKs and ACKs.
std::vector<std::string> without_repeats(const std::vector<Packet>& packets) {
  std::vector<std::string> list;
  for (const Packet& packet : packets) list.push_back(describe(packet.headers));
  list.erase(std::unique(list.begin(), list.end()), list.end());
  return list;
}

class ResponderReplay : public testing::TestWithParam<Capture> {};

TEST_P(ResponderReplay, answers_as_the_captured_responder_did) {
  const Capture& capture = GetParam();
  const Conversation conversation = load(capture);
  ASSERT_FALSE(conversation.requests.empty() || conversation.answers.empty());
  Memory memory(capture);
  Responder responder(config_for(capture, conversation), memory);
  for (std::size_t i = 0; i < conversation.requests.size(); ++i) {
    if (std::count(capture.lost.begin(), capture.lost.end(), i) > 0) continue;
    const std::uint64_t now_ns = i * 1'000'000;
    responder.on_packet(now_ns, conversation.requests[i].headers, conversation.requests[i].payload);
    responder.pump(now_ns, ~0u);
    if (capture.receives_after != 0 && memory.sent.size() == capture.receives_after) ++memory.receives;
  }
  ASSERT_EQ(without_repeats(memory.sent), without_repeats(conversation.answers));
  // Compares bytes too, if a READ requests a range that the capture has written before.
  for (const Packet& answer : memory.sent) {
    if (answer.payload.empty()) continue;
    const auto same = std::find_if(
        conversation.answers.begin(), conversation.answers.end(),
        [&](const Packet& captured) { return captured.headers.bth.psn == answer.headers.bth.psn; });
    EXPECT_TRUE(std::equal(answer.payload.begin(), answer.payload.end(), same->payload.begin()))
        << describe(answer.headers);
  }
}

INSTANTIATE_TEST_SUITE_P(
    SoftRoce, ResponderReplay,
    testing::Values(Capture{"rxe_write.pcap", 1024, 4, 24}, Capture{"rxe_long256.pcap", 256},
                    Capture{"ipv6_write.pcap", 1024}, Capture{"tcp_write_bw.pcap", 1024},
                    Capture{"tcp_write_lat.pcap", 1024}, Capture{"tcp_rcpp.pcap", 1024},
                    Capture{.name = "rxe_err_badrkey.pcap", .mtu_bytes = 1024, .keys_valid = false},
                    Capture{.name = "rx_dropreq.pcap", .mtu_bytes = 1024, .lost = {1}},
                    Capture{"rx_dropack.pcap", 1024}),
    [](const auto& capture) {
      std::string name = capture.param.name;
      return name.substr(0, name.find('.'));
    });

class Asker final : public RequesterPort {
 public:
  Syndrome send(const roce::Headers& headers, const WorkRequest& /*request*/, std::uint32_t /*offset_bytes*/,
                std::uint32_t length_bytes) override {
    sent.push_back(headers);
    lengths.push_back(length_bytes);
    return Syndrome::kNone;
  }
  Syndrome scatter(const WorkRequest& /*request*/, std::uint32_t /*offset_bytes*/,
                   std::span<const std::byte> payload) override {
    scattered_bytes += payload.size();
    return Syndrome::kNone;
  }
  Syndrome apply(const WorkRequest& /*request*/) override { return Syndrome::kLocalQpOperation; }
  void complete(const WorkRequest& /*request*/, Syndrome syndrome) override {
    completed += syndrome == Syndrome::kNone ? 1 : 0;
    if (syndrome != Syndrome::kNone && failure == Syndrome::kNone) failure = syndrome;
  }

  std::vector<roce::Headers> sent;
  std::vector<std::uint32_t> lengths;
  std::size_t scattered_bytes = 0;
  std::size_t completed = 0;
  Syndrome failure = Syndrome::kNone;
};

// Requests whose PSN is new, in order: what was sent when nothing was sent again.
std::vector<Packet> first_transmissions(const std::vector<Packet>& requests) {
  std::vector<Packet> list;
  std::uint32_t expected = requests.front().headers.bth.psn;
  for (const Packet& packet : requests) {
    if (((packet.headers.bth.psn - expected) & roce::kPsnMask) >= kPsnHalfSpace) continue;
    const bool read = packet.headers.bth.opcode == Opcode::kRcReadRequest;
    expected = packet.headers.bth.psn + (read ? packets_of(packet.headers.reth.length_bytes, 1024) : 1);
    list.push_back(packet);
  }
  return list;
}

WqeOpcode wqe_opcode_of(const Packet& last) {
  const roce::OpcodeTraits& traits = roce::traits_of(last.headers.bth.opcode);
  switch (traits.operation) {
    case Operation::kWrite:
      return traits.has(roce::kHasImmediate) ? WqeOpcode::kRdmaWriteImmediate : WqeOpcode::kRdmaWrite;
    case Operation::kRead: return WqeOpcode::kRdmaRead;
    case Operation::kFetchAdd: return WqeOpcode::kAtomicFetchAdd;
    case Operation::kCompareSwap: return WqeOpcode::kAtomicCompareSwap;
    default: return traits.has(roce::kHasImmediate) ? WqeOpcode::kSendImmediate : WqeOpcode::kSend;
  }
}

// The work requests from which the captured requester made its packets.
std::vector<WorkRequest> work_requests_of(const std::vector<Packet>& packets) {
  std::vector<WorkRequest> list;
  WorkRequest request;
  for (const Packet& packet : packets) {
    const roce::OpcodeTraits& traits = roce::traits_of(packet.headers.bth.opcode);
    if (traits.first) {
      request = {};
      request.remote_address = packet.headers.reth.address;
      request.rkey = packet.headers.reth.rkey;
      if (traits.operation == Operation::kRead) request.length_bytes = packet.headers.reth.length_bytes;
    }
    request.length_bytes += static_cast<std::uint32_t>(packet.payload.size());
    if (!traits.last) continue;
    request.opcode = wqe_opcode_of(packet);
    request.immediate = packet.headers.immediate;
    if (is_atomic(traits.operation)) {
      const roce::AtomicEth& atomic = packet.headers.atomic;
      request.length_bytes = 8;
      request.remote_address = atomic.address;
      request.rkey = atomic.rkey;
      request.swap_or_add = atomic.swap_or_add;
      request.compare = atomic.compare;
    }
    list.push_back(request);
  }
  return list;
}

void expect_same_request(const roce::Headers& ours, const roce::Headers& captured) {
  EXPECT_EQ(ours.bth.opcode, captured.bth.opcode);
  EXPECT_EQ(ours.bth.psn, captured.bth.psn);
  const std::uint16_t extensions = roce::extensions_of(captured.bth.opcode);
  if (extensions & roce::kHasReth) {
    EXPECT_EQ(ours.reth.address, captured.reth.address);
    EXPECT_EQ(ours.reth.rkey, captured.reth.rkey);
    EXPECT_EQ(ours.reth.length_bytes, captured.reth.length_bytes);
  }
  if (extensions & roce::kHasAtomicEth) {
    EXPECT_EQ(ours.atomic.address, captured.atomic.address);
    EXPECT_EQ(ours.atomic.swap_or_add, captured.atomic.swap_or_add);
    EXPECT_EQ(ours.atomic.compare, captured.atomic.compare);
  }
  if (extensions & roce::kHasImmediate) {
    EXPECT_EQ(ours.immediate, captured.immediate);
  }
}

class RequesterReplay : public testing::TestWithParam<Capture> {};

TEST_P(RequesterReplay, makes_the_captured_requests_and_completes_on_the_captured_answers) {
  const Capture& capture = GetParam();
  const Conversation conversation = load(capture);
  ASSERT_FALSE(conversation.requests.empty() || conversation.answers.empty());
  const std::vector<Packet> expected = first_transmissions(conversation.requests);
  const std::vector<WorkRequest> requests = work_requests_of(expected);
  Asker asker;
  Requester requester(config_for(capture, conversation), asker);
  for (const WorkRequest& request : requests) requester.post(request);
  std::uint64_t now_ns = 0;
  // An ACK that says that this peer advertises no receives: else the first SEND would wait for its answer.
  roce::Headers before;
  before.bth.opcode = Opcode::kRcAcknowledge;
  before.bth.psn = (expected[0].headers.bth.psn - 1) & roce::kPsnMask;
  before.aeth.syndrome = roce::kAethAck;
  requester.on_packet(now_ns, before, {});
  requester.pump(now_ns, ~0u);
  ASSERT_EQ(asker.sent.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE(i);
    expect_same_request(asker.sent[i], expected[i].headers);
    EXPECT_EQ(asker.lengths[i], expected[i].payload.size());
  }
  for (const Packet& answer : conversation.answers) {
    now_ns += 100'000'000;  // any RNR timer has run out by then
    if (requester.next_deadline_ns() <= now_ns) requester.on_timer(now_ns);
    requester.pump(now_ns, ~0u);
    requester.on_packet(now_ns, answer.headers, answer.payload);
  }
  if (!capture.keys_valid) {
    EXPECT_EQ(asker.failure, Syndrome::kRemoteAccess);
    return;
  }
  EXPECT_EQ(asker.failure, Syndrome::kNone) << mlx5::syndrome_name(asker.failure);
  EXPECT_EQ(asker.completed, requests.size());
  std::size_t owed_bytes = 0;
  for (const WorkRequest& request : requests) {
    const bool answered = request.opcode == WqeOpcode::kRdmaRead ||
                          request.opcode == WqeOpcode::kAtomicFetchAdd ||
                          request.opcode == WqeOpcode::kAtomicCompareSwap;
    owed_bytes += answered ? request.length_bytes : 0;
  }
  EXPECT_EQ(asker.scattered_bytes, owed_bytes);
}

INSTANTIATE_TEST_SUITE_P(
    SoftRoce, RequesterReplay,
    testing::Values(Capture{"rxe_write.pcap", 1024}, Capture{"ipv6_write.pcap", 1024},
                    Capture{"tcp_write_bw.pcap", 1024}, Capture{"tcp_write_lat.pcap", 1024},
                    Capture{"tcp_rcpp.pcap", 1024},
                    Capture{.name = "rxe_err_badrkey.pcap", .mtu_bytes = 1024, .keys_valid = false},
                    Capture{"rx_dropreq.pcap", 1024}, Capture{"rx_dropack.pcap", 1024},
                    Capture{"rx_dropread_mid.pcap", 1024}, Capture{"rx_dropread_first.pcap", 1024}),
    [](const auto& capture) {
      std::string name = capture.param.name;
      return name.substr(0, name.find('.'));
    });

}  // namespace capture_replay_test
}  // namespace gdx::softhca::transport
