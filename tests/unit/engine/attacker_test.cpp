// Two HCAs move data while somebody else attacks: data stays whole, queue pairs live where the specification
// lets them, counters tell, and what the attacker draws is bounded. Who can forge a packet with the peer's
// address, the expected PSN and a wrong key kills the queue pair: so the specification has it (9.7.4.1).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <random>
#include <thread>

#include "driver-shim/softhca/wire/host_tokens.h"
#include "proto/roce/host_token.h"
#include "proto/roce/window.h"
#include "tests/unit/engine/attacker.h"
#include "tests/unit/engine/node.h"
#include "tests/unit/wire/packets.h"

namespace gdx::softhca::test {
namespace attacker_test {

using mlx5::CqeOpcode;
using mlx5::Syndrome;
using roce::Opcode;

constexpr std::uint32_t kFirstPsn = 0xfffff0;  // of both directions; see Node::connect
constexpr std::size_t kSource = 0;
constexpr std::size_t kTarget = 1 << 20;
constexpr std::size_t kForbidden = 2 << 20;  // nobody writes here, except an attacker that gets through
constexpr std::uint32_t kBytes = 60'000;     // 15 packets
constexpr std::uint32_t kForgeries = 200;    // a round; fits any receive buffer

class UnderAttack : public testing::Test {
 protected:
  void SetUp() override {
    a.connect(b);
    b.connect(a);
    introduce(a, b);
    std::mt19937 random(7);
    for (std::size_t i = 0; i < kBytes; ++i) a.memory[kSource + i] = static_cast<std::byte>(random());
    payload.fill(std::byte{0x66});
  }

  // A WRITE of kBytes from a to b, begun before `attack` and ended after it.
  template <typename Attack>
  void transfer_during(Attack attack) {
    std::fill_n(b.memory.begin() + kTarget, kBytes, std::byte{0});
    a.post_write(a.local(kSource, kBytes), b.remote(kTarget));
    a.ring();
    a.hca->progress();
    attack();
    const std::optional<Polled> polled = await_send(a, b);
    ASSERT_TRUE(polled) << "no completion";
    EXPECT_EQ(polled->opcode, CqeOpcode::kRequester) << mlx5::syndrome_name(polled->syndrome);
    EXPECT_TRUE(std::equal(a.memory.begin() + kSource, a.memory.begin() + kSource + kBytes,
                           b.memory.begin() + kTarget));
    expect_unharmed();
  }
  void expect_unharmed() {
    EXPECT_TRUE(std::all_of(b.memory.begin() + kForbidden, b.memory.begin() + kForbidden + kBytes,
                            [](std::byte byte) { return byte == std::byte{0}; }));
    EXPECT_EQ(state(a), QpState::kRts);
    EXPECT_EQ(state(b), QpState::kRts);
    EXPECT_FALSE(a.poll_receive() || b.poll_receive()) << "a message that nobody sent";
  }
  // Until neither has anything left to do: what was sent has been heard.
  void step() {
    for (int i = 0; i < 1000 && a.hca->progress() + b.hca->progress() > 0; ++i) {
    }
  }
  [[nodiscard]] static QpState state(Node& node) { return node.hca->query_qp(node.qpn)->state; }
  [[nodiscard]] static HcaCounters counters(Node& node) { return node.hca->counters(); }
  roce::Headers forged_write(std::uint32_t psn, std::uint32_t rkey) {
    roce::Headers headers = forge(Opcode::kRcWriteOnly, b.qpn, psn);
    headers.reth = {b.remote(kForbidden).address, rkey, static_cast<std::uint32_t>(payload.size())};
    return headers;
  }

