// Every call that a connector makes of its surroundings, in order, and every time that it waits for.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "host/team/connector.h"

namespace gdx {
namespace connector_rules_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::uint64_t kMs = 1'000'000;
constexpr std::uint64_t kDeadlineNs = 4000 * kMs;
constexpr std::uint64_t kNever = ~std::uint64_t{0};

// Surroundings that write down what is asked of them. An endpoint's QPN is 100 * rank + lane, a peer's
// 1000 more.
class Script final : public ConnectorPort {
 public:
  Result<EndpointAddress> create(std::uint32_t rank, std::uint32_t lane) override {
    add(fmt::format("create {}.{}", rank, lane));
    if (const auto found = refused.find(rank); found != refused.end()) return tl::unexpected(found->second);
    EndpointAddress address{};
    address.qpn = 100 * rank + lane;
    return address;
  }
  Result<void> connect(std::uint32_t rank, std::uint32_t lane, const EndpointAddress& peer) override {
    add(fmt::format("connect {}.{} to QP {}", rank, lane, peer.qpn));
    if (connects) return {};
    return fail(Status::kQueueError, "no path");
  }
  void ready(std::uint32_t rank, std::uint32_t lane) override { add(fmt::format("ready {}.{}", rank, lane)); }
  void gone(std::uint32_t rank, std::uint32_t lane, const Error& why) override {
    add(fmt::format("gone {}.{}, {}: {}", rank, lane, status_name(why.status), why.message));
  }
  ChannelId dial(std::uint32_t rank) override {
    add(fmt::format("dial {} by {}", rank, ++last));
    return last;
  }
  void send(ChannelId channel, std::uint32_t rank, const ConnectorLetter& letter) override {
    const char* const kinds[] = {"", "ask", "answer", "done", "not now", "refusal"};
    const bool reason = letter.kind == ConnectorKind::kNotNow || letter.kind == ConnectorKind::kRefusal;
    add(fmt::format("{} by {} to {} of {}, lane {}: {}", kinds[static_cast<std::size_t>(letter.kind)],
                    channel, rank, letter.from, letter.lane,
                    reason ? fmt::format("{}: {}", status_name(letter.why.status), letter.why.message)
                           : fmt::format("QP {} to {}", letter.address.qpn, letter.connected_qpn)));
  }
  void close(ChannelId channel) override { add(fmt::format("close {}", channel)); }

  std::vector<std::string> take() { return std::exchange(calls_, {}); }

  std::map<std::uint32_t, Error> refused;  // by rank
  bool connects = true;
  ChannelId last = 0;

 private:
  void add(std::string call) { calls_.push_back(std::move(call)); }
  std::vector<std::string> calls_;
};

ConnectorLetter letter_of(ConnectorKind kind, std::uint32_t from, std::uint32_t lane,
                          std::uint32_t connected_qpn = 0) {
  ConnectorLetter letter;
  letter.kind = kind;
  letter.from = from;
  letter.lane = lane;
  letter.address.qpn = 1000 + 100 * from + lane;
  letter.connected_qpn = connected_qpn;
  letter.why = {Status::kNoMemory, "no slots"};
  return letter;
}

class ConnectorCalls : public ::testing::Test {
 protected:
  static constexpr ConnectorKind kAsk = ConnectorKind::kAsk;
  static constexpr ConnectorKind kAnswer = ConnectorKind::kAnswer;
  static constexpr ConnectorKind kDone = ConnectorKind::kDone;
  static constexpr ConnectorKind kNotNow = ConnectorKind::kNotNow;
  static constexpr ConnectorKind kRefusal = ConnectorKind::kRefusal;

  // Asks for a pair, dials, and opens the channel.
  ChannelId open(std::uint64_t now_ns, std::uint32_t rank, std::uint32_t lane) {
    connector.ask(now_ns, rank, lane);
    connector.tick(now_ns);
    connector.opened(port.last);
    port.take();
    return port.last;
  }

