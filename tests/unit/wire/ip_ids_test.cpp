#include "driver-shim/softhca/wire/ip_ids.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "driver-shim/softhca/wire/icrc_check.h"
#include "proto/roce/ip_header.h"
#include "tests/unit/wire/packets.h"

namespace gdx::softhca::wire {
namespace ip_ids_test {

constexpr std::uint16_t kSourcePort = 0xc123;  // as Soft-RoCE: not 4791
constexpr std::size_t kUdpBytes = 8;

Bytes datagram_tagged(std::uint8_t tag, std::size_t length_bytes = 100) {
  return Bytes(length_bytes, std::byte{tag});
}

// From the IPv4 header on, as a raw socket sends and receives it; the ICRC is right for the id.
Bytes packet_of(const Address& from, const Address& to, std::uint16_t ip_id, const Bytes& datagram) {
  const std::size_t udp_bytes = kUdpBytes + datagram.size() + roce::kIcrcBytes;
  const roce::Ipv4Header ip = roce::ipv4_header(from.gid, to.gid, ip_id, udp_bytes);
  const std::array<std::uint16_t, 4> udp = {htons(kSourcePort), htons(roce::kUdpPort),
                                            htons(static_cast<std::uint16_t>(udp_bytes)), 0};
  const std::uint32_t icrc = icrc_between(from, to, kSourcePort, ip_id, datagram);
  Bytes packet(sizeof ip + sizeof udp + datagram.size() + sizeof icrc);
  std::byte* at = packet.data();
  std::memcpy(at, &ip, sizeof ip);
  std::memcpy(at += sizeof ip, udp.data(), sizeof udp);
  std::memcpy(at += sizeof udp, datagram.data(), datagram.size());
  std::memcpy(at + datagram.size(), &icrc, sizeof icrc);
  return packet;
}

const Address kPeer = Address::ipv4(0x0a430002);
const Address kSelf = Address::ipv4(0x0a430001);
const Endpoint kFrom{kPeer, kSourcePort};

void add(IpIdLog& log, std::uint16_t ip_id, std::uint8_t tag) {
  log.add(packet_of(kPeer, kSelf, ip_id, datagram_tagged(tag)));
}

TEST(IpIdLog, datagram_known_gives_its_id_once) {
  IpIdLog log;
  add(log, 0x2ddc, 1);
  EXPECT_EQ(log.take(kFrom, datagram_tagged(1)), 0x2ddc);
  EXPECT_EQ(log.take(kFrom, datagram_tagged(1)), std::nullopt);
}

TEST(IpIdLog, repeated_datagram_gives_each_copys_id_in_order) {
  IpIdLog log;
  add(log, 500, 1);
  add(log, 501, 1);
  EXPECT_EQ(log.take(kFrom, datagram_tagged(1)), 500);
  EXPECT_EQ(log.take(kFrom, datagram_tagged(1)), 501);
}

TEST(IpIdLog, datagrams_that_never_came_are_forgotten_with_the_next) {
  IpIdLog log;
  for (const std::uint8_t tag : std::initializer_list<std::uint8_t>{1, 2, 3, 4})
    add(log, static_cast<std::uint16_t>(500 + tag), tag);
  EXPECT_EQ(log.take(kFrom, datagram_tagged(3)), 503);
  EXPECT_EQ(log.size(), 1u);
  EXPECT_EQ(log.take(kFrom, datagram_tagged(4)), 504);
}

TEST(IpIdLog, another_sender_port_or_bth_gives_nothing_and_keeps_the_id) {
  IpIdLog log;
  add(log, 500, 1);
  EXPECT_EQ(log.take({kSelf, kSourcePort}, datagram_tagged(1)), std::nullopt);
  EXPECT_EQ(log.take({kPeer, roce::kUdpPort}, datagram_tagged(1)), std::nullopt);
  EXPECT_EQ(log.take(kFrom, datagram_tagged(2)), std::nullopt);
  EXPECT_EQ(log.take({*Address::parse("fd67::2"), kSourcePort}, datagram_tagged(1)), std::nullopt);
  EXPECT_EQ(log.take(kFrom, datagram_tagged(1, roce::kBthBytes - 1)), std::nullopt);
  EXPECT_EQ(log.take(kFrom, datagram_tagged(1)), 500);
}

TEST(IpIdLog, short_headers_and_ip_options_are_left_out) {
  IpIdLog log;
  Bytes packet = packet_of(kPeer, kSelf, 500, datagram_tagged(1));
  log.add(std::span<const std::byte>(packet).first(IpIdLog::kHeaderBytes - 1));
  packet[0] = std::byte{0x46};
  log.add(packet);
  EXPECT_EQ(log.size(), 0u);
}

TEST(IpIdLog, more_than_it_holds_starts_anew) {
  IpIdLog log;
  for (std::size_t i = 0; i <= IpIdLog::kMaxHeaders; ++i) add(log, static_cast<std::uint16_t>(i), 1);
  EXPECT_EQ(log.size(), 1u);
  EXPECT_EQ(log.take(kFrom, datagram_tagged(1)), IpIdLog::kMaxHeaders);
}

// A peer that counts its ids, on loopback: needs CAP_NET_RAW, as reading them does.
class CountingPeer : public testing::Test {
 protected:
  void SetUp() override {
    raw_ = Descriptor(::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW));
    if (raw_.value() < 0)
      GTEST_SKIP() << "no raw socket (" << std::strerror(errno) << "): run it as root or with CAP_NET_RAW";
    auto wire =
        open_udp(UdpConfig{.address = {}, .pcap_path = {}, .faults = {}, .foreign_on_loopback = true});
    ASSERT_TRUE(wire) << wire.error().message;
    wire_ = std::move(*wire);
  }
  void send(std::uint16_t ip_id, const Bytes& datagram) {
    send_raw(packet_of(peer_, wire_->local(), ip_id, datagram));
  }
  void send_raw(const Bytes& packet) {
    sockaddr_storage name;
    const socklen_t length = to_sockaddr(wire_->local(), 0, name);
    ASSERT_EQ(::sendto(raw_.value(), packet.data(), packet.size(), 0,
                       reinterpret_cast<const sockaddr*>(&name), length),
              static_cast<ssize_t>(packet.size()))
        << std::strerror(errno);
  }
  std::vector<Bytes> receive_all() {
    std::vector<Bytes> arrivals;
    while (wire_->receive(7, [&](const Address& source, std::span<const std::byte> datagram) {
      EXPECT_EQ(source, peer_);
      arrivals.emplace_back(datagram.begin(), datagram.end());
    }) > 0) {
    }
    return arrivals;
  }

