// Packets of a wire to its own address: what the socket did to them happens in memory, too.
#include "driver-shim/softhca/wire/loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "driver-shim/softhca/wire/icrc_check.h"
#include "driver-shim/softhca/wire/wire.h"
#include "tests/unit/roce/pcap_reader.h"
#include "tests/unit/wire/packets.h"

namespace gdx::softhca::wire {
namespace loop_test {

Bytes filled(std::size_t length_bytes, int tag) {
  return Bytes(length_bytes, std::byte{static_cast<std::uint8_t>(tag)});
}

LoopedRun like(std::size_t segment_bytes) { return {.bytes = {}, .segment_bytes = segment_bytes}; }

TEST(Loop, runs_leave_whole_and_in_their_order_though_memory_is_used_again) {
  Loop loop(1 << 20);
  int pushed = 0;
  int taken = 0;
  const auto length_of = [](int tag) { return tag % 3 == 0 ? 20u : 4096u + static_cast<unsigned>(tag) % 7; };
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 5; ++i, ++pushed) {
      ASSERT_TRUE(loop.push(filled(length_of(pushed), pushed), like(4096)));
    }
    for (int i = round % 2 == 0 ? 2 : 8; i > 0; --i, ++taken) {
      ASSERT_EQ(loop.take().bytes, filled(length_of(taken), taken)) << taken;
    }
  }
  EXPECT_EQ(pushed, taken);
  EXPECT_TRUE(loop.empty());
}

TEST(Loop, holds_what_its_bound_permits_and_as_much_again_after_that_left) {
  constexpr std::size_t kPackets = 10;
  Loop loop(kPackets * (100 + Loop::kPacketBytes));
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(loop.push(filled(800, 1), like(100)));
    EXPECT_FALSE(loop.push(filled(201, 2), like(100))) << "three packets where two fit";
    EXPECT_TRUE(loop.push(filled(200, 3), like(100)));
    EXPECT_FALSE(loop.push(filled(1, 4), like(1)));
    EXPECT_EQ(loop.take().bytes.size(), 800u);
    EXPECT_EQ(loop.take().bytes.size(), 200u);
    EXPECT_TRUE(loop.empty());
  }
}

std::unique_ptr<Wire> open(const UdpConfig& config = {}) {
  Result<std::unique_ptr<Wire>> wire = open_udp(config);
  EXPECT_TRUE(wire) << (wire ? "" : wire.error().message);
  return wire ? std::move(*wire) : nullptr;
}

void send(Wire& wire, const Address& to, int tag, std::size_t length_bytes) {
  std::ranges::copy(as_packet(filled(length_bytes, tag)), wire.begin_packet(to).begin());
  wire.commit_packet(to, length_bytes);
}

struct Seen {
  Address source;
  Bytes datagram;
  bool marked = false;
  std::uint16_t port = 0;

  bool operator==(const Seen&) const = default;
};

std::vector<Seen> receive_some(Wire& wire, std::size_t packets) {
  std::vector<Seen> seen;
  static_cast<void>(wire.receive(packets, [&](const Address& source, std::span<const std::byte> datagram) {
    seen.push_back(
        {source, {datagram.begin(), datagram.end()}, wire.arrival_is_marked(), wire.arrival_port()});
  }));
  return seen;
}