  Script port;
  Connector connector{{7, 0, 5, 2}, {kDeadlineNs, 2}, port};
};

TEST_F(ConnectorCalls, rank_that_is_asked) {
  connector.received(5, 40, letter_of(kAsk, 2, 1));
  EXPECT_THAT(port.take(), ElementsAre("create 2.1", "connect 2.1 to QP 1201",
                                       "answer by 40 to 2 of 0, lane 1: QP 201 to 1201"));
  EXPECT_EQ(connector.state(2, 1), PairState::kConnected);
  EXPECT_EQ(connector.next_ns(), 5 + kDeadlineNs) << "no dialling: there is a channel";
  connector.received(6, 40, letter_of(kAsk, 2, 1));
  EXPECT_THAT(port.take(), ElementsAre("answer by 40 to 2 of 0, lane 1: QP 201 to 1201")) << "again";
  connector.received(7, 40, letter_of(kDone, 2, 1, 201));
  EXPECT_THAT(port.take(), ElementsAre("ready 2.1")) << "who has dialled closes";
  connector.received(8, 40, letter_of(kAnswer, 2, 1, 201));
  EXPECT_THAT(port.take(), ElementsAre("done by 40 to 2 of 0, lane 1: QP 201 to 1201"));
  // A further channel of that rank takes the place of the first.
  connector.received(9, 41, letter_of(kAsk, 2, 0));
  EXPECT_THAT(port.take(), ElementsAre("close 40", "create 2.0", "connect 2.0 to QP 1200",
                                       "answer by 41 to 2 of 0, lane 0: QP 200 to 1200"));
  connector.received(10, 42, letter_of(kNotNow, 2, 1));
  EXPECT_THAT(port.take(), ElementsAre("close 41", "answer by 42 to 2 of 0, lane 0: QP 200 to 1200"))
      << "told again by the new one";
  connector.lost(42, {Status::kPeerGone, "it was reset"});
  EXPECT_EQ(connector.next_ns(), 0u) << "it is to dial";
  connector.tick(11);
  connector.opened(1);
  EXPECT_THAT(port.take(), ElementsAre("dial 2 by 1", "answer by 1 to 2 of 0, lane 0: QP 200 to 1200"));
}

// Pauses double up to 320 ms.
TEST_F(ConnectorCalls, pauses_between_creations_and_between_dials) {
  port.refused[1] = {Status::kBusy, "all slots are held"};
  std::uint64_t now_ns = 1000 * kMs;
  connector.ask(now_ns, 1, 0);
  for (const std::uint64_t pause_ms : {10, 20, 40, 80, 160, 320, 320}) {
    EXPECT_THAT(port.take(), ElementsAre("create 1.0"));
    EXPECT_EQ(connector.next_ns(), now_ns + pause_ms * kMs);
    now_ns += pause_ms * kMs;
    connector.tick(now_ns - 1);
    EXPECT_THAT(port.take(), IsEmpty());
    connector.tick(now_ns);
  }
  port.refused.clear();
  port.take();
  now_ns = connector.next_ns();
  connector.tick(now_ns);
  EXPECT_THAT(port.take(), ElementsAre("create 1.0", "dial 1 by 1"));
  for (const std::uint64_t pause_ms : {10, 20, 40, 80, 160, 320, 320}) {
    connector.lost(port.last, {Status::kPeerGone, "no answer"});
    EXPECT_EQ(connector.next_ns(), now_ns + pause_ms * kMs);
    now_ns += pause_ms * kMs;
    connector.tick(now_ns - 1);
    EXPECT_THAT(port.take(), IsEmpty());
    connector.tick(now_ns);
    EXPECT_THAT(port.take(), ElementsAre(fmt::format("dial 1 by {}", port.last)));
  }
  connector.tick(1000 * kMs + kDeadlineNs - 1);
  EXPECT_THAT(port.take(), IsEmpty());
  connector.tick(1000 * kMs + kDeadlineNs);
  EXPECT_THAT(port.take(),
              ElementsAre("gone 1.0, peer unreachable (transport retries exceeded): rank 1 was not "
                          "connected on lane 0 within 4.000 s (no answer): see whether it still runs",
                          "close 8"));
  // The next attempt begins anew, and knows nothing of the last one's problem.
  connector.ask(now_ns, 1, 1);
  now_ns = connector.next_ns();
  connector.tick(now_ns);
  connector.lost(port.last, {Status::kPeerGone, "no answer"});
  EXPECT_EQ(connector.next_ns(), now_ns + kFirstRetryPauseNs);
}

// A rank listens before it tells its address, so nobody listens only once it has ended.
TEST_F(ConnectorCalls, rank_where_nobody_listens_is_given_up_before_the_deadline) {
  const Error nobody{Status::kNotFound, "refused"};
  connector.ask(0, 1, 0);
  for (std::uint32_t refusals = 1; refusals <= 2 * kMostRefusals; ++refusals) {
    connector.tick(connector.next_ns());
    port.take();
    ASSERT_EQ(connector.state(1, 0), PairState::kOffering);
    // Another failure between them shows that the address lives.
    connector.lost(port.last, refusals == kMostRefusals ? Error{Status::kPeerGone, "it was reset"} : nobody);
  }
  EXPECT_THAT(port.take(), ElementsAre(fmt::format(
                               "gone 1.0, peer unreachable (transport retries exceeded): rank 1 was not "
                               "connected on lane 0 (refused, {} times): it has ended, see why",
                               kMostRefusals)));
  // As soon for what is asked for later.
  connector.ask(connector.next_ns(), 1, 1);
  for (std::uint32_t refusals = 1; refusals <= kMostRefusals; ++refusals) {
    ASSERT_EQ(connector.state(1, 1), PairState::kOffering);
    connector.tick(connector.next_ns());
    connector.lost(port.last, nobody);
  }
  EXPECT_EQ(connector.state(1, 1), PairState::kGone);
}

TEST_F(ConnectorCalls, channels_go_by_turns_where_more_ranks_wait) {
  for (const std::uint32_t rank : {3u, 1u, 2u, 4u}) connector.ask(0, rank, 0);
  port.take();
  connector.tick(100);
  EXPECT_THAT(port.take(), ElementsAre("dial 1 by 1", "dial 2 by 2"));
  EXPECT_EQ(connector.next_ns(), 100 + kDialTurnNs);
  connector.opened(2);
  connector.tick(100 + kDialTurnNs - 1);
  EXPECT_THAT(port.take(), ElementsAre("ask by 2 to 2 of 0, lane 0: QP 200 to 0"));
  connector.lost(1, {Status::kPeerGone, "no answer"});
  EXPECT_EQ(connector.next_ns(), 0u) << "a place is free";
  connector.tick(200);
  EXPECT_THAT(port.take(), ElementsAre("dial 3 by 3"));
  EXPECT_EQ(connector.next_ns(), 100 + kDialTurnNs) << "of the oldest";
  connector.tick(100 + kDialTurnNs);
  EXPECT_THAT(port.take(), ElementsAre("close 2", "dial 4 by 4"));
  connector.tick(200 + kDialTurnNs);
  EXPECT_THAT(port.take(), ElementsAre("close 3", "dial 1 by 5")) << "who has waited longest";
  connector.opened(2);
  EXPECT_THAT(port.take(), IsEmpty()) << "it was closed";
  connector.tick(100 + 2 * kDialTurnNs);
  EXPECT_THAT(port.take(), ElementsAre("close 4", "dial 2 by 6"));
  connector.received(300 + 2 * kDialTurnNs, 6, letter_of(kAnswer, 2, 0, 200));
  EXPECT_THAT(port.take(), ElementsAre("connect 2.0 to QP 1200", "ready 2.0",
                                       "done by 6 to 2 of 0, lane 0: QP 200 to 1200", "close 6"));
  connector.tick(300 + 2 * kDialTurnNs);
  EXPECT_THAT(port.take(), ElementsAre("dial 3 by 7"));
}

TEST_F(ConnectorCalls, shortage_of_either_side_is_told_at_the_deadline) {
  port.refused[1] = {Status::kBusy, "all slots are held"};
  connector.received(0, 40, letter_of(kAsk, 1, 0));
  EXPECT_THAT(port.take(),
              ElementsAre("create 1.0", "not now by 40 to 1 of 0, lane 0: busy: all slots are held"));
  port.refused.clear();
  connector.tick(kFirstRetryPauseNs);
  EXPECT_THAT(port.take(), ElementsAre("create 1.0", "ask by 40 to 1 of 0, lane 0: QP 100 to 0"));
  connector.received(kFirstRetryPauseNs, 40, letter_of(kNotNow, 1, 0));
  connector.received(kFirstRetryPauseNs, 40, letter_of(kNotNow, 1, 1));
  connector.tick(kDeadlineNs);
  const std::string why =
      "out of memory: rank 1 was not connected on lane 0 within 4.000 s (no slots): see whether "
      "it still runs";
  EXPECT_THAT(port.take(), ElementsAre("gone 1.0, " + why, "refusal by 40 to 1 of 0, lane 0: " + why));
  EXPECT_EQ(connector.state(1, 1), PairState::kIdle);
  connector.received(kDeadlineNs, 40, letter_of(kAsk, 1, 0));
  EXPECT_THAT(port.take(), ElementsAre("refusal by 40 to 1 of 0, lane 0: " + why)) << "to who asks again";
  connector.received(kDeadlineNs, 40, letter_of(kRefusal, 1, 0));
  connector.received(kDeadlineNs, 40, letter_of(kRefusal, 1, 1));
  EXPECT_THAT(port.take(), IsEmpty());
}

TEST_F(ConnectorCalls, refusals_of_either_host_are_final_and_named) {
  port.refused[1] = {Status::kNoMemory, "no endpoint"};
  connector.ask(0, 1, 0);
  EXPECT_THAT(port.take(), ElementsAre("create 1.0",
                                       "gone 1.0, out of memory: rank 1 cannot be connected on lane "
                                       "0: no endpoint"));
  port.refused.clear();
  open(0, 2, 1);
  port.connects = false;
  connector.received(0, port.last, letter_of(kAnswer, 2, 1, 201));
  EXPECT_THAT(
      port.take(),
      ElementsAre(
          "connect 2.1 to QP 1201", "gone 2.1, queue error: rank 2 cannot be connected on lane 1: no path",
          "refusal by 1 to 2 of 0, lane 1: queue error: rank 2 cannot be connected on lane 1: no path",
          "close 1"));
  port.connects = true;
  open(0, 3, 0);
  connector.received(0, port.last, letter_of(kRefusal, 3, 0));
  EXPECT_THAT(
      port.take(),
      ElementsAre("gone 3.0, out of memory: rank 3 refused the connection on lane 0: no slots", "close 2"));
  EXPECT_EQ(connector.state(3, 0), PairState::kGone);
  EXPECT_EQ(connector.next_ns(), kNever);
}

// Letters in each state that no connector sends there.
TEST_F(ConnectorCalls, contradiction_is_refused_by_name) {
  ConnectorLetter other = letter_of(kAsk, 1, 0);
  other.address.qpn = 5;
  const struct {
    std::vector<ConnectorLetter> before;  // by a channel of rank 1, lane 0
    bool asked;
    ConnectorLetter wrong;
    const char* what;
  } cases[] = {
      {{}, false, letter_of(kAnswer, 1, 0, 100), "connected to an endpoint that does not exist"},
      {{}, false, letter_of(kDone, 1, 0, 100), "connected to an endpoint that does not exist"},
      {{}, true, letter_of(kDone, 1, 0, 100), "took this side's endpoint for connected"},
      {{}, true, letter_of(kAnswer, 1, 0, 101), "connected to another endpoint"},
      {{letter_of(kAsk, 1, 0)}, false, letter_of(kAnswer, 1, 0, 101), "connected to another endpoint"},
      {{letter_of(kAsk, 1, 0)}, false, letter_of(kDone, 1, 0, 101), "connected to another endpoint"},
      {{letter_of(kAsk, 1, 0)}, false, other, "named another endpoint than before"},
      {{letter_of(kAsk, 1, 0), letter_of(kDone, 1, 0, 100)},
       false,
       letter_of(kDone, 1, 0, 99),
       "connected to another endpoint"},
  };
  for (const auto& [before, asked, wrong, what] : cases) {
    Script script;
    Connector one({7, 0, 5, 2}, {kDeadlineNs, 2}, script);
    if (asked) one.ask(0, 1, 0);
    for (const ConnectorLetter& letter : before) one.received(0, 40, letter);
    script.take();
    one.received(0, 40, wrong);
    const std::string why =
        fmt::format("invalid argument: rank 1 {} on lane 0: end it, and run the same gdx on all ranks", what);
    EXPECT_THAT(script.take(), ElementsAre("gone 1.0, " + why, "refusal by 40 to 1 of 0, lane 0: " + why));
  }
}

}  // namespace connector_rules_test
}  // namespace gdx
