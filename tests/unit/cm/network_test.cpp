// Two agents over a network that loses, repeats and reorders. A connection comes up with both ends told once
// and in agreement, and ends with both told once.
#include <gtest/gtest.h>

#include <set>

#include "tests/unit/cm/two_agents.h"

namespace gdx::softhca::cm {
namespace network_test {

constexpr std::uint64_t kSeeds = 2000;
constexpr int kMaxRounds = 1000;

std::ptrdiff_t count(const TwoAgents::End& end, EventType type) {
  return std::count_if(end.events.begin(), end.events.end(),
                       [type](const Event& e) { return e.type == type; });
}

template <typename Done>
bool run_until(TwoAgents& world, Done done) {
  for (int round = 0; round < kMaxRounds && !done(); ++round) {
    world.deliver_all();
    if (!done() && !world.advance()) break;
  }
  return done();
}

TEST(CmNetwork, hostile_network_connection_comes_up_and_ends_with_each_end_told_once) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    TwoAgents world(seed, {.loss = 0.3, .duplicate = 0.3, .reorder = 0.5});
    world.passive.agent.listen(7, 99, 4);
    Connection& active = world.connect();

    ASSERT_TRUE(run_until(world, [&] { return !world.passive.events.empty(); }));
    Connection& passive = *world.passive.agent.find(world.passive.events.front().id);
    ASSERT_TRUE(passive.accept(world.now_ns, TwoAgents::passive_endpoint(), {}));
    ASSERT_TRUE(run_until(world, [&] { return active.state() == State::kRepReceived; }));
    ASSERT_TRUE(active.establish());
    ASSERT_TRUE(run_until(world, [&] { return passive.state() == State::kEstablished; }));
    EXPECT_EQ(active.parameters().send_psn, passive.parameters().receive_psn);
    EXPECT_EQ(passive.parameters().send_psn, active.parameters().receive_psn);

    Connection& first = seed % 2 == 0 ? active : passive;
    Connection& second = seed % 2 == 0 ? passive : active;
    ASSERT_TRUE(first.disconnect(world.now_ns));
    if (seed % 3 == 0) second.disconnect(world.now_ns);
    ASSERT_TRUE(run_until(
        world, [&] { return active.state() == State::kClosed && passive.state() == State::kClosed; }));
    for (const TwoAgents::End* end : {&world.active, &world.passive}) {
      EXPECT_EQ(count(*end, EventType::kDisconnected), 1);
      EXPECT_EQ(count(*end, EventType::kTimeWaitOver), 1);
      EXPECT_EQ(count(*end, EventType::kRejected), 0);
      EXPECT_EQ(count(*end, EventType::kUnreachable), 0);
    }
    EXPECT_EQ(count(world.passive, EventType::kRequest), 1);
    EXPECT_EQ(count(world.passive, EventType::kEstablished), 1);
    EXPECT_EQ(count(world.active, EventType::kResponse), 1);
  }
}

// Released at any moment, nothing stays behind for ever on either side.
TEST(CmNetwork, released_at_any_moment_both_ends_are_swept) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    TwoAgents world(seed, {.loss = 0.3, .duplicate = 0.3, .reorder = 0.5});
    world.passive.agent.listen(7, 99, 4);
    Connection& active = world.connect();
    const std::uint32_t id = active.id();
    const std::uint64_t steps = seed % 4;
    if (steps > 0) run_until(world, [&] { return !world.passive.events.empty(); });
    Connection* const passive =
        steps > 0 ? world.passive.agent.find(world.passive.events.front().id) : nullptr;
    if (steps > 1) {
      ASSERT_TRUE(passive->accept(world.now_ns, TwoAgents::passive_endpoint(), {}));
    }
    if (steps > 2 && run_until(world, [&] { return active.state() == State::kRepReceived; })) {
      active.establish();
    }
    world.active.agent.release(world.now_ns, id);
    for (int round = 0; round < kMaxRounds; ++round) {
      world.deliver_all();
      for (const Event& event : world.passive.events) {
        if (event.type != EventType::kRequest) world.passive.agent.release(world.now_ns, event.id);
      }
      if (!world.advance()) break;
    }
    world.passive.agent.release_all(world.now_ns);
    world.run_out();
    EXPECT_EQ(world.active.agent.connections(), 0u);
    EXPECT_EQ(world.passive.agent.connections(), 0u);
  }
}

// A peer that keeps numbers of its own connections computes no other's from them: each is drawn anew.
TEST(CmNumbers, first_psn_and_ids_of_a_connection_are_draws_of_their_own) {
  std::uint32_t draws = 0;
  AgentConfig config;
  config.random = [&draws] { return ++draws; };
  TwoAgents world;
  TwoAgents::End end(world, config);
  for (std::uint32_t first = 1; first < 10; first += 4) {
    end.agent.make(host(1)).connect(0, TwoAgents::request());
    const Message& sent = end.sent.back();
    const std::set<std::uint64_t> numbers{sent.local_id, sent.transaction_id >> 32,
                                          sent.transaction_id & 0xffffffff, sent.endpoint.starting_psn};
    EXPECT_EQ(numbers, (std::set<std::uint64_t>{first, first + 1, first + 2, first + 3}));
  }
}

}  // namespace network_test
}  // namespace gdx::softhca::cm