  const Address peer_ = Address::ipv4(0x7f00fffe);
  Descriptor raw_;
  std::unique_ptr<Wire> wire_;
};

TEST_F(CountingPeer, ids_beyond_the_guessed_ones_are_read) {
  std::vector<Bytes> sent;
  for (const std::uint16_t ip_id :
       std::initializer_list<std::uint16_t>{0x2ddc, 0x2de2, 63, 64, 0xffff, 0, 1}) {
    sent.push_back(datagram_tagged(static_cast<std::uint8_t>(sent.size() + 1), 100 + 4 * sent.size()));
    send(ip_id, sent.back());
  }
  EXPECT_EQ(receive_all(), sent);
  EXPECT_EQ(wire_->counters().icrc_errors, 0u);
}

TEST_F(CountingPeer, damaged_packet_is_dropped_and_the_next_one_is_heard) {
  Bytes damaged = packet_of(peer_, wire_->local(), 0x1111, datagram_tagged(1));
  damaged.back() ^= std::byte{1};
  send_raw(damaged);
  send(0x1112, datagram_tagged(2));
  Bytes another_id = packet_of(peer_, wire_->local(), 0x1113, datagram_tagged(3));
  another_id[5] ^= std::byte{1};  // as if a router had changed it
  send_raw(another_id);
  send(0x1114, datagram_tagged(4));
  EXPECT_EQ(receive_all(), (std::vector<Bytes>{datagram_tagged(2), datagram_tagged(4)}));
  EXPECT_EQ(wire_->counters().icrc_errors, 2u);
}

TEST_F(CountingPeer, beside_a_software_hca_both_are_heard) {
  auto other = open_udp({});
  ASSERT_TRUE(other) << other.error().message;
  send(0x4321, datagram_tagged(9));
  EXPECT_EQ(receive_all().size(), 1u);
  introduce(**other, *wire_);
  for (int i = 0; i < 20; ++i) {  // one GSO send: ids 0 to 19
    std::ranges::copy(tagged(7, 100), (*other)->begin_packet(wire_->local()).begin());
    (*other)->commit_packet(wire_->local(), 100);
  }
  (*other)->flush();
  std::byte next[4096];
  EXPECT_EQ(::recv(wire_->poll_fd(), next, sizeof next, MSG_PEEK), 104) << "one header for several ids";
  std::size_t heard = 0;
  while (wire_->receive(64, [&](const Address&, std::span<const std::byte>) { ++heard; }) > 0) {
  }
  EXPECT_EQ(heard, 20u);
  EXPECT_EQ(wire_->counters().icrc_errors, 0u);
}

TEST(Sockaddr, port_and_address_of_either_family_come_back) {
  for (const char* text : {"127.3.2.1", "fd67::9:8"}) {
    sockaddr_storage name;
    to_sockaddr(*Address::parse(text), 0, name);
    EXPECT_EQ(from_sockaddr(name).address.text(), text);
    EXPECT_EQ(from_sockaddr(name).port, 4791);
    (name.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(name).sin_port
                               : reinterpret_cast<sockaddr_in6&>(name).sin6_port) = htons(0x1234);
    EXPECT_EQ(from_sockaddr(name).port, 0x1234);
  }
}

TEST(Sockaddr, interface_counts_for_link_local_addresses_only) {
  sockaddr_storage name;
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(name);
  ASSERT_EQ(to_sockaddr(*Address::parse("fe80::1"), 7, name), sizeof v6);
  EXPECT_EQ(v6.sin6_scope_id, 7u);
  ASSERT_EQ(to_sockaddr(*Address::parse("fd67::1"), 7, name), sizeof v6);
  EXPECT_EQ(v6.sin6_scope_id, 0u);
}

}  // namespace ip_ids_test
}  // namespace gdx::softhca::wire
