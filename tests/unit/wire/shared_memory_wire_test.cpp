#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "driver-shim/softhca/wire/icrc_check.h"
#include "tests/open_files.h"
#include "tests/unit/roce/pcap_reader.h"
#include "tests/unit/wire/shared_memory_ends.h"

namespace gdx::softhca::wire {
namespace shared_memory_wire_test {

std::unique_ptr<Wire> open_with(const FaultConfig& faults) {
  return open(Carrier::kSharedMemory, UdpConfig{.address = {}, .pcap_path = {}, .faults = faults});
}

// The sender later gets only that its retries ran out, so the cause is logged where it occurs.
TEST(SharedMemoryWire, without_descriptors_for_a_link_a_line_says_so_once) {
  const auto a = open(Carrier::kSharedMemory);
  const auto b = open(Carrier::kSharedMemory);
  testing::internal::CaptureStderr();
  // UBSan checks the first calls of a type through a pipe.
  send(*b, a->local(), 1, 64);
  log::warn("{} lines more", 1);
  {
    const test::OpenFileLimit none(0);
    for (int i = 0; i < 3; ++i) send(*a, b->local(), 1, 64);
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, testing::HasSubstr("check the limit on open files (ulimit -n)"));
  EXPECT_EQ(std::ranges::count(said, '\n'), 2) << said;
}

TEST(SharedMemoryWire, marks_arrive_with_their_packets) {
  for (const double corrupt : {0.0, 1e-300}) {  // without an ICRC and with one, which is always right
    const auto a = open_with({.corrupt = corrupt, .mark = 0.5});
    const auto b = open(Carrier::kSharedMemory);
    for (int i = 0; i < 60; ++i) send(*a, b->local(), static_cast<std::uint8_t>(i), 64);
    a->flush();
    std::size_t marked = 0;
    std::size_t arrived = 0;
    for (int tries = 0; tries < 1000 && arrived < 60; ++tries) {
      static_cast<void>(b->arm());
      b->receive(7, [&](const Address&, std::span<const std::byte> datagram) {
        EXPECT_TRUE(datagram.size() == 64 && b->arrival_port() == 0);
        ++arrived;
        marked += b->arrival_is_marked() ? 1 : 0;
      });
    }
    EXPECT_EQ(arrived, 60u);
    EXPECT_EQ(marked, a->counters().faults_marked);
    EXPECT_TRUE(marked > 10 && marked < 50) << marked;
  }
}

bool readable(const Wire& wire) {
  pollfd file{wire.poll_fd(), POLLIN, 0};
  return poll(&file, 1, 0) == 1;
}

TEST(SharedMemoryWire, packets_of_all_sizes_arrive_in_order_both_ways) {
  const auto a = open(Carrier::kAuto);
  const auto b = open(Carrier::kAuto);
  const std::vector<std::size_t> sizes{4156, 16, 100, 4156, 20, kMaxPacketBytes};
  for (int round = 0; round < 2; ++round) {
    std::uint8_t tag = 0;
    std::vector<Bytes> expected;
    for (const std::size_t size : sizes) {
      send(*a, b->local(), ++tag, size);
      send(*b, a->local(), tag, size);
      expected.push_back(tagged(tag, size));
    }
    a->flush();
    b->flush();
    EXPECT_EQ(receive_all(*b), expected);
    EXPECT_EQ(receive_all(*a), expected);
  }
  EXPECT_EQ(a->counters().shared_memory_sent, 2 * sizes.size());
  EXPECT_EQ(a->counters().packets_sent, 2 * sizes.size());
  EXPECT_EQ(b->counters().packets_received, 2 * sizes.size());
}

TEST(SharedMemoryWire, source_is_the_callers_address) {
  const auto a = open(Carrier::kSharedMemory);
  const auto b = open(Carrier::kSharedMemory);
  send(*a, b->local(), 1, 20);
  a->flush();
  Address source;
  for (int i = 0; i < 1000 && source == Address{}; ++i) {
    static_cast<void>(b->arm());
    b->receive(1, [&](const Address& from, std::span<const std::byte>) { source = from; });
  }
  EXPECT_EQ(source, a->local());
}

TEST(SharedMemoryWire, packets_to_itself_arrive) {
  const auto a = open(Carrier::kSharedMemory);
  send(*a, a->local(), 3, 500);
  a->flush();
  EXPECT_THAT(receive_all(*a), testing::ElementsAre(tagged(3, 500)));
}

TEST(SharedMemoryWire, peer_without_shared_memory_is_reached_over_udp_in_the_same_breath) {
  const auto a = open(Carrier::kAuto);
  const auto udp = open(Carrier::kUdp);
  const auto b = open(Carrier::kAuto);
  introduce(*a, *udp);
  for (std::uint8_t i = 1; i <= 3; ++i) {
    send(*a, udp->local(), i, 100);
    send(*a, b->local(), i, 100);
  }
  send(*udp, a->local(), 9, 40);
  a->flush();
  udp->flush();
  EXPECT_EQ(receive_all(*udp).size(), 3u);
  EXPECT_EQ(receive_all(*b).size(), 3u);
  std::vector<std::uint16_t> ports;
  for (int tries = 0; tries < 1000 && ports.empty(); ++tries) {
    static_cast<void>(a->arm());
    a->receive(7, [&](const Address&, std::span<const std::byte>) { ports.push_back(a->arrival_port()); });
  }
  EXPECT_THAT(ports, testing::ElementsAre(4791));
  EXPECT_EQ(a->counters().packets_sent, 6u);
  EXPECT_EQ(a->counters().shared_memory_sent, 3u);
}

TEST(SharedMemoryWire, calls_are_judged_one_a_poll_and_none_is_forgotten) {
  const auto a = open(Carrier::kSharedMemory);
  const auto b = open(Carrier::kSharedMemory);
  const auto c = open(Carrier::kSharedMemory);
  for (const auto& caller : {a.get(), b.get()}) {
    send(*caller, c->local(), 1, 20);
    caller->flush();
  }
  EXPECT_EQ(c->receive(7, [](const Address&, std::span<const std::byte>) {}), 1u);
  EXPECT_EQ(receive_all(*c).size(), 1u);
}

TEST(SharedMemoryWire, rest_of_a_udp_batch_comes_though_the_socket_is_empty_and_quiet) {
  constexpr std::uint64_t kQuietNs = 2'000'000;  // by then UDP is not looked at for its liveliness
  const auto a = open(Carrier::kAuto);
  const auto b = open(Carrier::kAuto);
  const auto udp = open(Carrier::kUdp);
  introduce(*udp, *b);
  send(*a, b->local(), 1, 20);
  a->flush();
  EXPECT_EQ(receive_all(*b).size(), 1u);  // from here on a ring is there to be looked at instead
  for (std::uint8_t i = 0; i < 10; ++i) send(*udp, b->local(), i, 100);
  udp->flush();
  std::size_t taken = 0;
  const auto count = [&](const Address&, std::span<const std::byte>) { ++taken; };
  while (taken == 0) b->receive(3, count);
  EXPECT_FALSE(b->arm()) << "packets wait where no descriptor tells of them";
  for (const std::uint64_t begin_ns = monotonic_ns(); monotonic_ns() - begin_ns < kQuietNs;) {
  }
  for (int i = 0; i < 10; ++i) b->receive(3, count);
  EXPECT_EQ(taken, 10u);
  EXPECT_TRUE(b->arm());
}

TEST(SharedMemoryWire, shm_alone_loses_and_counts_what_udp_would_carry) {
  const auto a = open(Carrier::kSharedMemory);
  const auto udp = open(Carrier::kUdp);
  send(*a, udp->local(), 1, 100);
  a->flush();
  EXPECT_TRUE(receive_all(*udp).empty());
  EXPECT_EQ(a->counters().send_errors, 1u);
  send(*udp, a->local(), 1, 100);
  udp->flush();
  EXPECT_TRUE(receive_all(*a).empty());
}

TEST(SharedMemoryWire, corrupted_packets_are_dropped_and_counted) {
  const auto a = open_with({.corrupt = 1});
  const auto b = open(Carrier::kSharedMemory);
  // Bit flips in the BTH's resv8a byte, which the ICRC leaves out, may pass.
  std::size_t arrived = 0;
  for (int i = 0; i < 200; ++i) {
    send(*a, b->local(), 5, 1000);
    if (i % 50 == 49) {
      a->flush();
      arrived += receive_all(*b).size();
    }
  }
  EXPECT_LE(arrived, 2u);
  EXPECT_GE(b->counters().icrc_errors, 198u);
  EXPECT_EQ(a->counters().faults_corrupted, 200u);
}

TEST(SharedMemoryWire, lost_packets_never_leave) {
  const auto a = open_with({.loss = 1});
  const auto b = open(Carrier::kSharedMemory);
  for (int i = 0; i < 10; ++i) send(*a, b->local(), 5, 100);
  a->flush();
  EXPECT_TRUE(receive_all(*b).empty());
  EXPECT_EQ(a->counters().faults_lost, 10u);
}

TEST(SharedMemoryWire, duplicates_arrive_twice) {
  const auto a = open_with({.duplicate = 1});
  const auto b = open(Carrier::kSharedMemory);
  send(*a, b->local(), 5, 100);
  a->flush();
  EXPECT_THAT(receive_all(*b), testing::ElementsAre(tagged(5, 100), tagged(5, 100)));
}

TEST(SharedMemoryWire, held_back_packet_follows_the_next_one) {
  const auto a = open_with({.reorder = 1});
  const auto b = open(Carrier::kSharedMemory);
  send(*a, b->local(), 1, 100);
  send(*a, b->local(), 2, 100);
  a->flush();
  EXPECT_THAT(receive_all(*b), testing::ElementsAre(tagged(2, 100), tagged(1, 100)));
  send(*a, b->local(), 3, 100);
  a->flush();
  EXPECT_THAT(receive_all(*b), testing::ElementsAre(tagged(3, 100))) << "none follows";
}

TEST(SharedMemoryWire, peers_have_turns_of_what_is_taken_at_once_and_nothing_is_said_of_them) {
  testing::internal::CaptureStderr();
  const auto a = open(Carrier::kSharedMemory);
  const auto b = open(Carrier::kSharedMemory);
  const auto c = open(Carrier::kSharedMemory);
  for (const int packets : {1, 3}) {
    for (const auto& sender : {a.get(), b.get()}) {
      for (int i = 0; i < packets; ++i) send(*sender, c->local(), 1, 20);
      sender->flush();
    }
    if (packets == 1) {
      EXPECT_EQ(receive_all(*c).size(), 2u);
    }
  }
  std::vector<Address> sources;
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(
        c->receive(1, [&](const Address& from, std::span<const std::byte>) { sources.push_back(from); }), 1u);
  }
  ASSERT_EQ(sources.size(), 6u);
  for (std::size_t i = 1; i < 6; ++i) EXPECT_NE(sources[i], sources[i - 1]) << i;
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

// One that sleeps, and does not know it yet: the call that would wake it has no reader.
TEST(SharedMemoryWire, peer_that_ends_takes_no_other_with_it) {
  for (const bool first_ends : {false, true}) {
    const auto a = open(Carrier::kSharedMemory);
    auto b = open(Carrier::kSharedMemory);
    auto c = open(Carrier::kSharedMemory);
    for (const auto& peer : {b.get(), c.get()}) send(*a, peer->local(), 1, 20);
    a->flush();
    EXPECT_EQ(receive_all(*b).size(), 1u);
    EXPECT_EQ(receive_all(*c).size(), 1u);
    auto& ends = first_ends ? b : c;
    auto& stays = first_ends ? c : b;
    const Address gone = ends->local();
    ASSERT_TRUE(ends->arm());
    ends.reset();
    send(*a, gone, 1, 20);
    a->flush();
    EXPECT_TRUE(receive_all(*a).empty());
    send(*a, stays->local(), 2, 20);
    a->flush();
    EXPECT_EQ(receive_all(*stays).size(), 1u) << first_ends;
    EXPECT_EQ(a->counters().send_errors, 0u);
  }
}

TEST(SharedMemoryWire, capture_of_either_end_verifies) {
  const std::string stem = testing::TempDir() + "gdx_shm_" + std::to_string(::getpid());
  const std::array<std::string, 2> paths{stem + "_a.pcap", stem + "_b.pcap"};
  for (std::size_t capturing = 0; capturing < 2; ++capturing) {
    const auto config = [&](std::size_t end) {
      return UdpConfig{.address = {},
                       .pcap_path = end == capturing ? paths[end] : "",
                       .faults = {.mark = static_cast<double>(capturing)}};
    };
    const auto a = open(Carrier::kAuto, config(0));
    const auto b = open(Carrier::kAuto, config(1));
    for (const std::size_t size : {4156, 100, 16}) send(*a, b->local(), 9, size);
    a->flush();
    EXPECT_EQ(receive_all(*b).size(), 3u);
  }
  for (const std::string& path : paths) {
    const std::vector<gdx::test::CapturedPacket> packets = gdx::test::read_roce_pcap(path);
    std::filesystem::remove(path);
    EXPECT_EQ(packets.size(), 3u);
    for (const gdx::test::CapturedPacket& packet : packets) {
      EXPECT_EQ(packet.ecn, path == paths[0] ? 2u : 3u) << "ECT(0), or marked";
      EXPECT_EQ(packet.icrc,
                icrc_between(Address::ipv4(packet.source_ipv4), Address::ipv4(packet.destination_ipv4),
                             packet.source_port, packet.ip_id, packet.datagram));
    }
  }
}

TEST(SharedMemoryWire, full_ring_has_no_room_and_then_loses_what_is_forced_in) {
  const auto a = open(Carrier::kSharedMemory);
  const auto b = open(Carrier::kSharedMemory);
  std::size_t sent = 0;
  EXPECT_EQ(a->room(b->local()), (kRingDataBytes - kRingDataBytes / 8) / kMaxRecordBytes);
  while (a->room(b->local()) > 0) {
    send(*a, b->local(), 1, 4156);
    ++sent;
  }
  EXPECT_GT(sent, 40u);
  EXPECT_EQ(a->counters().send_errors, 0u) << "where there was room nothing is lost";
  send(*a, b->local(), 2, 16);
  EXPECT_EQ(a->counters().send_errors, 0u) << "there is a reserve for acknowledgements";
  constexpr std::size_t kForced = kRingDataBytes / 4156;
  for (std::size_t i = 0; i < kForced; ++i) send(*a, b->local(), 3, 4156);
  const std::uint64_t lost = a->counters().send_errors;
  EXPECT_GT(lost, 0u);
  a->flush();
  EXPECT_EQ(receive_all(*b).size(), sent + 1 + kForced - lost);
  EXPECT_GT(a->room(b->local()), 0u);
}

TEST(SharedMemoryWire, ring_has_room_again_before_its_receiver_has_taken_all) {
  const auto a = open(Carrier::kSharedMemory);
  const auto b = open(Carrier::kSharedMemory);
  std::size_t sent = 0;
  for (; a->room(b->local()) > 0; ++sent) send(*a, b->local(), 1, 4156);
  a->flush();
  std::vector<std::size_t> rooms;
  for (int looks = 0; looks < 20 && rooms.empty(); ++looks) {
    static_cast<void>(b->arm());
    b->receive(sent,
               [&](const Address&, std::span<const std::byte>) { rooms.push_back(a->room(b->local())); });
  }
  ASSERT_EQ(rooms.size(), sent);
  EXPECT_GT(rooms.back(), sent / 2);
}

TEST(SharedMemoryWire, ring_that_nobody_empties_stops_holding_back) {
  const auto a = open(Carrier::kSharedMemory);
  const auto b = open(Carrier::kSharedMemory);
  while (a->room(b->local()) > 0) send(*a, b->local(), 1, 4156);
  while (a->room(b->local()) == 0) {  // for kStalledNs: the test's own time limit bounds it
  }
  while (a->counters().send_errors == 0) send(*a, b->local(), 1, 4156);
}

TEST(SharedMemoryWire, armed_sleeper_is_woken_by_a_packet) {
  const auto a = open(Carrier::kSharedMemory);
  const auto b = open(Carrier::kSharedMemory);
  send(*a, b->local(), 1, 20);
  a->flush();
  EXPECT_EQ(receive_all(*b).size(), 1u);
  ASSERT_TRUE(b->arm());
  EXPECT_FALSE(readable(*b));
  send(*a, b->local(), 2, 20);
  a->flush();
  EXPECT_TRUE(readable(*b));
  EXPECT_EQ(receive_all(*b).size(), 1u);
  EXPECT_FALSE(readable(*b)) << "the wake-up call is taken";
}

TEST(SharedMemoryWire, arm_with_a_packet_waiting_says_so) {
  const auto a = open(Carrier::kSharedMemory);
  const auto b = open(Carrier::kSharedMemory);
  send(*a, b->local(), 1, 20);
  a->flush();
  EXPECT_EQ(receive_all(*b).size(), 1u);
  send(*a, b->local(), 2, 20);
  a->flush();
  EXPECT_FALSE(b->arm());
}

TEST(SharedMemoryWire, packets_of_a_peer_that_ended_still_arrive) {
  auto a = open(Carrier::kSharedMemory);
  const auto b = open(Carrier::kSharedMemory);
  send(*a, b->local(), 1, 20);
  a->flush();
  EXPECT_EQ(receive_all(*b).size(), 1u);
  send(*a, b->local(), 2, 20);
  a.reset();
  EXPECT_THAT(receive_all(*b), testing::ElementsAre(tagged(2, 20)));
}

TEST(SharedMemoryWire, successor_at_a_dead_peers_address_is_found) {
  const auto a = open(Carrier::kSharedMemory);
  auto b = open(Carrier::kSharedMemory);
  const Address address = b->local();
  send(*a, address, 1, 20);
  a->flush();
  b.reset();
  EXPECT_TRUE(receive_all(*a).empty());
  send(*a, address, 2, 20);
  EXPECT_EQ(a->counters().send_errors, 1u) << "nobody is there";
  b = open(Carrier::kSharedMemory, UdpConfig{.address = address.text(), .pcap_path = {}, .faults = {}});
  std::vector<Bytes> arrivals;
  while (arrivals.empty()) {  // once the pause between two calls is over
    send(*a, address, 3, 20);
    a->flush();
    arrivals = receive_all(*b);
  }
  EXPECT_EQ(arrivals.front(), tagged(3, 20));
}

TEST(SharedMemoryWire, packets_that_a_dead_peers_link_holds_are_not_flushed) {
  const auto a = open(Carrier::kSharedMemory);
  auto b = open(Carrier::kSharedMemory);
  send(*a, b->local(), 1, 20);
  b.reset();
  EXPECT_TRUE(receive_all(*a).empty());
  a->flush();
}

TEST(SharedMemoryWire, taken_name_is_udp_for_auto_and_an_error_for_shm) {
  const Address address = open(Carrier::kUdp)->local();  // free again
  const Result<Descriptor> squatter = listen_for_calls(address);
  ASSERT_TRUE(squatter);
  const UdpConfig config{.address = address.text(), .pcap_path = {}, .faults = {}};
  const auto shm = open_wire(Carrier::kSharedMemory, config);
  ASSERT_FALSE(shm);
  EXPECT_EQ(shm.error().status, Status::kBusy);
  const auto a = open(Carrier::kAuto, config);
  const auto b = open(Carrier::kAuto);
  introduce(*a, *b);
  send(*b, address, 1, 100);
  send(*a, b->local(), 2, 100);
  a->flush();
  b->flush();
  EXPECT_EQ(receive_all(*b).size(), 1u);
}

// Names follow from process ids, so another user could take them beforehand and turn `auto` to UDP.
TEST(SharedMemoryWire, taken_name_costs_who_was_given_no_address_that_address_alone) {
  std::vector<Descriptor> squatters;
  for (std::uint32_t i = 0; i < 8; ++i) {
    auto taken = listen_for_calls(Address::ipv4(0x7f000002 + (getpid() + i) % 0xfffd));
    if (taken) squatters.push_back(std::move(*taken));
  }
  ASSERT_FALSE(squatters.empty());
  for (const Carrier carrier : {Carrier::kAuto, Carrier::kSharedMemory}) {
    const auto a = open(carrier);
    const auto b = open(carrier);
    send(*a, b->local(), 1, 100);
    a->flush();
    EXPECT_EQ(receive_all(*b).size(), 1u);
    EXPECT_TRUE(a->holds_back(b->local())) << "no ring";
  }
}

}  // namespace shared_memory_wire_test
}  // namespace gdx::softhca::wire