  Node a;
  Node b;
  std::array<std::byte, 64> payload;
};

TEST_F(UnderAttack, stranger_who_knows_everything_is_not_heard) {
  Node stranger_home;
  stranger_home.connect(b);
  introduce(stranger_home, b);
  Attacker stranger(stranger_home.hca->address());
  transfer_during([&] {
    for (std::uint32_t i = 0; i < kForgeries / 4; ++i) {
      stranger.send(b.hca->address(), forged_write(kFirstPsn + i % 20, b.mkey), payload);
      roce::Headers read = forge(Opcode::kRcReadRequest, b.qpn, kFirstPsn + i % 20);
      read.reth = {b.remote(kSource).address, b.mkey, 4096};
      stranger.send(b.hca->address(), read);
      roce::Headers ack = forge(Opcode::kRcAcknowledge, a.qpn, kFirstPsn + i % 20);
      ack.aeth.syndrome = i % 2 ? roce::kAethAck : roce::kNakRemoteAccess;
      stranger.send(a.hca->address(), ack);
      roce::Headers rnr = ack;
      rnr.aeth.syndrome = roce::kAethKindRnr | 1;
      stranger.send(a.hca->address(), rnr);
    }
  });
  step();
  EXPECT_EQ(stranger_home.hca->progress(), 0) << "nothing went to the stranger's own HCA";
  EXPECT_GT(counters(b).dropped_packets, 0u);
  EXPECT_GT(counters(a).wire.icrc_errors, 0u) << "whom it has not met";
  EXPECT_EQ(counters(a).transport.naks_received, 0u);
  EXPECT_EQ(counters(a).transport.rnr_naks_received, 0u);
}

// Knows every number, and lacks the port that the kernel gives to one socket of an address.
TEST_F(UnderAttack, packets_from_another_port_of_the_peers_address_are_dropped) {
  Attacker as_a(a.hca->address(), Attacker::Port::kOther);
  Attacker as_b(b.hca->address(), Attacker::Port::kOther);
  transfer_during([&] {
    for (std::uint32_t i = 0; i < kForgeries / 4; ++i) {
      as_a.send(b.hca->address(), forged_write(kFirstPsn + i % 20, b.mkey), payload);
      roce::Headers nak = forge(Opcode::kRcAcknowledge, a.qpn, kFirstPsn);
      nak.aeth.syndrome = roce::kNakRemoteAccess;
      as_b.send(a.hca->address(), nak);
    }
  });
  step();
  EXPECT_EQ(counters(b).wire.forged_drops, kForgeries / 4);
  EXPECT_EQ(counters(a).wire.forged_drops, kForgeries / 4);
  EXPECT_EQ(counters(a).transport.naks_received, 0u);
}

// Own packets never come by the socket, whatever port they name.
TEST(OwnAddress, packets_by_the_socket_are_dropped) {
  Node node;
  node.connect(node);
  Attacker spoofer(node.hca->address());
  const std::array<std::byte, 8> payload{std::byte{0x66}};
  roce::Headers write = forge(Opcode::kRcWriteOnly, node.qpn, kFirstPsn);
  write.reth = {node.remote(kForbidden).address, node.mkey, payload.size()};
  spoofer.send(node.hca->address(), write, payload);
  for (int i = 0; i < 20; ++i) node.hca->progress();
  EXPECT_EQ(node.memory[kForbidden], std::byte{0});
  EXPECT_EQ(node.hca->counters().wire.forged_drops, 1u);
  node.post_write(node.local(kSource, 8), node.remote(kTarget));
  node.ring();
  const std::optional<Polled> polled = await_alone(node);
  ASSERT_TRUE(polled);
  EXPECT_EQ(polled->syndrome, Syndrome::kNone);
}

// Blind: reads none of the traffic, and knows all numbers but the tokens. An answer, which the kernel's
// public counters show, would tell a right guess of a number from a wrong one.
TEST_F(UnderAttack, packets_without_the_token_are_dropped_unanswered_whatever_they_name) {
  Attacker as_a(a.hca->address(), Attacker::Port::kRoce, Attacker::Knows::kNoTokens);
  Attacker as_b(b.hca->address(), Attacker::Port::kRoce, Attacker::Knows::kNoTokens);
  b.post_receive(b.local(kForbidden, 64));
  a.post_write(a.local(kSource, 64), b.remote(kTarget));
  a.ring();
  a.hca->progress();  // the newest request, which b has not seen
  const HcaCounters before_a = counters(a);
  const HcaCounters before_b = counters(b);
  std::uint64_t forged = 0;
  const auto throw_at_b = [&](const roce::Headers& headers, std::span<const std::byte> bytes) {
    as_a.send(b.hca->address(), headers, bytes);
    ++forged;
  };
  for (std::uint32_t i = 0; i < 8; ++i) {
    throw_at_b(forged_write(kFirstPsn + i, b.mkey), payload);
    throw_at_b(forge(Opcode::kRcSendOnly, b.qpn, kFirstPsn + i), payload);
    throw_at_b(forge(Opcode::kRcSendOnly, b.qpn + i, kFirstPsn), payload);
    roce::Headers read = forge(Opcode::kRcReadRequest, b.qpn, kFirstPsn + i);
    read.reth = {b.remote(kSource).address, b.mkey, 64};
    throw_at_b(read, {});
    throw_at_b(forge(Opcode::kWindowMarker, 0, 0), std::span(payload).first(roce::kWindowBytes));
    throw_at_b(forge(Opcode::kUdSendOnly, 1, 0), payload);
  }
  roce::Headers ack = forge(Opcode::kRcAcknowledge, a.qpn, kFirstPsn);
  ack.aeth = {.syndrome = roce::kAethAck, .msn = 1};
  as_b.send(a.hca->address(), ack);
  for (int i = 0; i < 20; ++i) a.hca->progress();
  EXPECT_FALSE(a.poll_send());
  EXPECT_EQ(counters(a).wire.forged_drops, 1u);
  EXPECT_EQ(counters(a).wire.packets_sent, before_a.wire.packets_sent);
  ASSERT_EQ(await_send(a, b)->syndrome, Syndrome::kNone);
  step();
  EXPECT_EQ(counters(b).wire.forged_drops, forged);
  EXPECT_EQ(counters(b).dropped_packets, before_b.dropped_packets);
  EXPECT_EQ(counters(b).transport.packets_received, before_b.transport.packets_received + 1);
  EXPECT_LE(counters(b).wire.packets_sent - before_b.wire.packets_sent, 3u)
      << "the ACK to a, a marker and a grant";
  transfer_during([] {});
}

// Reads nothing that goes to an address: so it gets no token for that, and takes none from the holder.
TEST_F(UnderAttack, forged_messages_of_tokens_change_nothing) {
  Attacker as_a(a.hca->address(), Attacker::Port::kRoce, Attacker::Knows::kNoTokens);
  transfer_during([&] {
    for (std::uint64_t i = 1; i <= kForgeries; ++i) {
      std::array<std::byte, roce::kHostTokenBytes> body;
      roce::encode_host_token({i, i, i}, body);
      as_a.send(b.hca->address(), forge(i % 2 ? Opcode::kTokenRequest : Opcode::kTokenAnswer, 0, 0), body);
    }
  });
  step();
  EXPECT_EQ(counters(a).wire.forged_drops, 0u);
  EXPECT_EQ(counters(b).wire.forged_drops, 0u);
}

// So a guess of a token hits one value of its 44 bits.
TEST_F(UnderAttack, packets_with_the_token_have_one_right_icrc_and_a_length_of_a_packet) {
  Attacker as_a(a.hca->address());
  as_a.send(b.hca->address(), forged_write(kFirstPsn, b.mkey), payload, 1);
  step();
  EXPECT_EQ(counters(b).wire.icrc_errors, 1u);
  expect_unharmed();
  as_a.send(b.hca->address(), forged_write(kFirstPsn, b.mkey + 1), payload);
  step();
  EXPECT_EQ(counters(b).wire.icrc_errors, 1u) << "the same with the id 0";
  as_a.send(b.hca->address(), forged_write(kFirstPsn, b.mkey), std::vector<std::byte>(wire::kMaxPacketBytes));
  step();
  EXPECT_EQ(counters(b).wire.icrc_errors, 2u) << "too long";
}

// More than an HCA remembers, each of which draws a request and an answer from it.
TEST(InventedAddresses, leave_nothing_with_an_hca_that_they_ask_for_tokens) {
  const std::unique_ptr<wire::Wire> a = *wire::open_udp({});
  const std::unique_ptr<wire::Wire> b = *wire::open_udp({});
  introduce(*a, *b);
  Attacker attacker(a->local(), Attacker::Port::kRoce, Attacker::Knows::kNoTokens);
  std::array<std::byte, roce::kHostTokenBytes> body;
  roce::encode_host_token({1, 2, 0}, body);
  for (std::uint32_t i = 0; i < 2 * wire::HostTokens::kMaxPeers + 1000; ++i) {
    attacker.pose_as(wire::Address::ipv4(0x7f600000 + i));
    attacker.send(b->local(), forge(Opcode::kTokenRequest, 0, 0), body);
    if (i % 64 != 0) continue;
    EXPECT_TRUE(receive_all(*b).empty());
    b->flush();
  }
  EXPECT_TRUE(receive_all(*b).empty());
  EXPECT_EQ(b->next_deadline_ns(), wire::HostTokens::kNever) << "it awaits one of them";
  for (const auto& [from, to] : {std::pair(a.get(), b.get()), std::pair(b.get(), a.get())}) {
    send(*from, to->local(), 1, 64);
    from->flush();
    EXPECT_EQ(receive_all(*to).size(), 1u);
    EXPECT_EQ(to->counters().icrc_errors + to->counters().forged_drops, 0u);
  }
}

TEST_F(UnderAttack, keys_guessed_under_the_peers_address_miss_the_psn_and_draw_few_answers) {
  Attacker spoofer(a.hca->address());
  std::mt19937 random(11);
  const auto begin = std::chrono::steady_clock::now();
  constexpr std::uint32_t kRounds = 10;
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    transfer_during([&] {
      for (std::uint32_t i = 0; i < kForgeries; ++i) {
        const std::uint32_t ahead = 100'000 + static_cast<std::uint32_t>(random() % 1'000'000);
        spoofer.send(b.hca->address(), forged_write(kFirstPsn + ahead, static_cast<std::uint32_t>(random())),
                     payload);
      }
    });
  }
  const std::chrono::nanoseconds elapsed = std::chrono::steady_clock::now() - begin;
  const std::uint64_t allowed =
      transport::kNakBurst + static_cast<std::uint64_t>(elapsed.count()) / transport::kNakIntervalNs + 1;
  const transport::TransportCounters seen = counters(b).transport;
  EXPECT_GT(seen.out_of_sequence, kForgeries);
  EXPECT_LE(seen.naks_sent, allowed);
  EXPECT_LE(seen.naks_sent, seen.out_of_sequence / 10) << "one for each gap, not for each packet";
  EXPECT_EQ(seen.key_faults, 0u) << "the PSN was wrong: the key was not even looked at";
}

TEST_F(UnderAttack, replayed_requests_change_nothing) {
  Attacker spoofer(a.hca->address());
  const auto counter_word = [this] {
    std::uint64_t value;
    std::memcpy(&value, b.memory.data() + kForbidden - 8, sizeof value);
    return value;
  };
  // PSNs from kFirstPsn on: a WRITE, a SEND, an atomic and a READ, as a sees them succeed.
  b.post_receive(b.local(3 << 20, 64));
  b.post_receive(b.local(3 << 20, 64));
  a.post_write(a.local(kSource, 64), b.remote(kTarget));
  a.post_send_inline(std::array{'o', 'n', 'c', 'e'}, 1);
  a.post_fetch_add(a.local(kBytes, 8), b.remote(kForbidden - 8), 5);
  a.post_read(a.local(kBytes + 8, 64), b.remote(kTarget));
  a.ring();
  for (int i = 0; i < 4; ++i) ASSERT_EQ(await_send(a, b)->syndrome, Syndrome::kNone);
  ASSERT_TRUE(await_receive(b, a));
  ASSERT_EQ(counter_word(), 5u);

  transfer_during([&] {
    for (std::uint32_t i = 0; i < kForgeries / 4; ++i) {
      roce::Headers write = forged_write(kFirstPsn, b.mkey);
      write.reth.address = b.remote(kTarget).address;
      spoofer.send(b.hca->address(), write, payload);
      spoofer.send(b.hca->address(), forge(Opcode::kRcSendOnlyImmediate, b.qpn, kFirstPsn + 1), payload);
      roce::Headers add = forge(Opcode::kRcFetchAdd, b.qpn, kFirstPsn + 2);
      add.atomic = {b.remote(kForbidden - 8).address, b.mkey, 5, 0};
      spoofer.send(b.hca->address(), add);
      // The old READ, turned to other memory.
      roce::Headers read = forge(Opcode::kRcReadRequest, b.qpn, kFirstPsn + 3);
      read.reth = {b.remote(kSource).address, b.mkey, 64};
      spoofer.send(b.hca->address(), read);
    }
  });
  step();
  EXPECT_EQ(counter_word(), 5u) << "an atomic is executed once";
  EXPECT_GE(counters(b).transport.duplicate_requests, kForgeries / 2);
}

TEST_F(UnderAttack, forged_answers_to_nothing_outstanding_are_ignored) {
  Attacker spoofer(b.hca->address());
  std::mt19937 random(13);
  transfer_during([&] {
    for (std::uint32_t i = 0; i < kForgeries; ++i) {
      const std::uint32_t ahead = 1000 + static_cast<std::uint32_t>(random() % 1'000'000);
      static constexpr std::array kAnswers{Opcode::kRcAcknowledge, Opcode::kRcReadResponseOnly,
                                           Opcode::kRcAtomicAcknowledge};
      roce::Headers answer = forge(kAnswers[i % 3], a.qpn, kFirstPsn + ahead);
      answer.aeth.syndrome = static_cast<std::uint8_t>(i % 2 ? roce::kNakRemoteAccess : roce::kAethAck);
      spoofer.send(a.hca->address(), answer);
    }
  });
  EXPECT_EQ(counters(a).transport.naks_received, 0u);
}

// As IBA has it: who passes for the peer and knows what is outstanding speaks for the peer.
TEST_F(UnderAttack, forged_answer_to_what_is_outstanding_completes_it) {
  Attacker spoofer(b.hca->address());
  a.post_write(a.local(kSource, 64), b.remote(kTarget));
  a.ring();
  a.hca->progress();
  roce::Headers ack = forge(Opcode::kRcAcknowledge, a.qpn, kFirstPsn);
  ack.aeth = {.syndrome = roce::kAethAck, .msn = 1};
  spoofer.send(a.hca->address(), ack);
  const std::optional<Polled> polled = await_alone(a);
  ASSERT_TRUE(polled);
  EXPECT_EQ(polled->syndrome, Syndrome::kNone);
  EXPECT_EQ(counters(b).transport.packets_received, 0u);
}

TEST_F(UnderAttack, flood_for_a_receive_that_is_not_there_draws_naks_at_the_bounded_rate) {
  Attacker spoofer(a.hca->address());
  const auto begin = std::chrono::steady_clock::now();
  constexpr std::uint32_t kRounds = 20;
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    for (std::uint32_t i = 0; i < kForgeries; ++i) {
      spoofer.send(b.hca->address(), forge(Opcode::kRcSendOnly, b.qpn, kFirstPsn), payload);
    }
    step();
  }
  const std::chrono::nanoseconds elapsed = std::chrono::steady_clock::now() - begin;
  const std::uint64_t allowed =
      transport::kNakBurst + static_cast<std::uint64_t>(elapsed.count()) / transport::kNakIntervalNs + 1;
  const transport::TransportCounters seen = counters(b).transport;
  EXPECT_GT(seen.naks_sent, 0u);
  EXPECT_LE(seen.naks_sent, allowed);
  EXPECT_EQ(seen.naks_sent + seen.naks_withheld, seen.packets_received);
  transfer_during([] {});
}

