// Deficit round robin: shares, bounds, and what being held back does and does not cost.
#include "driver-shim/softhca/engine/fair_scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include <cstdlib>
#include <deque>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "driver-shim/softhca/engine/link_clock.h"

namespace gdx::softhca {
namespace fair_scheduler_test {

constexpr std::uint32_t kQuantum = 10'000;
constexpr std::uint32_t kMaxPacket = 4'200;
constexpr std::uint64_t kEndless = std::numeric_limits<std::uint64_t>::max();

struct FakeQueue {
  Turn turn;
  std::uint64_t backlog_bytes = kEndless;
  std::uint32_t packet_bytes = kMaxPacket;
  bool held = false;
  bool liar = false;  // says that it is ready and then sends nothing
  std::uint64_t sent_bytes = 0;
  std::uint64_t sends = 0;
  std::uint32_t owned_by = 0;

  [[nodiscard]] std::uint32_t owner() const { return owned_by; }
  [[nodiscard]] bool ready() const { return liar || (!held && backlog_bytes > 0); }
  std::uint64_t send(std::uint64_t allowance_bytes) {
    ++sends;
    std::uint64_t sent = 0;
    while (!held && !liar && sent < allowance_bytes && backlog_bytes > 0) {
      const std::uint64_t bytes = std::min<std::uint64_t>(packet_bytes, backlog_bytes);
      sent += bytes;
      if (backlog_bytes != kEndless) backlog_bytes -= bytes;
    }
    sent_bytes += sent;
    return sent;
  }
};

class Scheduler : public testing::Test {
 protected:
  FakeQueue& add(std::uint32_t packet_bytes, std::uint64_t backlog_bytes = kEndless) {
    queues_.push_back(std::make_unique<FakeQueue>());
    queues_.back()->packet_bytes = packet_bytes;
    queues_.back()->backlog_bytes = backlog_bytes;
    scheduler_.add(*queues_.back());
    return *queues_.back();
  }
  std::uint64_t run(std::uint64_t budget_bytes) {
    return scheduler_.run(
        budget_bytes, [](const FakeQueue& queue) { return queue.ready(); },
        [](FakeQueue& queue, std::uint64_t allowance) { return queue.send(allowance); });
  }

