// SENDs to a receiver that posts its receives late, few at a time.
#include <gtest/gtest.h>

#include <optional>

#include "tests/unit/engine/virtual_pair.h"

namespace gdx::softhca::test {
namespace receive_credits_test {

constexpr std::uint32_t kMessages = 40;
constexpr std::uint64_t kReceiverTakesNs = 50'000;  // from a message to the next receive
constexpr std::uint64_t kSecondNs = 1'000'000'000;

class ReceiveCredits : public testing::Test {
 protected:
  static HcaConfig config(bool credits) {
    HcaConfig config;
    config.receive_credits = credits;
    return config;
  }
  void open(bool of_sender, bool of_receiver) { pair.emplace(config(of_sender), config(of_receiver)); }

  // All messages, with two receives to begin with and then one for each that was taken, later.
  [[nodiscard]] bool deliver() {
    Node& sender = pair->a;
    Node& receiver = pair->b;
    receiver.post_receive(receiver.local(0, 64));
    receiver.post_receive(receiver.local(0, 64));
    for (std::uint32_t i = 0; i < kMessages; ++i) sender.post_send_inline("late", i);
    sender.ring();
    std::uint32_t received = 0;
    std::uint32_t sent = 0;
    std::uint64_t post_at_ns = transport::kNever;
    return pair->run(
        [&] {
          while (const auto completion = sender.poll_send()) {
            EXPECT_EQ(completion->syndrome, mlx5::Syndrome::kNone);
            ++sent;
          }
          while (const auto completion = receiver.poll_receive()) {
            EXPECT_EQ(completion->immediate, received);
            ++received;
            ++owed;
            if (post_at_ns == transport::kNever) post_at_ns = pair->now_ns + kReceiverTakesNs;
          }
          if (pair->now_ns >= post_at_ns) {
            for (; owed > 0; --owed) receiver.post_receive(receiver.local(0, 64));
            post_at_ns = transport::kNever;
          }
          return received == kMessages && sent == kMessages;
        },
        kSecondNs);
  }
  [[nodiscard]] transport::TransportCounters sender() { return pair->a.hca->counters().transport; }
  [[nodiscard]] transport::TransportCounters receiver() { return pair->b.hca->counters().transport; }

  std::optional<VirtualPair> pair;
  std::uint32_t owed = 0;
};

TEST_F(ReceiveCredits, sends_to_a_slow_receiver_wait_and_are_never_refused) {
  open(true, true);
  ASSERT_TRUE(deliver());
  EXPECT_EQ(sender().rnr_naks_received, 0u);
  EXPECT_EQ(sender().retransmitted_packets, 0u);
  EXPECT_GT(sender().credit_waits, 0u);
  EXPECT_GT(receiver().credit_updates, 0u);
  EXPECT_EQ(sender().credit_probes, 0u);
}

// Runs without credits, to show the refusals that they avoid.
TEST_F(ReceiveCredits, receiver_that_advertises_nothing_refuses_as_ever) {
  open(true, false);
  ASSERT_TRUE(deliver());
  EXPECT_GT(sender().rnr_naks_received, 0u);
  EXPECT_EQ(sender().credit_waits, 1u);  // behind the first message, until its ACK told what the peer is
  EXPECT_EQ(receiver().credit_updates, 0u);
}

TEST_F(ReceiveCredits, what_the_sender_advertises_changes_nothing) {
  open(false, true);
  ASSERT_TRUE(deliver());
  EXPECT_EQ(sender().rnr_naks_received, 0u);
}

// ACKs of WRITEs have said that there is none, and nobody watches a queue from which nothing was ever taken.
TEST_F(ReceiveCredits, receive_posted_before_a_first_send_is_found_although_it_was_never_told) {
  open(true, true);
  Node& a = pair->a;
  Node& b = pair->b;
  a.post_write(a.local(0, 64), b.remote(0));
  a.ring();
  ASSERT_TRUE(pair->run([&] { return a.poll_send().has_value(); }, kSecondNs));
  b.post_receive(b.local(0, 64));
  a.post_send_inline("first", 7);
  a.ring();
  const std::uint64_t start_ns = pair->now_ns;
  ASSERT_TRUE(pair->run([&] { return b.poll_receive().has_value(); }, kSecondNs));
  EXPECT_LT(pair->now_ns - start_ns, 100'000u);
  EXPECT_EQ(sender().rnr_naks_received, 0u);
}

// Without a receive no credits come; the message leaves once a receive is posted, long before any probe.
TEST_F(ReceiveCredits, send_before_the_first_receive_is_refused_once_and_then_told) {
  open(true, true);
  Node& a = pair->a;
  Node& b = pair->b;
  a.post_send_inline("early", 7);
  a.ring();
  EXPECT_FALSE(pair->run([&] { return b.poll_receive().has_value(); }, 20'000'000));
  EXPECT_EQ(sender().rnr_naks_received, 1u);
  b.post_receive(b.local(0, 64));
  const std::uint64_t start_ns = pair->now_ns;
  ASSERT_TRUE(pair->run([&] { return b.poll_receive().has_value(); }, kSecondNs));
  EXPECT_LT(pair->now_ns - start_ns, 1'000'000u);
  EXPECT_EQ(sender().rnr_naks_received, 1u);
  EXPECT_EQ(sender().credit_probes, 0u);
}

}  // namespace receive_credits_test
}  // namespace gdx::softhca::test
