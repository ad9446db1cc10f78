#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/clock.h"
#include "driver-shim/softhca/wire/icrc_check.h"
#include "driver-shim/softhca/wire/links.h"
#include "driver-shim/softhca/wire/wire.h"
#include "tests/unit/roce/pcap_reader.h"

namespace gdx::softhca::wire {
namespace {

using Bytes = std::vector<std::byte>;

std::unique_ptr<Wire> open(Carrier carrier, const UdpConfig& config = {}) {
  Result<std::unique_ptr<Wire>> wire = open_wire(carrier, config);
  EXPECT_TRUE(wire) << (wire ? "" : wire.error().message);
  return wire ? std::move(*wire) : nullptr;
}

std::unique_ptr<Wire> open_with(const FaultConfig& faults) {
  return open(Carrier::kSharedMemory, UdpConfig{.address = {}, .pcap_path = {}, .faults = faults});
}

void send(Wire& wire, const Address& to, std::uint8_t tag, std::size_t length_bytes) {
  std::fill_n(wire.begin_packet(to).begin(), length_bytes, std::byte{tag});
  wire.commit_packet(to, length_bytes);
}

// Calls as an HCA would that makes its links by itself.
Result<Descriptor> call_as(const Address& local, const Address& peer, int memory_fd) {
  Result<Descriptor> socket = reach_peer(peer);
  if (!socket) return socket;
  const Result<void> sent = send_call(*socket, local, memory_fd);
  if (!sent) return tl::unexpected<Error>(sent.error());
  return socket;
}

// Polls until nothing has come for a while, because descriptors are polled every 20 us only.
std::vector<Bytes> receive_all(Wire& wire) {
  std::vector<Bytes> arrivals;
  for (int empty = 0; empty < 20; ++empty) {
    static_cast<void>(wire.arm());  // the next receive() polls descriptors too
    while (wire.receive(7, [&](const Address&, std::span<const std::byte> datagram) {
      arrivals.emplace_back(datagram.begin(), datagram.end());
    }) > 0) {
      empty = 0;
    }
  }
  return arrivals;
}

// The sender later gets only that its retries ran out, so the cause is logged where it occurs.
TEST(SharedMemoryWire, without_descriptors_for_a_link_a_line_says_so_once) {
  const auto a = open(Carrier::kSharedMemory);
  const auto b = open(Carrier::kSharedMemory);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  testing::internal::CaptureStderr();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  for (int i = 0; i < 3; ++i) send(*a, b->local(), 1, 64);
  setrlimit(RLIMIT_NOFILE, &before);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, testing::HasSubstr("check the limit on open files (ulimit -n)"));
  EXPECT_EQ(std::ranges::count(said, '\n'), 1) << said;
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
      expected.emplace_back(size, std::byte{tag});
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
  EXPECT_THAT(receive_all(*a), testing::ElementsAre(Bytes(500, std::byte{3})));
}

TEST(SharedMemoryWire, peer_without_shared_memory_is_reached_over_udp_in_the_same_breath) {
  const auto a = open(Carrier::kAuto);
  const auto udp = open(Carrier::kUdp);
  const auto b = open(Carrier::kAuto);
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
  EXPECT_THAT(receive_all(*b), testing::ElementsAre(Bytes(100, std::byte{5}), Bytes(100, std::byte{5})));
}

TEST(SharedMemoryWire, held_back_packet_follows_the_next_one) {
  const auto a = open_with({.reorder = 1});
  const auto b = open(Carrier::kSharedMemory);
  send(*a, b->local(), 1, 100);
  send(*a, b->local(), 2, 100);
  a->flush();
  EXPECT_THAT(receive_all(*b), testing::ElementsAre(Bytes(100, std::byte{2}), Bytes(100, std::byte{1})));
  send(*a, b->local(), 3, 100);
  a->flush();
  EXPECT_THAT(receive_all(*b), testing::ElementsAre(Bytes(100, std::byte{3}))) << "none follows";
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

TEST(SharedMemoryWire, ring_that_nobody_empties_stops_holding_back) {
  const auto a = open(Carrier::kSharedMemory);
  const auto b = open(Carrier::kSharedMemory);
  while (a->room(b->local()) > 0) send(*a, b->local(), 1, 4156);
  std::uint64_t looks = 0;
  while (a->room(b->local()) == 0) ++looks;  // for kStalledNs: the test's own time limit bounds it
  EXPECT_GT(looks, 0u);
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
  EXPECT_THAT(receive_all(*b), testing::ElementsAre(Bytes(20, std::byte{2})));
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
  EXPECT_EQ(arrivals.front(), Bytes(20, std::byte{3}));
}

TEST(SharedMemoryWire, packets_that_a_dead_peers_link_holds_are_not_flushed) {
  const auto a = open(Carrier::kSharedMemory);
  auto b = open(Carrier::kSharedMemory);
  send(*a, b->local(), 1, 20);
  b.reset();
  EXPECT_TRUE(receive_all(*a).empty());
  a->flush();
}

// A process of our own user, so that only what it does tells it from a peer.
class HostilePeer : public testing::Test {
 protected:
  void SetUp() override {
    Result<BoundSocket> made = bind_socket("", kSocketBufferBytes);
    ASSERT_TRUE(made) << made.error().message;
    held = std::move(*made);
  }

  Descriptor call(const SharedMemory::Made& made) {
    Result<Descriptor> socket = call_as(held.address, victim->local(), made.file.value());
    EXPECT_TRUE(socket) << (socket ? "" : socket.error().message);
    return socket ? std::move(*socket) : Descriptor();
  }

  // Returns whether the victim has closed `socket`.
  bool hung_up(const Descriptor& socket) {
    EXPECT_TRUE(receive_all(*victim).empty());
    return !drain_wakeups(socket.value());
  }

  BoundSocket held;
  std::unique_ptr<Wire> victim = open(Carrier::kSharedMemory);
};

TEST_F(HostilePeer, scribbled_index_closes_the_link) {
  Result<SharedMemory::Made> made = SharedMemory::create();
  ASSERT_TRUE(made);
  const Descriptor socket = call(*made);
  EXPECT_FALSE(hung_up(socket));
  made->memory.control().tail = ~std::uint64_t{63};
  EXPECT_TRUE(hung_up(socket));
}

TEST_F(HostilePeer, scribbled_length_closes_the_link) {
  Result<SharedMemory::Made> made = SharedMemory::create();
  ASSERT_TRUE(made);
  const Descriptor socket = call(*made);
  const RingRecord record{0xfffffff0, 0};
  std::memcpy(made->memory.data(), &record, sizeof record);
  made->memory.control().tail = kRecordAlignBytes;
  EXPECT_TRUE(hung_up(socket));
}

TEST_F(HostilePeer, caller_that_calls_again_has_one_link) {
  Result<SharedMemory::Made> first = SharedMemory::create();
  Result<SharedMemory::Made> second = SharedMemory::create();
  ASSERT_TRUE(first && second);
  const Descriptor before = call(*first);
  EXPECT_FALSE(hung_up(before));
  const Descriptor after = call(*second);
  EXPECT_FALSE(hung_up(after));
  EXPECT_TRUE(hung_up(before));
}

TEST_F(HostilePeer, record_too_short_for_its_icrc_is_dropped) {
  Result<SharedMemory::Made> made = SharedMemory::create();
  ASSERT_TRUE(made);
  const Descriptor socket = call(*made);
  const RingRecord record{3, kRecordHasIcrc};
  std::memcpy(made->memory.data(), &record, sizeof record);
  made->memory.control().tail = kRecordAlignBytes;
  EXPECT_FALSE(hung_up(socket));
  EXPECT_EQ(victim->counters().icrc_errors, 1u);
}

TEST_F(HostilePeer, scribbled_consumer_index_of_the_victims_own_link_is_abandoned) {
  const Result<Descriptor> listener = listen_for_calls(held.address);
  ASSERT_TRUE(listener) << listener.error().message;
  send(*victim, held.address, 1, 20);
  victim->flush();
  const Descriptor caller = accept_call(listener->value());
  Result<std::optional<Call>> call = receive_call(caller.value());
  ASSERT_TRUE(call && *call);
  const Result<SharedMemory> ring = SharedMemory::adopt((*call)->memory.value());
  ASSERT_TRUE(ring) << ring.error().message;
  ring->control().head = ~std::uint64_t{0};
  EXPECT_FALSE(hung_up(caller));
  static_cast<void>(victim->room(held.address));  // looks at the index
  send(*victim, held.address, 1, 20);
  EXPECT_TRUE(hung_up(caller));
}

TEST_F(HostilePeer, memory_that_could_be_cut_short_is_refused) {
  const Descriptor file(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  Result<SharedMemory::Made> model = SharedMemory::create();
  ASSERT_TRUE(model);
  ASSERT_EQ(ftruncate(file.value(), lseek(model->file.value(), 0, SEEK_END)), 0);
  const auto unsealed = SharedMemory::adopt(file.value());
  ASSERT_FALSE(unsealed);
  EXPECT_EQ(unsealed.error().status, Status::kInvalidArgument);
  ASSERT_EQ(fcntl(file.value(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  EXPECT_TRUE(SharedMemory::adopt(file.value())) << "the seals were all that was missing";
}

TEST_F(HostilePeer, memory_of_another_size_is_refused) {
  const Descriptor file(memfd_create("small", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(file.value(), 4096), 0);
  ASSERT_EQ(fcntl(file.value(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  const Result<Descriptor> socket = call_as(held.address, victim->local(), file.value());
  ASSERT_TRUE(socket);
  EXPECT_TRUE(hung_up(*socket));
}

// The name of an address is free for all, the address is not.
TEST_F(HostilePeer, caller_for_an_address_that_it_does_not_hold_is_refused) {
  Result<SharedMemory::Made> made = SharedMemory::create();
  ASSERT_TRUE(made);
  const Address nobodys = Address::ipv4(0x7f000001);
  const Result<Descriptor> socket = call_as(nobodys, victim->local(), made->file.value());
  ASSERT_TRUE(socket);
  EXPECT_TRUE(hung_up(*socket));
}

TEST_F(HostilePeer, listener_for_an_address_that_it_does_not_hold_is_not_trusted) {
  const Address nobodys = Address::ipv4(0x7f000001);
  const Result<Descriptor> squatter = listen_for_calls(nobodys);
  ASSERT_TRUE(squatter) << squatter.error().message;
  const auto link = open_link(victim->local(), nobodys);
  ASSERT_FALSE(link);
  EXPECT_EQ(link.error().status, Status::kNotFound);
}

// Another user's process, in the name of an address that is ours.
TEST_F(HostilePeer, caller_of_another_user_than_the_holder_is_refused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user: run it as root";
  constexpr uid_t kNobody = 65534;
  const Address to = victim->local();
  Result<SharedMemory::Made> made = SharedMemory::create();
  ASSERT_TRUE(made);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(30);
    if (setresuid(kNobody, kNobody, kNobody) != 0) _exit(1);
    const Result<Descriptor> socket = call_as(held.address, to, made->file.value());
    if (!socket) _exit(2);
    pollfd file{socket->value(), POLLIN, 0};
    poll(&file, 1, 20'000);
    _exit((file.revents & POLLHUP) != 0 ? 0 : 3);
  }
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) EXPECT_TRUE(receive_all(*victim).empty());
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(HostilePeer, silent_and_babbling_callers_are_forgotten) {
  std::vector<Descriptor> callers;
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::string text = "gdx-softhca-ring-1/" + victim->local().text();
  text.copy(name.sun_path + 1, text.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  for (int i = 0; i < 40; ++i) {
    Descriptor caller(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    ASSERT_EQ(connect(caller.value(), reinterpret_cast<const sockaddr*>(&name), length), 0);
    const bool babbles = i % 2 == 0;
    EXPECT_TRUE(!babbles || ::send(caller.value(), "babble", 6, 0) == 6);
    EXPECT_TRUE(receive_all(*victim).empty());
    callers.push_back(std::move(caller));
  }
  EXPECT_FALSE(drain_wakeups(callers[0].value())) << "babbled";
  EXPECT_FALSE(drain_wakeups(callers[1].value())) << "was silent for too long";
  EXPECT_TRUE(drain_wakeups(callers[39].value())) << "may yet speak";
}

TEST_F(HostilePeer, descriptors_that_no_call_needs_are_closed) {
  const auto open_files = [] {
    const std::filesystem::directory_iterator entries("/proc/self/fd");
    return std::distance(begin(entries), end(entries));
  };
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::string text = "gdx-softhca-ring-1/" + victim->local().text();
  text.copy(name.sun_path + 1, text.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  const auto before = open_files();
  for (int i = 0; i < 20; ++i) {
    Descriptor caller(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    ASSERT_EQ(connect(caller.value(), reinterpret_cast<const sockaddr*>(&name), length), 0);
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(2 * sizeof(int))> control{};
    const std::array<int, 2> fds{caller.value(), caller.value()};
    char byte = 0;
    iovec vector{&byte, 1};
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fds);
    std::memcpy(CMSG_DATA(header), fds.data(), sizeof fds);
    ASSERT_EQ(sendmsg(caller.value(), &message, 0), 1);
    EXPECT_TRUE(receive_all(*victim).empty());
  }
  EXPECT_LT(open_files() - before, 20);
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
  send(*b, address, 1, 100);
  send(*a, b->local(), 2, 100);
  a->flush();
  b->flush();
  EXPECT_EQ(receive_all(*b).size(), 1u);
}

}  // namespace
}  // namespace gdx::softhca::wire
