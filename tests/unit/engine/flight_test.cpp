// Events that the recorder of a queue pair keeps, in their order.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <vector>

#include "driver-shim/softhca/engine/queue_pair.h"
#include "proto/mlx5/doorbell.h"
#include "tests/unit/engine/virtual_pair.h"

namespace gdx::softhca::test {
namespace flight_test {

using Kinds = std::vector<FlightKind>;
using enum FlightKind;

FlightRecord flight_of(Node& node) { return node.hca->read_flight(node.qpn).value_or(FlightRecord{}); }

Kinds kinds_of(const FlightRecord& record) {
  Kinds kinds(record.events.size());
  std::ranges::transform(record.events, kinds.begin(), &FlightEvent::kind);
  return kinds;
}

TEST(Flight, under_loss_tells_resends_and_their_causes) {
  VirtualPair pair({}, {}, Node::kHasty);
  std::mt19937 random(7);
  pair.loses = [&random] { return random() % 5 == 0; };
  Node& a = pair.a;
  for (int i = 0; i < 20; ++i) {
    a.post_write(a.local(0, 20'000), pair.b.remote(0));
    a.ring();
    std::optional<Polled> done;
    ASSERT_TRUE(pair.run([&] { return (done = a.poll_send()).has_value(); }));
    ASSERT_EQ(done->syndrome, mlx5::Syndrome::kNone);
  }
  const auto counters = a.hca->counters().transport;
  const FlightRecord record = flight_of(a);
  const auto resends = static_cast<std::uint64_t>(std::ranges::count(kinds_of(record), kResend));
  EXPECT_GT(resends, 0u);
  EXPECT_LE(resends, counters.timeouts + counters.naks_received + counters.tail_resends);
  const auto first = std::ranges::find(record.events, kResend, &FlightEvent::kind);
  EXPECT_TRUE(std::any_of(record.events.begin(), first, [](const auto& it) { return it.kind == kSend; }));
  EXPECT_EQ(record.events.back().kind, kCompletion);
}

// The newest events: WQE 0 fails, the queue pair with it, and `flushed` WQEs behind it are flushed.
void expect_end_by_first_wqe(const std::vector<FlightEvent>& events, std::uint32_t flushed) {
  ASSERT_GE(events.size(), 3u);
  const FlightEvent* const last = &events.back();
  EXPECT_EQ(last[-2].kind, kCompletion);
  EXPECT_EQ(last[-2].wqe, 0);
  EXPECT_EQ(last[-2].code, static_cast<int>(mlx5::Syndrome::kRemoteAccess));
  EXPECT_EQ(last[-1].kind, kState);
  EXPECT_EQ(last[-1].code, static_cast<int>(QpState::kError));
  EXPECT_EQ(last->kind, kFlush);
  EXPECT_EQ(last->wqe, flushed);
  EXPECT_EQ(last->word, flushed);
}

// More WQEs than the recorder has events, some of them posted after the failure.
TEST(Flight, of_a_failure_keeps_its_cause_whatever_is_flushed_behind) {
  Node a;
  Node b;
  a.connect(b);
  b.connect(a);
  a.post_write(a.local(0, 64), {b.remote(0).address, b.mkey + 1});
  for (std::uint32_t i = 1; i < Node::kSendBlocks; ++i) a.post_write(a.local(0, 64), b.remote(0), false);
  a.ring();
  for (std::uint32_t i = 0; i < Node::kSendBlocks; ++i) ASSERT_TRUE(await_send(a, b));
  for (int i = 0; i < 44; ++i) {
    a.post_write(a.local(0, 64), b.remote(0));
    a.ring();
    ASSERT_TRUE(await_send(a, b));
  }
  expect_end_by_first_wqe(flight_of(a).events, 299);
  ASSERT_EQ(a.modify_to_reset(), 0);
  EXPECT_EQ(kinds_of(flight_of(a)).back(), kState);
}

// The doorbell of each WQE comes with that WQE alone, and the record with both.
TEST(Flight, of_doorbells_tells_each_announcement_once) {
  Node a;
  Node b;
  a.connect(b);
  b.connect(a);
  a.post_write(a.local(0, 64), b.remote(0));
  a.post_write(a.local(0, 64), b.remote(0));
  a.ring_blueflame(0, mlx5::kUarBlueFlame);
  a.hca->progress();
  a.ring_blueflame(1, mlx5::kUarBlueFlame + mlx5::kBlueFlameBufferBytes);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(await_send(a, b));
  const FlightRecord record = flight_of(a);
  EXPECT_EQ(std::ranges::count(kinds_of(record), kFetch), 2);
  ASSERT_EQ(std::ranges::count(kinds_of(record), kDoorbell), 1);
  const auto doorbell = std::ranges::find(record.events, kDoorbell, &FlightEvent::kind);
  EXPECT_EQ(doorbell->wqe, 2);
  EXPECT_EQ(doorbell->word, 2u);
}

TEST(Flight, keeps_a_fixed_number) {
  Node a;
  Node b;
  a.connect(b);
  b.connect(a);
  for (std::size_t i = 0; i < kFlightEvents; ++i) {
    a.post_write(a.local(0, 8), b.remote(0));
    a.ring();
    ASSERT_TRUE(await_send(a, b));
  }
  const FlightRecord record = flight_of(a);
  EXPECT_EQ(record.events.size(), kFlightEvents);
  EXPECT_EQ(record.overwritten, 3 + 3 * kFlightEvents);
  EXPECT_EQ(record.events.back().wqe, kFlightEvents - 1);
}

TEST(Flight, of_no_queue_pair_is_refused) {
  Node a;
  EXPECT_FALSE(a.hca->read_flight(a.qpn + 1));
}

}  // namespace flight_test
}  // namespace gdx::softhca::test