TEST_F(UnderAttack, noise_is_dropped) {
  Attacker spoofer(a.hca->address());
  std::mt19937 random(17);
  transfer_during([&] {
    for (std::uint32_t i = 0; i < kForgeries; ++i) {
      std::vector<std::byte> bytes(random() % 100);
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
      spoofer.send_raw(b.hca->address(), bytes);
      roce::Headers stray = forge(static_cast<Opcode>(0x60), 0, 0);
      stray.bth.opcode = Opcode::kUdSendOnly;  // not this queue pair's transport
      stray.bth.destination_qpn = i % 2 ? b.qpn : static_cast<std::uint32_t>(random()) & roce::kQpnMask;
      spoofer.send(b.hca->address(), stray, payload);
    }
  });
  EXPECT_GT(counters(b).wire.icrc_errors, 0u);
  EXPECT_GT(counters(b).dropped_packets, 0u);
}

// Has the token, too, and therefore passes. A ring has a user.
class AllKnowing : public testing::TestWithParam<wire::Carrier> {};

TEST_P(AllKnowing, forger_passes_for_the_peer_over_udp_and_for_nobody_beside_a_ring) {
  Node a({}, 4 << 20, GetParam());
  Node b({}, 4 << 20, GetParam());
  a.connect(b);
  b.connect(a);
  a.post_write(a.local(kSource, 8), b.remote(kTarget));
  a.ring();
  ASSERT_TRUE(await_send(a, b));
  // No token was given where packets take a ring.
  Attacker spoofer(a.hca->address(), Attacker::Port::kRoce,
                   GetParam() == wire::Carrier::kUdp ? Attacker::Knows::kTokens : Attacker::Knows::kNoTokens);
  const std::array<std::byte, 8> payload{std::byte{0x66}};
  roce::Headers write = forge(Opcode::kRcWriteOnly, b.qpn, kFirstPsn + 1);
  write.reth = {b.remote(kForbidden).address, b.mkey, payload.size()};
  spoofer.send(b.hca->address(), write, payload);
  const bool udp = GetParam() == wire::Carrier::kUdp;
  const bool settled = drive(
      a, b,
      [&] { return b.memory[kForbidden] == std::byte{0x66} || b.hca->counters().wire.forged_drops > 0; },
      20'000);
  EXPECT_EQ(settled, GetParam() != wire::Carrier::kSharedMemory) << "which reads no UDP";
  EXPECT_EQ(b.memory[kForbidden] == std::byte{0x66}, udp);
}

INSTANTIATE_TEST_SUITE_P(Carriers, AllKnowing,
                         testing::Values(wire::Carrier::kUdp, wire::Carrier::kAuto,
                                         wire::Carrier::kSharedMemory),
                         [](const auto& test) {
                           switch (test.param) {
                             case wire::Carrier::kUdp: return "udp";
                             case wire::Carrier::kAuto: return "auto";
                             case wire::Carrier::kSharedMemory: break;
                           }
                           return "shm";
                         });

// A peer that is let in and then guesses keys: the first wrong one ends the connection, whatever it was for.
struct Guess {
  const char* name;
  Opcode opcode;
};
void PrintTo(const Guess& guess, std::ostream* out) { *out << guess.name; }

class KeyGuess : public testing::TestWithParam<Guess> {};

TEST_P(KeyGuess, by_the_peer_itself_kills_the_queue_and_further_ones_draw_nothing) {
  Node a;
  Node b;
  a.connect(b);
  b.connect(a);
  introduce(a, b);
  Attacker spoofer(a.hca->address());
  for (std::uint32_t guess = 1; guess <= 50; ++guess) {
    roce::Headers headers = forge(GetParam().opcode, b.qpn, kFirstPsn);
    headers.reth = {b.remote(0).address, b.mkey + guess, 8};
    headers.atomic = {b.remote(0).address, b.mkey + guess, 1, 0};
    const std::array<std::byte, 8> payload{};
    const bool carries = GetParam().opcode == Opcode::kRcWriteOnly;
    spoofer.send(b.hca->address(), headers, carries ? std::span(payload) : std::span<const std::byte>{});
    for (int i = 0; i < 20; ++i) b.hca->progress();
  }
  EXPECT_EQ(b.hca->query_qp(b.qpn)->state, QpState::kError);
  EXPECT_EQ(b.events, std::vector<int>{3}) << "IB_EVENT_QP_ACCESS_ERR, once";
  const HcaCounters seen = b.hca->counters();
  EXPECT_EQ(seen.transport.key_faults, 1u);
  EXPECT_EQ(seen.transport.naks_sent, 1u);
  EXPECT_EQ(seen.wire.packets_sent, 1u);
  EXPECT_TRUE(std::all_of(b.memory.begin(), b.memory.begin() + 64,
                          [](std::byte byte) { return byte == std::byte{0}; }));
}

INSTANTIATE_TEST_SUITE_P(Operations, KeyGuess,
                         testing::Values(Guess{"write", Opcode::kRcWriteOnly},
                                         Guess{"read", Opcode::kRcReadRequest},
                                         Guess{"compare_swap", Opcode::kRcCompareSwap},
                                         Guess{"fetch_add", Opcode::kRcFetchAdd},
                                         Guess{"masked_compare_swap", Opcode::kMaskedCompareSwap},
                                         Guess{"masked_fetch_add", Opcode::kMaskedFetchAdd}),
                         [](const auto& test) { return test.param.name; });

}  // namespace attacker_test
}  // namespace gdx::softhca::test
