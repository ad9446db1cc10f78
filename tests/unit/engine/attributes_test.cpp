// Attributes of connected queue pairs, each changed alone in RTS: it reads back, no other one changes, and
// what is sent from then on goes by it. In virtual time.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <tuple>

#include "tests/unit/engine/virtual_pair.h"

namespace gdx::softhca::test {
namespace attributes_test {

using mlx5::Syndrome;

constexpr std::uint8_t kTimeout = 12;    // 16.8 ms
constexpr std::uint8_t kRetryCount = 7;  // as Node::connect() sets it
constexpr std::uint64_t kLimitNs = 900'000'000;

auto fields(const QpAttributes& of) {
  return std::tuple(of.state, of.access, of.port, of.qkey, of.remote.gid, of.mtu_bytes, of.max_message_bytes,
                    of.timeout, of.retry_count, of.rnr_retry, of.min_rnr_timer, of.max_rd_atomic,
                    of.max_dest_rd_atomic, of.receive_psn, of.send_psn, of.remote_qpn, of.counter_set);
}

class AttributesInRts : public testing::Test {
 protected:
  static HcaConfig without_credits() {
    HcaConfig config;
    config.receive_credits = false;
    return config;
  }

  // Changes what `mask` says by `set`, with other values than the current ones in all that it does not say.
  static void change_alone(Node& node, std::uint32_t mask, const std::function<void(QpAttributes&)>& set) {
    QpAttributes expected = *node.hca->query_qp(node.qpn);
    QpAttributes asked;
    asked.state = QpState::kError;
    asked.port = 3;
    asked.qkey = 0x77;
    asked.mtu_bytes = 512;
    asked.max_message_bytes = 4096;
    asked.timeout = 3;
    asked.retry_count = 2;
    asked.rnr_retry = 2;
    asked.min_rnr_timer = 9;
    asked.receive_psn = asked.send_psn = 0x123;
    asked.remote_qpn = 0x77;
    asked.counter_set = 9;
    set(asked);
    set(expected);
    ASSERT_EQ(node.hca->modify_qp(node.qpn, mask, asked), 0);
    EXPECT_EQ(fields(*node.hca->query_qp(node.qpn)), fields(expected));
  }

  // The end of a's next WQE and its time; `each_step` runs before every poll. A deadlock gives kNone and 0.
  struct End {
    Syndrome syndrome = Syndrome::kNone;
    std::uint64_t after_ns = 0;
  };
  End end_of_next(const std::function<void()>& each_step = [] {}) {
    std::optional<Polled> polled;
    const std::uint64_t began_ns = pair_.now_ns;
    const bool ended = pair_.run(
        [&] {
          each_step();
          return (polled = pair_.a.poll_send()).has_value();
        },
        kLimitNs);
    EXPECT_TRUE(ended) << "no completion";
    return ended ? End{polled->syndrome, pair_.now_ns - began_ns} : End{};
  }

  // To a peer that nothing reaches.
  End write_in_vain() {
    pair_.a.post_write(pair_.a.local(0, 8), pair_.b.remote(0));
    pair_.a.ring();
    const std::uint64_t began_ns = pair_.now_ns;
    for (; pair_.now_ns < began_ns + kLimitNs; pair_.now_ns += 1'000) {
      pair_.a.hca->progress();
      pair_.to_b.clear();
      if (const auto polled = pair_.a.poll_send()) return {polled->syndrome, pair_.now_ns - began_ns};
    }
    ADD_FAILURE() << "no completion";
    return {};
  }
  static std::uint64_t retries_ns(std::uint8_t timeout, std::uint32_t retry_count) {
    std::uint64_t all_ns = 0;
    for (std::uint32_t i = 0; i <= retry_count; ++i) all_ns += 4096ull << timeout << std::min(2u, i);
    return all_ns;
  }
  static void expect_after(const End& end, Syndrome syndrome, std::uint64_t expected_ns) {
    EXPECT_EQ(end.syndrome, syndrome) << mlx5::syndrome_name(end.syndrome);
    EXPECT_GE(end.after_ns, expected_ns);
    EXPECT_LT(end.after_ns, expected_ns + expected_ns / 20 + 100'000);
  }

  VirtualPair pair_{without_credits(), without_credits(), kTimeout};
};

TEST_F(AttributesInRts, timeout_alone_is_the_time_of_each_try) {
  change_alone(pair_.a, kQpTimeout, [](QpAttributes& a) { a.timeout = 8; });
  expect_after(write_in_vain(), Syndrome::kRetryExceeded, retries_ns(8, kRetryCount));
}

TEST_F(AttributesInRts, retry_count_alone_is_the_number_of_tries) {
  change_alone(pair_.a, kQpRetryCount, [](QpAttributes& a) { a.retry_count = 1; });
  expect_after(write_in_vain(), Syndrome::kRetryExceeded, retries_ns(kTimeout, 1));
}

TEST_F(AttributesInRts, rnr_retry_alone_ends_the_sends_that_nobody_receives) {
  change_alone(pair_.a, kQpRnrRetry, [](QpAttributes& a) { a.rnr_retry = 3; });
  pair_.a.post_send_inline("text", 0);
  pair_.a.ring();
  EXPECT_EQ(end_of_next().syndrome, Syndrome::kRnrRetryExceeded);
  EXPECT_EQ(pair_.a.hca->counters().transport.rnr_naks_received, 4u);
}

TEST_F(AttributesInRts, min_rnr_timer_alone_is_how_long_the_sender_waits) {
  constexpr std::uint64_t kCode20Ns = 10'240'000;
  change_alone(pair_.b, kQpMinRnrTimer, [](QpAttributes& a) { a.min_rnr_timer = 20; });
  pair_.a.post_send_inline("text", 0);
  pair_.a.ring();
  bool posted = false;
  const End end = end_of_next([&] {
    if (posted || pair_.a.hca->counters().transport.rnr_naks_received == 0) return;
    posted = true;
    pair_.b.post_receive(pair_.b.local(0, 64));
  });
  expect_after(end, Syndrome::kNone, kCode20Ns);
}

TEST_F(AttributesInRts, each_right_alone_is_taken_away_from_its_operations_only) {
  const std::function<void(Node&, Node&)> operations[] = {
      [](Node& a, Node& b) { a.post_write(a.local(0, 8), b.remote(0)); },
      [](Node& a, Node& b) { a.post_read(a.local(0, 8), b.remote(0)); },
      [](Node& a, Node& b) { a.post_fetch_add(a.local(0, 8), b.remote(0), 1); },
  };
  constexpr std::uint32_t kRights[] = {kRemoteWrite, kRemoteRead, kRemoteAtomic};
  for (std::size_t taken = 0; taken < std::size(kRights); ++taken) {
    VirtualPair pair;
    const std::uint32_t left = Node::kAllAccess & ~kRights[taken];
    change_alone(pair.b, kQpAccessFlags, [left](QpAttributes& b) { b.access = left; });
    for (const bool forbidden : {false, true}) {
      for (std::size_t i = 0; i < std::size(operations); ++i) {
        if ((i == taken) != forbidden) continue;
        operations[i](pair.a, pair.b);
        pair.a.ring();
        std::optional<Polled> polled;
        ASSERT_TRUE(pair.run([&] { return (polled = pair.a.poll_send()).has_value(); }, kLimitNs));
        EXPECT_EQ(polled->syndrome, forbidden ? Syndrome::kRemoteInvalidRequest : Syndrome::kNone) << i;
      }
    }
  }
}

}  // namespace attributes_test
}  // namespace gdx::softhca::test