std::vector<Seen> see_all(Wire& wire) {
  std::vector<Seen> all;
  for (auto some = receive_some(wire, 7); !some.empty() || !wire.arm(); some = receive_some(wire, 7)) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

bool is_readable(const Wire& wire) {
  pollfd file{.fd = wire.poll_fd(), .events = POLLIN, .revents = 0};
  return ::poll(&file, 1, 0) == 1;
}

// Returns the packets that a wire with these faults delivers to itself, and its counters.
std::pair<std::vector<Seen>, WireCounters> passage(const FaultConfig& faults, bool through_socket) {
  UdpConfig config;
  config.faults = faults;
  config.own_through_socket = through_socket;
  const auto wire = open(config);
  std::vector<Seen> seen;
  for (int tag = 0; tag < 600; ++tag) {
    send(*wire, wire->local(), tag, tag % 4 == 0 ? 20 : 1000);
    if (tag % 50 != 49) continue;
    wire->flush();
    EXPECT_EQ(tag == 49 && is_readable(*wire), through_socket && tag == 49);
    const auto some = see_all(*wire);
    seen.insert(seen.end(), some.begin(), some.end());
  }
  for (Seen& packet : seen) {
    EXPECT_EQ(packet.source, wire->local());
    packet.source = {};
  }
  return {seen, wire->counters()};
}

TEST(OwnPackets, meet_the_faults_of_packets_that_take_the_socket) {
  const std::vector<FaultConfig> cases{
      {},
      {.loss = 0.2, .seed = 2},
      {.corrupt = 0.2, .seed = 3},
      {.duplicate = 0.2, .seed = 4},
      {.reorder = 0.2, .seed = 5},
      {.mark = 0.3, .seed = 6},
      {.loss = 0.1, .corrupt = 0.1, .duplicate = 0.1, .reorder = 0.1, .mark = 0.2, .seed = 7}};
  for (const FaultConfig& faults : cases) {
    const auto in_memory = passage(faults, false);
    const auto in_socket = passage(faults, true);
    EXPECT_EQ(in_memory.first, in_socket.first) << "seed " << faults.seed;
    EXPECT_GT(in_memory.first.size(), 300u);
    const WireCounters& a = in_memory.second;
    const WireCounters& b = in_socket.second;
    EXPECT_EQ(a.packets_sent, b.packets_sent);
    EXPECT_EQ(a.packets_received, b.packets_received);
    EXPECT_EQ(a.packets_sent, a.packets_received + a.icrc_errors);
    EXPECT_EQ(a.faults_lost, b.faults_lost);
    EXPECT_EQ(a.faults_corrupted, b.faults_corrupted);
    EXPECT_EQ(a.faults_marked, b.faults_marked);
    EXPECT_EQ(a.icrc_errors, b.icrc_errors);
    EXPECT_EQ(a.icrc_errors > 0, faults.corrupt > 0);
    EXPECT_EQ(a.send_errors, 0u);
  }
}

// A thread sleeps on the descriptor once arm() has said that nothing waits.
TEST(OwnPackets, wake_whoever_sleeps_and_nobody_else) {
  const auto wire = open();
  for (int round = 0; round < 3; ++round) {
    send(*wire, wire->local(), 1, 64);
    wire->flush();
    EXPECT_EQ(is_readable(*wire), round > 0) << "see_all() leaves it armed";
    EXPECT_FALSE(wire->arm());
    EXPECT_EQ(see_all(*wire).size(), 1u);
    ASSERT_TRUE(wire->arm());
    EXPECT_FALSE(is_readable(*wire));
    for (int packets = 0; packets < 3; ++packets) {
      send(*wire, wire->local(), 2, 64);
      wire->flush();
      EXPECT_TRUE(is_readable(*wire));
    }
    EXPECT_EQ(see_all(*wire).size(), 3u);
    EXPECT_TRUE(wire->socket_was_drained());
    EXPECT_FALSE(is_readable(*wire));
  }
  EXPECT_EQ(wire->counters().packets_received, 12u);
  EXPECT_EQ(wire->counters().icrc_errors, 0u);
}

TEST(OwnPackets, without_room_are_counted_and_the_others_keep_their_order) {
  UdpConfig config;
  config.receive_buffer_bytes = 64 << 10;
  const auto wire = open(config);
  constexpr std::size_t kSent = 200;
  for (std::size_t tag = 0; tag < kSent; ++tag) send(*wire, wire->local(), static_cast<int>(tag), 4156);
  wire->flush();
  const std::vector<Seen> seen = see_all(*wire);
  const WireCounters& counters = wire->counters();
  EXPECT_GT(counters.send_errors, 0u);
  EXPECT_EQ(counters.packets_sent, kSent);
  EXPECT_EQ(seen.size() + counters.send_errors, kSent);
  EXPECT_LE(seen.size() * 4160, wire->socket_bytes());
  EXPECT_GE(seen.size() * 4160, wire->socket_bytes() / 4);
  for (std::size_t i = 1; i < seen.size(); ++i) EXPECT_LT(seen[i - 1].datagram[1], seen[i].datagram[1]);
  send(*wire, wire->local(), 7, 64);
  wire->flush();
  EXPECT_EQ(see_all(*wire).size(), 1u) << "the wire works on";
}

// Neither of two streams may starve the other.
TEST(OwnPackets, take_turns_with_those_of_peers) {
  const auto wire = open();
  const auto peer = open();
  introduce(*wire, *peer);
  const auto send_from = [&](Wire& from, int packets) {
    for (int tag = 0; tag < packets; ++tag) {
      send(from, wire->local(), tag, tag % 2 == 0 ? 64 : 128);  // longer than the one before: no run of both
      from.flush();
    }
  };
  for (const auto& [many, one] : {std::pair(wire.get(), peer.get()), std::pair(peer.get(), wire.get())}) {
    send_from(*many, 40);
    send_from(*one, 1);
    const Address rare = one->local();
    const auto is_rare = [&](const Seen& packet) { return packet.source == rare; };
    std::size_t rare_seen = 0;
    for (int turns = 0; turns < 2; ++turns) {
      rare_seen += static_cast<std::size_t>(std::ranges::count_if(receive_some(*wire, 256), is_rare));
    }
    EXPECT_EQ(rare_seen, 1u);
    EXPECT_GE(see_all(*wire).size(), 20u) << "the stream was longer than that";
  }
}

// A capture shows both ends of each packet, with the ICRC of its headers.
TEST(OwnPackets, are_captured_as_sent_and_as_received) {
  const std::string path = testing::TempDir() + "gdx_loop_" + std::to_string(::getpid()) + ".pcap";
  {
    UdpConfig config;
    config.pcap_path = path;
    config.faults.mark = 1;
    const auto wire = open(config);
    for (const std::size_t size : {4156, 4156, 100, 16}) send(*wire, wire->local(), 9, size);
    wire->flush();
    EXPECT_EQ(see_all(*wire).size(), 4u);
  }
  const std::vector<gdx::test::CapturedPacket> packets = gdx::test::read_roce_pcap(path);
  std::filesystem::remove(path);
  ASSERT_EQ(packets.size(), 8u);
  for (std::size_t i = 0; i < packets.size(); ++i) {
    const gdx::test::CapturedPacket& packet = packets[i];
    EXPECT_EQ(packet.datagram, packets[i % 4].datagram);
    EXPECT_EQ(packet.ip_id, packets[i % 4].ip_id);
    EXPECT_EQ(packet.ecn, 3u);
    EXPECT_EQ(packet.icrc,
              icrc_between(Address::ipv4(packet.source_ipv4), Address::ipv4(packet.destination_ipv4),
                           packet.source_port, packet.ip_id, packet.datagram));
  }
}

}  // namespace loop_test
}  // namespace gdx::softhca::wire
