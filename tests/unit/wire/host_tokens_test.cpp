// Tokens of one host: who gets one, what a packet with it looks like, and what changes it.
#include "driver-shim/softhca/wire/host_tokens.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>

namespace gdx::softhca::wire {
namespace host_tokens_test {

using Standing = HostTokens::Standing;
using roce::Opcode;

constexpr std::uint64_t kStartNs = 5'000'000'000;
const Address at_a = Address::ipv4(0x7f000001);
const Address at_b = Address::ipv4(0x7f000002);
const Address at_near = Address::ipv4(0x0a000001);  // of this host
const Address at_far = Address::ipv4(0x0a000002);

HostTokens make(const Address& local, std::uint64_t secret, const std::vector<Address>& addresses = {},
                bool foreign = false) {
  return {{secret, ~secret}, local, [addresses] { return addresses; }, foreign};
}

class Tokens : public testing::Test {
 protected:
  // Delivers what both have to say, until nothing is left.
  void exchange(HostTokens& one, const Address& one_at, HostTokens& other, const Address& other_at) {
    for (bool said = true; said;) {
      said = false;
      for (const HostTokens::Message& message : one.take_due()) {
        said = true;
        if (message.peer == other_at) other.on_message(one_at, message.opcode, message.body, now_ns);
      }
      for (const HostTokens::Message& message : other.take_due()) {
        said = true;
        if (message.peer == one_at) one.on_message(other_at, message.opcode, message.body, now_ns);
      }
    }
  }
  void exchange() { exchange(a, at_a, b, at_b); }
  // Returns whether packets from `sender` pass at `receiver`.
  static bool passes(HostTokens& sender, const Address& at, HostTokens& receiver, const Address& from) {
    const HostTokens::Peer* const to = sender.find(at);
    const HostTokens::Peer* const seen = receiver.find(from);
    return to != nullptr && seen != nullptr && to->standing == Standing::kKnown &&
           seen->standing == Standing::kKnown && to->to == seen->from;
  }
  Standing standing(HostTokens& of, const Address& peer) { return of.meet(peer, now_ns).standing; }