  FairScheduler<FakeQueue> scheduler_{kQuantum};
  std::vector<std::unique_ptr<FakeQueue>> queues_;
};

TEST_F(Scheduler, small_and_large_packets_get_the_same_bytes) {
  FakeQueue& small = add(100);
  FakeQueue& large = add(kMaxPacket);
  run(10'000'000);
  const auto ahead = static_cast<std::int64_t>(small.sent_bytes - large.sent_bytes);
  EXPECT_LE(std::abs(ahead), kQuantum + kMaxPacket);
  EXPECT_GE(small.sent_bytes + large.sent_bytes, 10'000'000u);
}

TEST_F(Scheduler, lone_queue_gets_the_whole_budget_and_overdraws_one_packet_at_most) {
  FakeQueue& lone = add(kMaxPacket);
  const std::uint64_t sent = run(1'000'000);
  EXPECT_EQ(sent, lone.sent_bytes);
  EXPECT_GE(sent, 1'000'000u);
  EXPECT_LT(sent, 1'000'000u + kMaxPacket);
}

TEST_F(Scheduler, budget_that_ends_amid_a_turn_lets_it_go_on_next_time) {
  FakeQueue& first = add(1'000);
  FakeQueue& second = add(1'000);
  run(4'000);
  EXPECT_EQ(first.sent_bytes, 4'000u);
  run(6'000);
  EXPECT_EQ(first.sent_bytes, kQuantum);
  EXPECT_EQ(second.sent_bytes, 0u);
  run(1);
  EXPECT_EQ(second.sent_bytes, 1'000u);
}

TEST_F(Scheduler, nobody_ready_ends_at_once_and_loses_nobody_his_place) {
  FakeQueue& held = add(1'000);
  held.held = true;
  FakeQueue& liar = add(1'000);
  liar.liar = true;
  EXPECT_EQ(run(1'000'000), 0u);
  EXPECT_LE(liar.sends, 2u);
  EXPECT_EQ(scheduler_.queues().size(), 2u);
  EXPECT_EQ(FairScheduler<FakeQueue>(kQuantum).run(
                1, [](const FakeQueue&) { return true; }, [](FakeQueue&, std::uint64_t) { return 1u; }),
            0u);
}

TEST_F(Scheduler, held_back_queue_neither_blocks_nor_collects_and_comes_back_within_a_round) {
  FakeQueue& held = add(1'000);
  FakeQueue& other = add(1'000);
  FakeQueue& third = add(1'000);
  held.held = true;
  EXPECT_GE(run(1'000'000), 1'000'000u) << "the others have the link to themselves";
  const std::uint64_t before = other.sent_bytes + third.sent_bytes;
  held.held = false;
  while (held.sent_bytes == 0) run(1'000);
  EXPECT_LE(other.sent_bytes + third.sent_bytes - before, 2u * kQuantum) << "one turn each";
  while (held.turn.begun) run(1'000);
  EXPECT_LE(held.sent_bytes, kQuantum + 1'000u) << "nothing was saved up meanwhile";
}

TEST_F(Scheduler, rest_of_an_interrupted_turn_is_kept_but_never_more_than_a_quantum) {
  FakeQueue& often_held = add(1'000);
  FakeQueue& other = add(1'000);
  for (int i = 0; i < 100; ++i) {
    run(1'000);  // a packet, then it is held in the middle of its turn
    often_held.held = true;
    run(kQuantum);
    often_held.held = false;
  }
  const std::uint64_t before = often_held.sent_bytes;
  const std::uint64_t others = other.sent_bytes;
  while (other.sent_bytes == others) run(1'000);
  EXPECT_LE(often_held.sent_bytes - before, 2 * kQuantum + 1'000u);
}

TEST_F(Scheduler, queue_that_is_wrong_about_being_ready_is_passed_over) {
  FakeQueue& liar = add(1'000);
  const FakeQueue& other = add(1'000);
  run(1'000);  // the first is amid its turn
  liar.liar = true;
  EXPECT_EQ(run(5'000), 5'000u);
  EXPECT_EQ(other.sent_bytes, 5'000u);
}

// Debts of whole quanta: a turn may come to nothing at all, and the round goes on.
TEST_F(Scheduler, packets_of_several_quanta_use_the_whole_budget) {
  for (const std::uint32_t quanta : {2u, 3u}) {
    scheduler_ = FairScheduler<FakeQueue>(kQuantum);
    const FakeQueue& first = add(quanta * kQuantum);
    const FakeQueue& second = add(quanta * kQuantum);
    EXPECT_GE(run(100 * kQuantum), 100u * kQuantum) << quanta;
    EXPECT_LE(std::abs(static_cast<std::int64_t>(first.sent_bytes - second.sent_bytes)), quanta * kQuantum);
  }
}

// Calls of send() as "queue:allowance=sent"; a queue that is not ready is not called.
TEST_F(Scheduler, each_turn_is_worth_what_was_left_of_the_quantum_and_of_the_budget) {
  add(4'000);
  FakeQueue& second = add(1'000, 2'500);
  std::string course;
  const auto run_noting = [&](std::uint64_t budget_bytes) {
    const std::uint64_t sent = scheduler_.run(
        budget_bytes, [](const FakeQueue& queue) { return queue.ready(); },
        [&](FakeQueue& queue, std::uint64_t allowance) {
          const std::uint64_t bytes = queue.send(allowance);
          course += &queue == &second ? "b:" : "a:";
          course.append(std::to_string(allowance)).append("=").append(std::to_string(bytes)).append(" ");
          return bytes;
        });
    return std::exchange(course, {}) + std::to_string(sent);
  };
  EXPECT_EQ(run_noting(15'000), "a:10000=12000 b:3000=2500 a:500=4000 18500");
  EXPECT_EQ(run_noting(1), "a:1=4000 4000");
  second.backlog_bytes = 20'000;
  EXPECT_EQ(run_noting(20'000), "b:7500=8000 a:10000=12000 20000");
  EXPECT_EQ(run_noting(9'500), "b:9500=10000 10000") << "after a debt of 500";
  second.liar = true;
  EXPECT_EQ(run_noting(5'000), "a:5000=8000 8000");
  EXPECT_EQ(run_noting(9'000), "b:9000=0 a:9000=12000 12000");
}

TEST_F(Scheduler, queue_added_twice_has_one_place) {
  FakeQueue& queue = add(1'000);
  scheduler_.add(queue);
  EXPECT_EQ(scheduler_.queues().size(), 1u);
  scheduler_.remove(queue);
  EXPECT_TRUE(scheduler_.queues().empty());
  scheduler_.add(queue);
  EXPECT_EQ(scheduler_.queues().size(), 1u);
}

TEST_F(Scheduler, leaving_queue_keeps_its_debt_and_loses_its_claim) {
  FakeQueue& rich = add(1'000, 3'000);
  run(kQuantum);
  scheduler_.retain([](const FakeQueue& queue) { return queue.backlog_bytes > 0; });
  EXPECT_TRUE(scheduler_.queues().empty());
  EXPECT_EQ(rich.turn.deficit_bytes, 0);
  FakeQueue& debtor = add(kMaxPacket, 3 * std::uint64_t{kMaxPacket});
  run(kEndless);
  const std::int64_t debt = debtor.turn.deficit_bytes;
  EXPECT_LT(debt, 0);
  scheduler_.remove(debtor);
  EXPECT_EQ(debtor.turn.deficit_bytes, debt);
  EXPECT_FALSE(debtor.turn.listed);
}

// Any mix of packet sizes, budgets, pauses and arrivals. Between two queues that could send all the time the
// bound holds at every moment. No budget is left over while a queue could send.
TEST_F(Scheduler, random_runs_keep_the_bound_and_waste_nothing) {
  for (std::uint32_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    scheduler_ = FairScheduler<FakeQueue>(kQuantum);
    queues_.clear();
    const auto size = [&] { return static_cast<std::uint32_t>(60 + random() % (kMaxPacket - 60)); };
    const std::size_t steady = 2 + random() % 5;
    for (std::size_t i = 0; i < steady; ++i) add(size());
    for (std::size_t i = 0; i < 6; ++i) add(size(), random() % 100'000);
    for (int step = 0; step < 3'000; ++step) {
      for (std::size_t i = steady; i < queues_.size(); ++i) {
        FakeQueue& queue = *queues_[i];
        if (random() % 8 == 0) queue.held = !queue.held;
        if (random() % 16 == 0) queue.backlog_bytes += random() % 50'000;
        if (queue.backlog_bytes > 0) scheduler_.add(queue);
      }
      for (const auto& queue : queues_) queue->packet_bytes = size();
      const std::uint64_t budget = 1 + random() % 60'000;
      const std::uint64_t sent = run(budget);
      ASSERT_GE(sent, budget);
      ASSERT_LT(sent, budget + kMaxPacket);
      scheduler_.retain([](const FakeQueue& queue) { return queue.backlog_bytes > 0; });
      std::uint64_t least = kEndless;
      std::uint64_t most = 0;
      for (std::size_t i = 0; i < steady; ++i) {
        least = std::min(least, queues_[i]->sent_bytes);
        most = std::max(most, queues_[i]->sent_bytes);
      }
      ASSERT_LE(most - least, kQuantum + kMaxPacket);
    }
  }
}

class Owners : public testing::Test {
 protected:
  FakeQueue& add(std::uint32_t owner) {
    queues_.push_back(std::make_unique<FakeQueue>());
    queues_.back()->owned_by = owner;
    scheduler_.add(*queues_.back());
    return *queues_.back();
  }
  std::uint64_t run(std::uint64_t budget_bytes) {
    return scheduler_.run(
        budget_bytes, [](const FakeQueue& queue) { return queue.ready(); },
        [](FakeQueue& queue, std::uint64_t allowance) { return queue.send(allowance); });
  }
  [[nodiscard]] std::uint64_t bytes_of(std::uint32_t owner) const {
    std::uint64_t bytes = 0;
    for (const auto& queue : queues_) bytes += queue->owned_by == owner ? queue->sent_bytes : 0;
    return bytes;
  }

  OwnerScheduler<FakeQueue> scheduler_{kQuantum};
  std::vector<std::unique_ptr<FakeQueue>> queues_;
};

TEST_F(Owners, get_the_same_bytes_however_many_queues_each_has) {
  for (int i = 0; i < 16; ++i) add(1);
  const FakeQueue& lone = add(2);
  run(10'000'000);
  EXPECT_LE(std::abs(static_cast<std::int64_t>(bytes_of(1) - lone.sent_bytes)), kQuantum + kMaxPacket);
  std::int64_t most = 0;
  for (const auto& queue : queues_) {
    if (queue->owned_by == 1)
      most = std::max(most, std::abs(static_cast<std::int64_t>(queue->sent_bytes - bytes_of(1) / 16)));
  }
  EXPECT_LE(most, kQuantum + kMaxPacket) << "among the queues of one owner";
}

TEST_F(Owners, held_back_owner_costs_the_others_nothing_and_comes_back_within_a_round) {
  FakeQueue& held = add(1);
  held.held = true;
  FakeQueue& other = add(2);
  EXPECT_GE(run(1'000'000), 1'000'000u);
  const std::uint64_t before = other.sent_bytes;
  held.held = false;
  while (held.sent_bytes == 0) run(1'000);
  EXPECT_LE(other.sent_bytes - before, kQuantum + kMaxPacket);
}

TEST_F(Owners, leave_with_their_last_queue_and_nobody_is_visited_afterwards) {
  FakeQueue& first = add(1);
  FakeQueue& second = add(1);
  FakeQueue& third = add(2);
  scheduler_.remove(first);
  scheduler_.remove(second);
  std::vector<const FakeQueue*> seen;
  scheduler_.visit([&](const FakeQueue& queue) { seen.push_back(&queue); });
  EXPECT_EQ(seen, std::vector<const FakeQueue*>{&third});
  scheduler_.retain([](const FakeQueue&) { return false; });
  EXPECT_TRUE(scheduler_.empty());
  scheduler_.add(third);
  EXPECT_GT(run(1), 0u);
  scheduler_.remove(third);
  EXPECT_EQ(run(1), 0u);
}

// A sender under staging credits: it has as many packets to send as it holds credits. Each credit comes back
// a round trip after its packet has left.
struct CreditedQueue {
  static constexpr std::uint64_t kRoundTripNs = 200'000;

  Turn turn;
  std::uint32_t credits = 0;
  std::uint64_t sent_packets = 0;
  std::deque<std::uint64_t> returns_at_ns;

  void poll(std::uint64_t now_ns) {
    for (; !returns_at_ns.empty() && returns_at_ns.front() <= now_ns; returns_at_ns.pop_front()) ++credits;
  }
  std::uint64_t send(std::uint64_t now_ns, std::uint64_t allowance_bytes) {
    std::uint64_t sent = 0;
    for (; credits > 0 && sent < allowance_bytes; --credits, ++sent_packets) {
      sent += kMaxPacket;
      returns_at_ns.push_back(now_ns + kRoundTripNs);
    }
    return sent;
  }
};

// The most and the least that one of these got on a link of `rate_gbps`. Its round trip is shorter than a
// packet.
std::pair<std::uint64_t, std::uint64_t> most_and_least(double rate_gbps, std::uint32_t quantum_bytes) {
  std::array<CreditedQueue, 6> queues;
  const std::array<std::uint32_t, 6> held{5, 1, 2, 1, 5, 2};
  FairScheduler<CreditedQueue> scheduler(quantum_bytes);
  LinkClock link(rate_gbps, kMaxPacket);
  for (std::size_t i = 0; i < queues.size(); ++i) {
    queues[i].credits = held[i];
    scheduler.add(queues[i]);
  }
  for (std::uint64_t now_ns = 0; now_ns < 1'000'000'000; now_ns += 10'000) {
    for (CreditedQueue& queue : queues) queue.poll(now_ns);
    const std::uint64_t sent = scheduler.run(
        link.budget_bytes(now_ns), [](const CreditedQueue& queue) { return queue.credits > 0; },
        [now_ns](CreditedQueue& queue, std::uint64_t allowance) { return queue.send(now_ns, allowance); });
    link.charge(now_ns, sent);
  }
  const auto less = [](const auto& a, const auto& b) { return a.sent_packets < b.sent_packets; };
  const auto [least, most] = std::minmax_element(queues.begin(), queues.end(), less);
  return {most->sent_packets, least->sent_packets};
}

TEST(TurnLength, few_credits_get_the_share_of_many_on_a_slow_link) {
  constexpr double kRateGbps = 0.25;  // 134 us a packet: two credits outlast the round trip, one does not
  constexpr std::uint32_t kMtu = 4096;
  const auto [most, least] = most_and_least(kRateGbps, turn_bytes(kRateGbps, 64 << 10, kMtu));
  EXPECT_GT(least, 1'000u);
  EXPECT_LE(most - least, most / 20);
  const auto [greedy, starved] = most_and_least(kRateGbps, 64 << 10);
  EXPECT_GT(greedy, 3 * starved) << "what a turn of 64 KiB does there";
}

TEST(TurnLength, is_a_packet_on_a_slow_link_and_the_quantum_on_a_fast_one) {
  EXPECT_EQ(turn_bytes(0, 65'536, 4096), 65'536u);
  EXPECT_EQ(turn_bytes(0.001, 65'536, 4096), 4096u);
  EXPECT_EQ(turn_bytes(25, 65'536, 4096), 15'625u);
  EXPECT_EQ(turn_bytes(400, 65'536, 4096), 65'536u);
  EXPECT_EQ(turn_bytes(1, 1'000, 4096), 1'000u) << "what is asked for is never exceeded";
}

}  // namespace fair_scheduler_test
}  // namespace gdx::softhca
