#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <vector>

#include "driver-shim/softhca/wire/icrc_check.h"
#include "driver-shim/softhca/wire/udp_socket.h"
#include "driver-shim/softhca/wire/wire.h"
#include "proto/roce/headers.h"
#include "tests/unit/roce/pcap_reader.h"
#include "tests/unit/wire/packets.h"

namespace gdx::softhca::wire {
namespace udp_test {

std::unique_ptr<Wire> open(const UdpConfig& config = {}) {
  Result<std::unique_ptr<Wire>> wire = open_udp(config);
  EXPECT_TRUE(wire) << (wire ? "" : wire.error().message);
  return wire ? std::move(*wire) : nullptr;
}

bool kernel_segments() {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const int off = 0;
  const bool known = setsockopt(fd, SOL_UDP, UDP_SEGMENT, &off, sizeof off) == 0;
  close(fd);
  return known;
}

// Returns the packets sent from `a` that arrive at `b` as marked by a switch.
std::size_t marked_of(Wire& a, Wire& b, int packets) {
  introduce(a, b);
  for (int i = 0; i < packets; ++i) send(a, b.local(), static_cast<std::uint8_t>(i), 64);
  a.flush();
  std::size_t marked = 0;
  int arrived = 0;
  while (b.receive(7, [&](const Address&, std::span<const std::byte>) {
    ++arrived;
    marked += b.arrival_is_marked() ? 1 : 0;
  }) > 0) {
  }
  EXPECT_EQ(arrived, packets);
  return marked;
}

UdpConfig marking(const char* address, double probability) {
  UdpConfig config;
  config.address = address;
  config.faults.mark = probability;
  return config;
}

TEST(UdpWire, marks_cross_the_network_in_the_ipv4_header) {
  const auto b = open();
  EXPECT_EQ(marked_of(*open(), *b, 50), 0u);
  EXPECT_EQ(marked_of(*open(marking("", 1)), *b, 50), 50u);
  const auto half = open(marking("", 0.5));
  const std::size_t marked = marked_of(*half, *b, 50);
  EXPECT_EQ(marked, half->counters().faults_marked);
  EXPECT_GT(marked, 10u);
  EXPECT_LT(marked, 40u);
}

// The buffer is for packets: what is no packet and comes from no peer of this kind takes no room there.
TEST(UdpWire, oversized_datagrams_of_strangers_do_not_reach_the_wire) {
  const auto a = open();
  const auto b = open();
  introduce(*a, *b);
  const int stranger = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(4791);
  to.sin_addr.s_addr = htonl(b->local().ipv4_host_order());
  const auto throw_at = [&](std::size_t length_bytes) {
    const Bytes junk(length_bytes);
    ASSERT_EQ(sendto(stranger, junk.data(), junk.size(), 0, reinterpret_cast<sockaddr*>(&to), sizeof to),
              static_cast<ssize_t>(length_bytes));
  };
  for (const std::size_t length_bytes : {4165, 9000, 60000}) throw_at(length_bytes);
  EXPECT_TRUE(receive_all(*b).empty());
  EXPECT_EQ(b->counters().forged_drops, 0u);
  throw_at(4164);
  EXPECT_TRUE(receive_all(*b).empty());
  EXPECT_EQ(b->counters().forged_drops, 1u);
  for (int i = 0; i < 14; ++i) send(*a, b->local(), 1, 4160);  // as one, and longer than all of them
  a->flush();
  EXPECT_EQ(receive_all(*b).size(), 14u);
  close(stranger);
}

// From the RoCE port, and fit to be fragmented on its way, as packets of peers never are.
TEST(UdpWire, oversized_datagrams_that_may_be_fragmented_do_not_reach_the_wire) {
  const auto b = open();
  const int stranger = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(4791);
  name.sin_addr.s_addr =
      htonl(0x7f4d0001 + static_cast<std::uint32_t>(getpid()) % 0xfffd);  // no HCA takes these
  ASSERT_EQ(bind(stranger, reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
  name.sin_addr.s_addr = htonl(b->local().ipv4_host_order());
  const Bytes junk(60000);
  for (const int discovery : {IP_PMTUDISC_DONT, IP_PMTUDISC_DO}) {
    ASSERT_EQ(setsockopt(stranger, IPPROTO_IP, IP_MTU_DISCOVER, &discovery, sizeof discovery), 0);
    ASSERT_EQ(sendto(stranger, junk.data(), junk.size(), 0, reinterpret_cast<sockaddr*>(&name), sizeof name),
              static_cast<ssize_t>(junk.size()));
    EXPECT_TRUE(receive_all(*b).empty());
    EXPECT_EQ(b->counters().icrc_errors, discovery == IP_PMTUDISC_DONT ? 0u : 1u);
  }
  close(stranger);
}

// ::1 is the only address of its loopback: whoever tests it on this machine waits for the others.
class Ipv6Loopback : public testing::Test {
 protected:
  void SetUp() override {
    const std::string path = testing::TempDir() + "gdx_ipv6_loopback_" + std::to_string(geteuid());
    lock_ = ::open(path.c_str(), O_CREAT | O_RDONLY | O_CLOEXEC, 0666);
    ASSERT_GE(lock_, 0) << path;
    ASSERT_EQ(flock(lock_, LOCK_EX), 0);
    if (!kernel_has_it()) {
      GTEST_SKIP() << "this host has no ::1: give lo its address (sysctl net.ipv6.conf.lo.disable_ipv6=0)";
    }
  }
  void TearDown() override {
    wire_.reset();
    close(lock_);
  }

  // Only another program's HCA may keep it from us.
  void open_wire(const UdpConfig& config) {
    auto opened = open_udp(config);
    if (!opened && opened.error().status == Status::kBusy) {
      GTEST_SKIP() << opened.error().message << "; end that program to run this";
    }
    ASSERT_TRUE(opened) << opened.error().message;
    wire_ = std::move(*opened);
  }

  std::unique_ptr<Wire> wire_;

 private:
  static bool kernel_has_it() {
    const int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_in6 name{};
    name.sin6_family = AF_INET6;
    name.sin6_addr = in6addr_loopback;
    const bool bound = fd >= 0 && bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0;
    if (fd >= 0) close(fd);
    return bound;
  }

  int lock_ = -1;
};

TEST_F(Ipv6Loopback, marks_cross_the_network_in_the_header) {
  UdpConfig config = marking("::1", 0.5);
  config.own_through_socket = true;
  ASSERT_NO_FATAL_FAILURE(open_wire(config));
  if (IsSkipped()) return;
  const std::size_t marked = marked_of(*wire_, *wire_, 50);
  EXPECT_EQ(marked, wire_->counters().faults_marked);
  EXPECT_GT(marked, 10u);
  EXPECT_LT(marked, 40u);
}

TEST(UdpWire, two_without_an_address_get_different_ones) {
  const auto a = open();
  const auto b = open();
  EXPECT_NE(a->local(), b->local());
  EXPECT_TRUE(a->local().is_ipv4());
}

TEST(UdpWire, taken_address_is_busy_and_named) {
  const auto a = open();
  const auto second = open_udp(UdpConfig{.address = a->local().text(), .pcap_path = {}, .faults = {}});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().status, Status::kBusy);
  EXPECT_THAT(second.error().message, testing::HasSubstr(a->local().text()));
}

TEST(UdpWire, bad_addresses_are_refused) {
  for (const char* text : {"300.1.1.1", "0.0.0.0", "::", "224.0.0.1", "239.255.255.255", "255.255.255.255",
                           "ff02::1", "ff0e::1"}) {
    const auto wire = open_udp(UdpConfig{.address = text, .pcap_path = {}, .faults = {}});
    ASSERT_FALSE(wire) << text;
    EXPECT_EQ(wire.error().status, Status::kInvalidArgument) << text;
  }
}

TEST(UdpWire, unicast_addresses_next_to_refused_ones_are_judged_by_the_host) {
  for (const char* text : {"192.0.2.1", "198.51.100.255", "2001:db8::1"}) {
    const auto wire = open_udp(UdpConfig{.address = text, .pcap_path = {}, .faults = {}});
    ASSERT_FALSE(wire) << text;
    EXPECT_EQ(wire.error().status, Status::kSystem) << text;
  }
}

// The kernel doubles a buffer's size. A wire's own address, given or found, changes nothing.
TEST(UdpWire, receive_buffer_is_as_large_as_asked_and_bounds_the_window) {
  constexpr int kBytes = 64 << 10;
  const std::string given = open()->local().text();
  for (const std::string& address : {std::string(), given}) {
    const auto wire =
        open(UdpConfig{.address = address, .pcap_path = {}, .receive_buffer_bytes = kBytes, .faults = {}});
    EXPECT_EQ(wire->socket_bytes(), 2u * kBytes) << address;
    EXPECT_EQ(wire->window_bytes(), wire->socket_bytes() / 2);
    EXPECT_FALSE(wire->lost());
    const Interface interface = interface_of(wire->local());
    EXPECT_EQ(wire->mtu_bytes(), roce_mtu_within(interface.mtu_bytes));
    EXPECT_STREQ(interface.name.data(), "lo");
  }
}

TEST(UdpWire, socket_is_non_blocking_unfragmented_and_of_its_own_process) {
  const Result<BoundSocket> bound = bind_socket("", 1 << 16);
  ASSERT_TRUE(bound);
  const int fd = bound->socket.value();
  EXPECT_NE(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
  EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  int discover = 0;
  socklen_t length = sizeof discover;
  EXPECT_EQ(getsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &discover, &length), 0);
  EXPECT_EQ(discover, IP_PMTUDISC_DO);
  sockaddr_storage name{};
  length = sizeof name;
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length), 0);
  EXPECT_EQ(from_sockaddr(name).address, bound->address);
  EXPECT_EQ(from_sockaddr(name).port, roce::kUdpPort);
}

TEST(UdpWire, mixed_sizes_arrive_in_order_and_whole) {
  const auto a = open();
  const auto b = open();
  introduce(*a, *b);
  const std::vector<std::size_t> sizes{4156, 4156, 4156, 100, 20, 20, 20, 4156, 16, 12, 4156};
  std::uint8_t tag = 0;
  for (const std::size_t size : sizes) send(*a, b->local(), ++tag, size);
  a->flush();
  const std::vector<Bytes> arrivals = receive_all(*b);
  ASSERT_EQ(arrivals.size(), sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(arrivals[i], tagged(static_cast<std::uint8_t>(i + 1), sizes[i])) << i;
  }
  EXPECT_EQ(b->counters().icrc_errors, 0u);
  EXPECT_EQ(b->counters().packets_received, sizes.size());
}

TEST(UdpWire, more_than_the_arena_leaves_without_a_flush) {
  const auto a = open();
  const auto b = open();
  introduce(*a, *b);
  std::size_t arrived = 0;
  for (int i = 0; i < 1000; ++i) {
    send(*a, b->local(), static_cast<std::uint8_t>(i), 4156);
    if (i % 100 == 99) arrived += receive_all(*b).size();
  }
  a->flush();
  arrived += receive_all(*b).size();
  EXPECT_EQ(arrived, 1000u);
}

TEST(UdpWire, corrupted_packets_are_dropped_and_counted) {
  const auto a = open(UdpConfig{.address = {}, .pcap_path = {}, .faults = {.corrupt = 1}});
  const auto b = open();
  introduce(*a, *b);
  // Bit flips in the BTH's resv8a byte, which the ICRC leaves out, may pass.
  for (int i = 0; i < 200; ++i) send(*a, b->local(), 5, 1000);
  a->flush();
  EXPECT_LE(receive_all(*b).size(), 2u);
  EXPECT_GE(b->counters().icrc_errors, 198u);
  EXPECT_EQ(a->counters().faults_corrupted, 200u);
}

// Those from the wire itself have no sum that could be wrong, and leave no trace.
TEST(UdpWire, packets_are_judged_also_after_those_to_itself) {
  const auto a = open(UdpConfig{.address = {}, .pcap_path = {}, .faults = {.corrupt = 1}});
  const auto b = open();
  introduce(*a, *b);
  send(*b, b->local(), 1, 100);
  b->flush();
  EXPECT_EQ(receive_all(*b).size(), 1u);
  for (int i = 0; i < 20; ++i) send(*a, b->local(), 5, 1000);
  a->flush();
  EXPECT_LE(receive_all(*b).size(), 1u);
  EXPECT_GE(b->counters().icrc_errors, 19u);
}

TEST(UdpWire, socket_was_drained_if_the_last_look_found_nothing) {
  const auto a = open();
  const auto b = open();
  introduce(*a, *b);
  EXPECT_TRUE(receive_all(*b).empty());
  EXPECT_TRUE(b->socket_was_drained());
  for (int i = 0; i < 2; ++i) send(*a, b->local(), 1, 100);
  a->flush();
  EXPECT_EQ(b->receive(1, [](const Address&, std::span<const std::byte>) {}), 1u);
  EXPECT_FALSE(b->socket_was_drained());
  EXPECT_EQ(receive_all(*b).size(), 1u);
  EXPECT_TRUE(b->socket_was_drained());
}

TEST(UdpWire, no_more_is_taken_than_was_asked_for) {
  const auto a = open();
  const auto b = open();
  introduce(*a, *b);
  for (const std::size_t size : {100, 200, 300}) {
    for (int i = 0; i < 5; ++i) send(*a, b->local(), 1, size);
  }
  a->flush();
  std::size_t taken = 0;
  for (std::size_t some = 1; some > 0; taken += some) {
    some = b->receive(7, [](const Address&, std::span<const std::byte>) {});
    EXPECT_LE(some, 7u);
  }
  EXPECT_EQ(taken, 15u);
}

TEST(UdpWire, lost_packets_never_leave) {
  const auto a = open(UdpConfig{.address = {}, .pcap_path = {}, .faults = {.loss = 1}});
  const auto b = open();
  introduce(*a, *b);
  for (int i = 0; i < 10; ++i) send(*a, b->local(), 5, 100);
  a->flush();
  EXPECT_TRUE(receive_all(*b).empty());
  EXPECT_EQ(a->counters().faults_lost, 10u);
}

TEST(UdpWire, duplicates_arrive_twice) {
  const auto a = open(UdpConfig{.address = {}, .pcap_path = {}, .faults = {.duplicate = 1}});
  const auto b = open();
  introduce(*a, *b);
  send(*a, b->local(), 5, 100);
  a->flush();
  EXPECT_THAT(receive_all(*b), testing::ElementsAre(tagged(5, 100), tagged(5, 100)));
}

TEST(UdpWire, held_back_packet_follows_the_next_one) {
  const auto a = open(UdpConfig{.address = {}, .pcap_path = {}, .faults = {.reorder = 1}});
  const auto b = open();
  introduce(*a, *b);
  send(*a, b->local(), 1, 100);
  send(*a, b->local(), 2, 100);
  a->flush();
  EXPECT_THAT(receive_all(*b), testing::ElementsAre(tagged(2, 100), tagged(1, 100)));
  send(*a, b->local(), 3, 100);
  EXPECT_TRUE(receive_all(*b).empty());
  a->flush();
  EXPECT_THAT(receive_all(*b), testing::ElementsAre(tagged(3, 100))) << "none follows";
}

// Linux refuses segments to a socket that sends no checksums.
TEST(UdpWire, path_that_cannot_segment_costs_one_flush_of_packets) {
  const auto a = open();
  const auto b = open();
  introduce(*a, *b);
  const int on = 1;
  ASSERT_EQ(setsockopt(a->poll_fd(), SOL_SOCKET, SO_NO_CHECK, &on, sizeof on), 0);
  const std::size_t lost = kernel_segments() ? 2 : 0;
  for (const std::size_t arriving : {2 - lost, std::size_t{2}}) {
    for (int i = 0; i < 2; ++i) send(*a, b->local(), 9, 64);
    a->flush();
    EXPECT_EQ(receive_all(*b).size(), arriving);
    EXPECT_EQ(a->counters().send_errors, lost);
  }
}

TEST(UdpWire, what_is_begun_leaves_at_the_end_at_the_latest) {
  auto a = open();
  const auto b = open();
  introduce(*a, *b);
  send(*a, b->local(), 5, 100);
  EXPECT_TRUE(receive_all(*b).empty());
  a.reset();
  EXPECT_EQ(receive_all(*b).size(), 1u);
}

TEST_F(Ipv6Loopback, carries_packets) {
  UdpConfig config;
  config.address = "::1";
  config.own_through_socket = true;
  ASSERT_NO_FATAL_FAILURE(open_wire(config));
  if (IsSkipped()) return;
  for (const std::size_t size : {4156, 4156, 4156, 40}) send(*wire_, wire_->local(), 9, size);
  wire_->flush();
  EXPECT_EQ(receive_all(*wire_).size(), 4u);
  EXPECT_EQ(wire_->counters().icrc_errors, 0u);
}

// Every packet of the capture, the segments of one GSO send included, has the ICRC of its own headers.
// `plain`: as between hosts.
void expect_right_captures(bool plain) {
  const std::string stem = testing::TempDir() + "gdx_udp_" + std::to_string(::getpid());
  const std::array<std::string, 2> paths{stem + "_a.pcap", stem + "_b.pcap"};
  {
    UdpConfig config;
    config.foreign_on_loopback = plain;
    config.pcap_path = paths[0];
    const auto a = open(config);
    config.pcap_path = paths[1];
    const auto b = open(config);
    if (!plain) introduce(*a, *b);
    for (const std::size_t size : {4156, 4156, 4156, 100, 16, 16}) send(*a, b->local(), 9, size);
    a->flush();
    EXPECT_EQ(receive_all(*b).size(), 6u);
  }
  for (const std::string& path : paths) {
    const std::vector<gdx::test::CapturedPacket> packets = gdx::test::read_roce_pcap(path);
    std::filesystem::remove(path);
    std::vector<int> ids;
    for (const gdx::test::CapturedPacket& packet : packets) ids.push_back(packet.ip_id);
    const bool counts = plain && kernel_segments();
    const std::vector<int> expected = counts ? std::vector{0, 1, 2, 3, 0, 1} : std::vector(6, 0);
    EXPECT_EQ(ids, expected) << "as Linux numbers the segments of a GSO send, or that of a token";
    for (const gdx::test::CapturedPacket& packet : packets) {
      EXPECT_TRUE(packet.dont_fragment);
      EXPECT_EQ(packet.icrc,
                icrc_between(Address::ipv4(packet.source_ipv4), Address::ipv4(packet.destination_ipv4),
                             packet.source_port, packet.ip_id, packet.datagram));
    }
  }
}

TEST(UdpWire, capture_of_both_ends_verifies) {
  expect_right_captures(false);
  expect_right_captures(true);
}

// While both wires are open, not only at their end.
TEST(UdpWire, capture_shows_each_packet_once_it_is_sent_or_received) {
  const std::string stem = testing::TempDir() + "gdx_newest_" + std::to_string(::getpid());
  const std::array<std::string, 2> paths{stem + "_a.pcap", stem + "_b.pcap"};
  const auto a = open(UdpConfig{.address = {}, .pcap_path = paths[0], .faults = {}});
  const auto b = open(UdpConfig{.address = {}, .pcap_path = paths[1], .faults = {}});
  introduce(*a, *b);
  for (std::size_t sent = 1; sent <= 3; ++sent) {
    send(*a, b->local(), 9, 64);
    a->flush();
    EXPECT_EQ(receive_all(*b).size(), 1u);
    for (const std::string& path : paths) EXPECT_EQ(gdx::test::read_roce_pcap(path).size(), sent) << path;
  }
  for (const std::string& path : paths) std::filesystem::remove(path);
}

// Returns the congestion bits of each captured packet's IP header.
std::vector<std::uint32_t> ecn_in(const std::string& path) {
  std::vector<std::uint32_t> fields;
  for (const gdx::test::CapturedPacket& packet : gdx::test::read_roce_pcap(path))
    fields.push_back(packet.ecn);
  std::filesystem::remove(path);
  return fields;
}

TEST(UdpWire, captures_of_both_ends_say_which_packets_were_marked) {
  constexpr std::uint32_t kCapable = 2;
  constexpr std::uint32_t kMarked = 3;
  const std::string stem = testing::TempDir() + "gdx_ecn_" + std::to_string(::getpid());
  std::uint64_t marked = 0;
  {
    UdpConfig config = marking("", 0.5);
    config.pcap_path = stem + "_a.pcap";
    const auto a = open(config);
    const auto b = open(UdpConfig{.address = {}, .pcap_path = stem + "_b.pcap", .faults = {}});
    introduce(*a, *b);
    EXPECT_EQ(marked_of(*a, *b, 50), a->counters().faults_marked);
    marked = a->counters().faults_marked;
  }
  const std::vector<std::uint32_t> sent = ecn_in(stem + "_a.pcap");
  EXPECT_EQ(std::ranges::count(sent, kMarked), static_cast<std::ptrdiff_t>(marked));
  EXPECT_EQ(std::ranges::count(sent, kCapable), static_cast<std::ptrdiff_t>(50 - marked));
  EXPECT_EQ(ecn_in(stem + "_b.pcap"), sent);
}

TEST(IcrcCalculator, paths_lengths_and_ids_in_turn_agree_with_a_fresh_sum) {
  const std::vector<Address> addresses{Address::ipv4(0x7f000002), Address::ipv4(0x7f000012),
                                       Address::ipv4(0x7f010002), *Address::parse("fd67::2"),
                                       *Address::parse("fd68::2")};
  IcrcCalculator calculator;
  const auto expect_all_lengths = [&](const Address& from, const Address& to, std::uint16_t port) {
    // 36 and 100, like 12, 1036 and 1100, are kept in one place.
    for (const std::size_t length : {12u, 36u, 100u, 1036u, 1100u}) {
      const Bytes datagram(length, std::byte{0x5a});
      for (const std::uint16_t id : std::initializer_list<std::uint16_t>{0, 1, 63, 0x8001}) {
        EXPECT_EQ(calculator.between(from, to, port, id, datagram),
                  icrc_between(from, to, port, id, datagram))
            << length << " bytes, id " << id << ", port " << port;
      }
    }
  };
  for (const Address& from : addresses) {
    for (const Address& to : addresses) {
      if (from.is_ipv4() != to.is_ipv4()) continue;
      expect_all_lengths(from, to, 4791);
      expect_all_lengths(from, to, 49152);
    }
  }
}

TEST(IcrcChecker, unknown_id_is_found_and_wrong_icrc_is_not) {
  const Address from = Address::ipv4(0x7f000002);
  const Address to = Address::ipv4(0x7f000003);
  IcrcChecker checker;
  for (const std::size_t length : {std::size_t{12}, std::size_t{28}, std::size_t{4124}}) {
    const Bytes datagram(length, std::byte{0x5a});
    for (const std::uint16_t id : std::initializer_list<std::uint16_t>{0, 1, 17, 63}) {
      const std::uint32_t icrc = icrc_between(from, to, 4791, id, datagram);
      EXPECT_EQ(checker.check(from, to, 4791, 0, datagram, icrc), id);
      EXPECT_EQ(checker.check(from, to, 4791, 63, datagram, icrc), id);
      EXPECT_EQ(checker.check(from, to, 4791, 0, datagram, icrc ^ 0x10), std::nullopt);
    }
    const std::uint32_t beyond = icrc_between(from, to, 4791, 64, datagram);
    EXPECT_EQ(checker.check(from, to, 4791, 0, datagram, beyond), std::nullopt);
    EXPECT_EQ(checker.check(from, to, 4791, 64, datagram, beyond), 64);
    const Address v6 = *Address::parse("fd67::2");
    const std::uint32_t without_id = icrc_between(v6, v6, 4791, 0, datagram);
    EXPECT_EQ(checker.check(v6, v6, 4791, 5, datagram, without_id), 5);
    EXPECT_EQ(checker.check(v6, v6, 4791, 0, datagram, without_id ^ 1), std::nullopt);
  }
  EXPECT_EQ(checker.check(from, to, 4791, 0, Bytes(11), 0), std::nullopt);
}

// A file of the program has the socket's number. Nothing was sent that could go to it.
TEST(Udp, sends_no_request_of_its_own_through_a_number_that_the_program_has_reused) {
  const std::unique_ptr<Wire> wire = open();
  Result<BoundSocket> silent = bind_socket("", 0);
  ASSERT_TRUE(silent);
  const Descriptor programs(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ASSERT_TRUE(wire->awaits(silent->address));
  send(*wire, silent->address, 1, 64);
  ASSERT_EQ(dup3(programs.value(), wire->poll_fd(), O_CLOEXEC), wire->poll_fd());
  ASSERT_TRUE(wire->lost());
  const auto arrives = [&] {
    std::byte byte;
    return recv(silent->socket.value(), &byte, 1, MSG_DONTWAIT) >= 0;
  };
  wire->flush();
  EXPECT_FALSE(arrives()) << "the first request";
  while (wire->next_deadline_ns() != ~std::uint64_t{0}) {
    wire->flush();
    usleep(1000);
  }
  EXPECT_FALSE(arrives()) << "another request, or the packet that waited";
}

}  // namespace udp_test
}  // namespace gdx::softhca::wire