  std::uint64_t now_ns = kStartNs;
  HostTokens a = make(at_a, 1);
  HostTokens b = make(at_b, 2);
};

TEST(Seal, changes_the_reserved_bits_and_the_icrc_alone_and_takes_itself_off) {
  std::array<std::byte, 24> datagram{};
  const Seal seal(0xffff'ffff'ffff'ffff);
  seal.apply(datagram);
  std::array<std::byte, 24> expected{};
  expected[4] = std::byte{0x3e};
  expected[8] = std::byte{0x7f};
  for (std::size_t i = 20; i < 24; ++i) expected[i] = std::byte{0xff};
  EXPECT_EQ(datagram, expected);
  EXPECT_FALSE(Seal::is_off(datagram));
  seal.apply(datagram);
  EXPECT_EQ(datagram, (std::array<std::byte, 24>{}));
  EXPECT_TRUE(Seal::is_off(datagram));
  EXPECT_NE(Seal(1), Seal(2));
  EXPECT_NE(Seal(std::uint64_t{2} << 32), Seal(std::uint64_t{4} << 32));
}

TEST_F(Tokens, both_ways_are_open_after_one_asked) {
  EXPECT_EQ(standing(b, at_a), Standing::kAwaited);
  EXPECT_EQ(b.next_deadline_ns(), now_ns + 10'000'000);
  // Asked before it is told: so the answer leaves before packets that need one.
  std::vector<HostTokens::Message> asked = b.take_due();
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_FALSE(a.on_message(at_b, asked[0].opcode, asked[0].body, now_ns));
  const std::vector<HostTokens::Message> told = a.take_due();
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[0].opcode, Opcode::kTokenRequest);
  EXPECT_EQ(told[1].opcode, Opcode::kTokenAnswer);
  EXPECT_FALSE(b.on_message(at_a, told[0].opcode, told[0].body, now_ns));
  EXPECT_TRUE(b.on_message(at_a, told[1].opcode, told[1].body, now_ns));
  exchange();
  EXPECT_TRUE(passes(a, at_b, b, at_a));
  EXPECT_TRUE(passes(b, at_a, a, at_b));
  EXPECT_FALSE(a.find(at_b)->to == a.find(at_b)->from);
  EXPECT_EQ(b.next_deadline_ns(), HostTokens::kNever);
}

TEST_F(Tokens, messages_under_a_foreign_address_change_nothing) {
  standing(b, at_a);
  exchange();
  const Seal before = a.find(at_b)->from;
  for (std::uint64_t guess = 0; guess < 1000; ++guess) {
    EXPECT_FALSE(a.on_message(at_b, Opcode::kTokenAnswer, {guess, guess, guess}, now_ns));
    EXPECT_FALSE(a.on_message(at_b, Opcode::kTokenRequest, {guess, guess, 0}, now_ns));
  }
  EXPECT_EQ(a.find(at_b)->from, before);
  exchange();
  EXPECT_TRUE(passes(a, at_b, b, at_a)) << "b has proved once more who it is";
  EXPECT_TRUE(passes(b, at_a, a, at_b));
}

TEST_F(Tokens, answer_proves_one_request_for_seconds) {
  const auto request = [&] {
    b.meet(at_a, now_ns);
    b.renew(at_a, *b.find(at_a), now_ns);
    return b.take_due().at(0).body;
  };
  const roce::HostToken first = request();
  now_ns += 2'200'000'000;
  EXPECT_FALSE(b.on_message(at_a, Opcode::kTokenAnswer, {7, first.challenge, 9}, now_ns)) << "too old";
  const roce::HostToken second = request();
  EXPECT_TRUE(b.on_message(at_a, Opcode::kTokenAnswer, {7, second.challenge, 9}, now_ns));
  EXPECT_FALSE(b.on_message(at_a, Opcode::kTokenAnswer, {8, second.challenge, 10}, now_ns)) << "used";
  EXPECT_EQ(b.find(at_a)->to, Seal(9));
  EXPECT_EQ(b.find(at_a)->from, Seal(b.token_for(at_a, 7)));
}

// Knowledge of a former holder of the address: the token that it had then.
TEST_F(Tokens, next_holder_of_an_address_ends_the_token_of_the_former) {
  standing(b, at_a);
  exchange();
  const Seal former = a.find(at_b)->from;
  HostTokens next = make(at_b, 3);
  standing(next, at_a);
  exchange(a, at_a, next, at_b);
  EXPECT_TRUE(passes(next, at_a, a, at_b));
  EXPECT_FALSE(a.find(at_b)->from == former);
}

// Its peers have the old token, and learn the new one from its request or by their next renewal.
TEST_F(Tokens, restarted_hca_is_met_again) {
  standing(b, at_a);
  exchange();
  HostTokens again = make(at_a, 4);
  now_ns += HostTokens::kRenewNs;
  b.renew(at_a, *b.find(at_a), now_ns);
  exchange(again, at_a, b, at_b);
  EXPECT_TRUE(passes(again, at_b, b, at_a));
  EXPECT_TRUE(passes(b, at_a, again, at_b));
  b.renew(at_a, *b.find(at_a), now_ns);
  EXPECT_TRUE(b.take_due().empty()) << "not yet due";
}

TEST_F(Tokens, silence_ends_the_wait_and_a_late_answer_is_heard) {
  standing(b, at_a);
  std::size_t requests = b.take_due().size();
  for (; standing(b, at_a) == Standing::kAwaited; now_ns += 1'000'000) {
    ASSERT_LE(now_ns, kStartNs + HostTokens::kSilentNs + 200'000'000);
    const bool ended = b.advance(now_ns);
    EXPECT_EQ(ended, standing(b, at_a) == Standing::kSilent);
    requests += b.take_due().size();
  }
  EXPECT_EQ(standing(b, at_a), Standing::kSilent);
  EXPECT_GE(now_ns, kStartNs + HostTokens::kSilentNs);
  EXPECT_EQ(requests, 9u) << "after 10, 20, 40, ... ms";
  EXPECT_EQ(b.next_deadline_ns(), HostTokens::kNever);
  now_ns += 200'000'000;
  b.renew(at_a, *b.find(at_a), now_ns);
  exchange();
  EXPECT_TRUE(passes(b, at_a, a, at_b));
}

TEST_F(Tokens, other_hosts_have_none) {
  HostTokens near = make(at_near, 3, {at_near, at_far});
  HostTokens far = make(at_far, 3);
  EXPECT_EQ(standing(far, at_near), Standing::kOther);
  EXPECT_EQ(standing(far, at_far), Standing::kOther) << "itself";
  EXPECT_FALSE(far.guards(at_near));
  EXPECT_TRUE(far.guards(at_a));
  EXPECT_FALSE(a.guards(at_a));
  EXPECT_TRUE(far.take_due().empty());
  EXPECT_FALSE(far.on_message(at_near, Opcode::kTokenRequest, {1, 2, 0}, now_ns));
  EXPECT_FALSE(far.on_message(at_near, Opcode::kTokenAnswer, {1, 2, 3}, now_ns));
  EXPECT_TRUE(far.take_due().empty());
}

TEST_F(Tokens, address_that_the_host_got_later_is_found_by_its_request) {
  std::vector<Address> addresses;
  HostTokens near({1, 1}, at_near, [&] { return addresses; });
  EXPECT_EQ(standing(near, at_far), Standing::kOther);
  addresses = {at_near, at_far};
  now_ns += 100'000'000;
  HostTokens far = make(at_far, 3, addresses);
  EXPECT_EQ(standing(far, at_near), Standing::kAwaited);
  exchange(near, at_near, far, at_far);
  EXPECT_TRUE(near.guards(at_far));
  EXPECT_TRUE(passes(near, at_far, far, at_near));
  EXPECT_TRUE(passes(far, at_near, near, at_far));
}

TEST_F(Tokens, addresses_of_the_host_are_read_at_intervals_and_stay_where_that_fails) {
  std::optional<std::vector<Address>> addresses = std::vector{at_near, at_far};
  int reads = 0;
  HostTokens near({1, 1}, at_near, [&] { return ++reads, addresses; });
  EXPECT_TRUE(near.guards(at_far)) << "before it meets any";
  addresses.reset();
  for (std::uint32_t i = 0; i < 100; ++i) near.meet(Address::ipv4(0x0a100000 + i), now_ns);
  EXPECT_EQ(reads, 2) << "at the start, and for the first that is not of this host";
  EXPECT_TRUE(near.guards(at_far));
  near.meet(Address::ipv4(0x0a200000), now_ns + 100'000'000);
  EXPECT_EQ(reads, 3);
}

TEST_F(Tokens, beside_foreign_peers_on_loopback_those_have_one_that_asked) {
  HostTokens open = make(at_a, 3, {}, true);
  EXPECT_EQ(standing(open, at_b), Standing::kOther);
  EXPECT_FALSE(open.guards(at_b));
  standing(b, at_a);
  exchange(open, at_a, b, at_b);
  EXPECT_TRUE(passes(open, at_b, b, at_a));
  EXPECT_TRUE(passes(b, at_a, open, at_b));
}

TEST_F(Tokens, requests_beyond_a_rate_are_not_answered_and_leave_nothing) {
  std::size_t told = 0;
  for (std::uint32_t i = 0; i < 5000; ++i) {
    const Address invented = Address::ipv4(0x7f100000 + i);
    a.on_message(invented, Opcode::kTokenRequest, {i, i, 0}, now_ns);
    EXPECT_EQ(a.find(invented), nullptr);
  }
  for (const HostTokens::Message& message : a.take_due()) told += message.opcode == Opcode::kTokenAnswer;
  EXPECT_EQ(told, 1000u);
  now_ns += 10'000'000;
  standing(b, at_a);
  exchange();
  EXPECT_TRUE(passes(b, at_a, a, at_b));
  for (std::uint32_t i = 0; i < 5000; ++i)
    a.on_message(Address::ipv4(0x7f100000 + i), Opcode::kTokenRequest, {i, i, 0}, now_ns);
  static_cast<void>(a.take_due());
  a.on_message(at_b, Opcode::kTokenRequest, {1, 2, 0}, now_ns);
  EXPECT_EQ(a.take_due().size(), 2u) << "a peer that it knows is answered meanwhile";
}

TEST_F(Tokens, peer_that_was_used_lately_stays_among_too_many) {
  standing(b, at_a);
  exchange();
  for (std::uint32_t i = 0; i < 2 * HostTokens::kMaxPeers; ++i) {
    now_ns += 1'000'000;
    b.renew(at_a, *b.find(at_a), now_ns);
    b.meet(Address::ipv4(0x7f100000 + i), now_ns);
    static_cast<void>(b.take_due());
    ASSERT_NE(b.find(at_a), nullptr);
  }
  EXPECT_EQ(b.find(Address::ipv4(0x7f100000)), nullptr);
  EXPECT_EQ(standing(b, at_a), Standing::kKnown);
}

TEST_F(Tokens, peers_of_other_hosts_give_way_first_and_an_answer_is_a_use) {
  const Address first = Address::ipv4(0x7f100000);
  a.meet(first, now_ns);
  now_ns += 1'000'000;
  standing(b, at_a);
  exchange();
  for (std::uint32_t i = 0; i < 2 * HostTokens::kMaxPeers; ++i)
    a.meet(Address::ipv4(0x0a100000 + i), ++now_ns);
  EXPECT_NE(a.find(first), nullptr);
  for (std::uint32_t i = 1; i < HostTokens::kMaxPeers; ++i) a.meet(Address::ipv4(0x7f100000 + i), ++now_ns);
  EXPECT_EQ(a.find(first), nullptr) << "unused for the longest time";
  EXPECT_TRUE(passes(a, at_b, b, at_a));
}

}  // namespace host_tokens_test
}  // namespace gdx::softhca::wire
