// The scheduler's decisions, and what it makes of an endpoint that lies.
#include "host/staging/credit_scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "host/staging/credit_exchange.h"

namespace gdx {
namespace credit_scheduler_test {

// Endpoints that take what they are granted, and hold it until told.
class Credits : public ::testing::Test {
 protected:
  CreditScheduler make(CreditRules rules) { return CreditScheduler(rules); }

  // Lets every endpoint request the pool until nothing changes; those above their limit return slots.
  static void run_until_stable(CreditScheduler& scheduler, const std::vector<CreditEndpoint>& hungry,
                               const std::vector<CreditEndpoint>& giving) {
    std::vector<CreditAction> actions;
    for (bool moved = true; moved;) {
      for (const CreditEndpoint e : hungry) scheduler.want(e, scheduler.rules().slot_count);
      actions.clear();
      scheduler.decide(actions);
      moved = !actions.empty();
      for (const CreditEndpoint e : giving) {
        for (std::uint32_t slot = 0;
             slot < scheduler.rules().slot_count && scheduler.leased(e) > scheduler.limit(e); ++slot) {
          moved |= scheduler.take_back(e, slot);
        }
      }
      ASSERT_STREQ(scheduler.check_invariants(), nullptr);
    }
  }
};

TEST_F(Credits, impossible_rules_are_refused) {
  const auto status = [](CreditRules rules) {
    const auto checked = check_credit_rules(rules);
    return checked ? Status::kOk : checked.error().status;
  };
  EXPECT_EQ(status({32, 1, 100}), Status::kOk);
  EXPECT_EQ(status({32, 32, 10'000}), Status::kOk);
  EXPECT_EQ(status({0, 1, 100}), Status::kInvalidArgument);
  EXPECT_EQ(status({32, 0, 100}), Status::kOk);
  EXPECT_EQ(status({0, 0, 100}), Status::kInvalidArgument);
  EXPECT_EQ(status({32, 33, 100}), Status::kInvalidArgument);
  EXPECT_EQ(status({32, 1, 0}), Status::kInvalidArgument);
  EXPECT_EQ(status({32, 1, 10'001}), Status::kInvalidArgument);
}

TEST_F(Credits, open_grants_the_minimum_unasked) {
  auto scheduler = make({8, 2, 100});
  const auto e = scheduler.open(8);
  ASSERT_TRUE(e);
  std::vector<CreditAction> actions;
  scheduler.decide(actions);
  EXPECT_EQ(scheduler.leased(*e), 2u);
  EXPECT_EQ(scheduler.limit(*e), 2u);
  actions.clear();
  scheduler.decide(actions);
  EXPECT_TRUE(actions.empty()) << "nothing happened in between";
}

TEST_F(Credits, hungry_endpoints_share_by_the_threshold) {
  struct Case {
    std::uint32_t threshold_percent;
    std::uint32_t endpoints;
    std::uint32_t each;
  };
  // With a factor f, n hungry endpoints hold f / (1 + n * f) of the pool each.
  for (const Case& c :
       {Case{100, 1, 32}, Case{100, 3, 16}, Case{100, 7, 8}, Case{300, 1, 48}, Case{50, 2, 16}}) {
    auto scheduler = make({64, 1, c.threshold_percent});
    std::vector<CreditEndpoint> hungry;
    for (std::uint32_t i = 0; i < c.endpoints; ++i) hungry.push_back(*scheduler.open(64));
    run_until_stable(scheduler, hungry, {});
    for (const CreditEndpoint e : hungry) EXPECT_EQ(scheduler.leased(e), c.each) << c.threshold_percent;
  }
}

TEST_F(Credits, late_comer_makes_the_early_one_shrink_to_its_share) {
  auto scheduler = make({64, 1, 100});
  const CreditEndpoint early = *scheduler.open(64);
  run_until_stable(scheduler, {early}, {});
  EXPECT_EQ(scheduler.leased(early), 32u);
  const CreditEndpoint late = *scheduler.open(64);
  run_until_stable(scheduler, {late}, {early, late});
  EXPECT_NEAR(scheduler.leased(early), 22, 1);
  EXPECT_NEAR(scheduler.leased(late), 21, 1);
}

TEST_F(Credits, endpoint_that_gives_nothing_back_leaves_the_others_their_share_of_the_rest) {
  auto scheduler = make({64, 1, 100});
  const CreditEndpoint stalled = *scheduler.open(64);
  run_until_stable(scheduler, {stalled}, {});
  const CreditEndpoint a = *scheduler.open(64);
  const CreditEndpoint b = *scheduler.open(64);
  run_until_stable(scheduler, {stalled, a, b}, {a, b});
  EXPECT_EQ(scheduler.leased(stalled), 32u);
  EXPECT_GE(scheduler.leased(a), 10u);
  EXPECT_GE(scheduler.leased(b), 10u);
}

TEST_F(Credits, somebody_waits_until_the_want_is_granted_or_withdrawn) {
  auto scheduler = make({8, 1, 100});
  const CreditEndpoint e = *scheduler.open(8);
  std::vector<CreditAction> actions;
  EXPECT_TRUE(scheduler.anybody_waits());
  scheduler.decide(actions);
  EXPECT_FALSE(scheduler.anybody_waits());
  scheduler.want(e, 8);
  scheduler.decide(actions);
  EXPECT_EQ(scheduler.leased(e), 4u);
  EXPECT_TRUE(scheduler.anybody_waits()) << "the threshold refuses the rest";
  scheduler.want(e, 0);
  scheduler.decide(actions);
  EXPECT_FALSE(scheduler.anybody_waits());
}

TEST_F(Credits, slot_of_the_minimum_that_is_given_back_is_granted_again) {
  auto scheduler = make({8, 2, 100});
  const CreditEndpoint e = *scheduler.open(8);
  run_until_stable(scheduler, {}, {});
  ASSERT_TRUE(scheduler.take_back(e, 0));
  EXPECT_TRUE(scheduler.anybody_waits());
  run_until_stable(scheduler, {}, {});
  EXPECT_EQ(scheduler.leased(e), 2u);
}

// A number's former owner may still have stood in the queue of those who wait.
TEST_F(Credits, only_one_who_waits_is_asked_for_nothing_on_his_own_behalf) {
  for (const bool had_a_predecessor : {false, true}) {
    auto scheduler = make({8, 1, 100});
    if (had_a_predecessor) scheduler.destroy(*scheduler.open(8));
    const CreditEndpoint e = *scheduler.open(8);
    run_until_stable(scheduler, {e}, {});
    ASSERT_EQ(scheduler.leased(e), 4u);
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(scheduler.open(1));
    run_until_stable(scheduler, {e}, {});
    EXPECT_EQ(scheduler.limit(e), 4u) << had_a_predecessor;
  }
}

// Checks the exact number of slots asked back, a closing endpoint's slots included.
TEST_F(Credits, holder_is_asked_for_just_what_it_would_not_be_granted_again) {
  int asked = 0;
  for (const std::uint32_t percent : {25u, 100u, 300u}) {
    for (std::uint32_t slots = 40; slots < 60; ++slots) {
      const bool somebody_closes = slots % 4 < 2;
      SCOPED_TRACE(::testing::Message() << percent << " percent of " << slots << " slots");
      auto scheduler = make({slots, 1, percent});
      const CreditEndpoint closing = *scheduler.open(slots);
      if (somebody_closes) run_until_stable(scheduler, {closing}, {});
      scheduler.retire(closing);
      const CreditEndpoint holder = *scheduler.open(slots);
      run_until_stable(scheduler, {holder}, {});
      const CreditEndpoint late = *scheduler.open(slots);
      run_until_stable(scheduler, {late}, {});
      const std::uint32_t limit = scheduler.limit(holder);
      const std::uint32_t back =
          scheduler.free() + scheduler.leased(holder) - limit + scheduler.leased(closing);
      EXPECT_LT((limit - 1) * 100, (back + 1) * percent) << "too little";
      if (limit == scheduler.leased(holder)) continue;
      ++asked;
      EXPECT_GE(limit * 100, back * percent) << "too much";
    }
  }
  EXPECT_GE(asked, 30);
}

TEST_F(Credits, without_a_minimum_any_number_open_and_who_has_none_gets_a_slot_from_those_who_can_give) {
  auto scheduler = make({2, 0, 100});
  std::vector<CreditEndpoint> all;
  for (int i = 0; i < 40; ++i) {
    const auto e = scheduler.open(2);
    ASSERT_TRUE(e);
    all.push_back(*e);
  }
  std::vector<CreditAction> actions;
  scheduler.decide(actions);
  EXPECT_TRUE(actions.empty()) << "granted unasked";
  run_until_stable(scheduler, {all[0]}, {all[0]});
  EXPECT_EQ(scheduler.leased(all[0]), 1u);
  run_until_stable(scheduler, {all[1]}, {});
  EXPECT_EQ(scheduler.leased(all[1]), 1u);
  // The first is stuck with its slot, as with a dead peer.
  for (const CreditEndpoint e : {all[0], all[1]}) scheduler.want(e, 0);
  scheduler.want(all[39], 1);
  scheduler.decide(actions);
  EXPECT_EQ(scheduler.limit(all[0]), 0u);
  EXPECT_EQ(scheduler.limit(all[1]), 0u);
  for (std::uint32_t slot = 0; slot < 2; ++slot) (void)scheduler.take_back(all[1], slot);
  scheduler.decide(actions);
  EXPECT_EQ(scheduler.leased(all[39]), 1u);
  EXPECT_EQ(scheduler.limit(all[39]), 1u);
  EXPECT_STREQ(scheduler.check_invariants(), nullptr);
}

// Endpoints push at random, some are stuck; a slot comes back by some thread once its work request is done.
TEST_F(Credits, without_a_minimum_every_endpoint_pushes_again_and_again) {
  constexpr std::uint32_t kEndpoints = 40;
  constexpr std::uint32_t kEach = 20;
  for (std::uint32_t seed = 1; seed <= 50; ++seed) {
    std::mt19937 chance(seed);
    const std::uint32_t slots = 4 << seed % 3;
    auto scheduler = make({slots, 0, 100});
    std::vector<std::uint32_t> pushed(kEndpoints);
    const std::uint32_t stuck = slots - 1;  // so many endpoints never give back
    for (std::uint32_t e = 0; e < kEndpoints; ++e) ASSERT_TRUE(scheduler.open(e < stuck ? 1 : slots));
    std::vector<CreditAction> actions;
    std::uint32_t left = kEndpoints - stuck;
    for (std::uint32_t step = 0; left != 0 && step < 400'000; ++step) {
      const auto e = static_cast<CreditEndpoint>(chance() % kEndpoints);
      actions.clear();
      scheduler.decide(actions);
      ASSERT_STREQ(scheduler.check_invariants(), nullptr);
      if (pushed[e] < kEach) scheduler.want(e, 1);
      for (std::uint32_t slot = 0; slot < slots; ++slot) {
        if (scheduler.holder(slot) != e || e < stuck || chance() % 2 == 0) continue;
        if (pushed[e] < kEach && ++pushed[e] == kEach) --left;
        if (pushed[e] == kEach) scheduler.want(e, 0);
        if (scheduler.leased(e) > scheduler.limit(e)) (void)scheduler.take_back(e, slot);
      }
    }
    EXPECT_EQ(left, 0u) << "seed " << seed << ": endpoints starved";
  }
}

// One that holds what it was granted for ever leaves slots for as many others as there are kept ones.
TEST_F(Credits, each_tenant_of_a_pool_without_minima_gets_a_slot_from_what_is_kept) {
  auto scheduler = make({8, 0, 100, tenant_slots_of(8)});
  std::vector<CreditEndpoint> first(12);
  for (auto& endpoint : first) endpoint = *scheduler.open(8, 1);
  run_until_stable(scheduler, first, {});
  EXPECT_EQ(scheduler.free(), 2u);
  for (const std::uint32_t tenant : {2u, 3u}) {
    const auto other = *scheduler.open(8, tenant);
    run_until_stable(scheduler, {other}, {});
    EXPECT_EQ(scheduler.leased(other), 1u);
  }
  const auto fourth = scheduler.open(8, 4);
  ASSERT_FALSE(fourth);
  EXPECT_EQ(fourth.error().status, Status::kBusy);
  EXPECT_NE(fourth.error().message.find("3 programs share a pool of 8 staging slots"), std::string::npos);
  ASSERT_TRUE(scheduler.open(8, 3));
  for (const CreditEndpoint endpoint : first) scheduler.destroy(endpoint);
  EXPECT_TRUE(scheduler.open(8, 4));
  EXPECT_STREQ(scheduler.check_invariants(), nullptr);
}

TEST_F(Credits, pool_of_one_slot_without_a_minimum_has_one_tenant) {
  auto scheduler = make({1, 0, 100, tenant_slots_of(1)});
  EXPECT_TRUE(scheduler.open(1, 1));
  EXPECT_FALSE(scheduler.open(1, 2));
}

TEST_F(Credits, cap_of_an_endpoint_holds) {
  auto scheduler = make({64, 1, 100});
  const CreditEndpoint e = *scheduler.open(5);
  run_until_stable(scheduler, {e}, {});
  EXPECT_EQ(scheduler.leased(e), 5u);
}

TEST_F(Credits, pool_of_minima_is_full_and_says_so) {
  auto scheduler = make({8, 2, 100});
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(scheduler.open(8));
  const auto refused = scheduler.open(8);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, Status::kBusy);
  EXPECT_EQ(refused.error().message,
            "no 2 of 8 staging slots can be reserved for another endpoint: 8 are promised to those that "
            "exist; close one, make the pool larger, the slots smaller or minimum_slots 0");
  EXPECT_EQ(scheduler.open(9).error().message,
            "an endpoint with up to 9 staging slots is impossible: use a slot_count of at most the pool's 8");
  EXPECT_EQ(scheduler.open(0).error().status, Status::kInvalidArgument);
  EXPECT_EQ(scheduler.open(9).error().status, Status::kInvalidArgument);
  scheduler.destroy(2);
  EXPECT_EQ(scheduler.open(8).value(), 2u) << "numbers are used again";
}

TEST_F(Credits, retired_keeps_its_slots_until_it_is_destroyed) {
  auto scheduler = make({8, 1, 100});
  const CreditEndpoint e = *scheduler.open(8);
  run_until_stable(scheduler, {e}, {});
  EXPECT_EQ(scheduler.leased(e), 4u);
  scheduler.retire(e);
  scheduler.retire(e);
  std::vector<CreditAction> actions;
  scheduler.want(e, 3);
  scheduler.decide(actions);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(actions[0].kind, CreditAction::Kind::kLimit);
  EXPECT_EQ(actions[0].value, 0u);
  EXPECT_EQ(scheduler.leased(e), 4u);
  scheduler.destroy(e);
  EXPECT_EQ(scheduler.free(), 8u);
  EXPECT_STREQ(scheduler.check_invariants(), nullptr);
}

class Hostile : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kSlots = 8;
  struct Channel {
    std::uint64_t grants = 0;
    CreditRequests requests{};
    std::uint32_t granted_slots[kSlots]{};
    std::uint32_t returned_slots[kSlots]{};
    CreditChannel channel() { return {&grants, granted_slots, &requests, returned_slots}; }
  };

  void SetUp() override {
    liar_ = *exchange_.open(lies_.channel(), kSlots);
    honest_ = *exchange_.open(truth_.channel(), kSlots);
    exchange_.poll();
  }

  CreditExchange exchange_{{kSlots, 1, 100}, "a test"};
  Channel lies_;
  Channel truth_;
  CreditEndpoint liar_ = 0;
  CreditEndpoint honest_ = 0;
};

// A record as text, without its times.
std::string past_of(FlightRecord record) {
  for (FlightEvent& event : record.events) EXPECT_NE(std::exchange(event.time_ns, 0), 0u);
  return encode_flight(record);
}

TEST_F(Hostile, return_of_anothers_slot_is_ignored_and_reported_once) {
  lies_.returned_slots[0] = truth_.granted_slots[0];
  lies_.returned_slots[1] = kSlots;
  lies_.returned_slots[2] = ~0u;
  lies_.requests.returned = 3;
  testing::internal::CaptureStderr();
  exchange_.poll();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(exchange_.bad_returns(), 3u);
  EXPECT_THAT(said,
              ::testing::EndsWith(": staging of a test: endpoint 0 gives back slot 1, which it does not "
                                  "hold; ignored, and not reported again: close that endpoint\n"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
  EXPECT_EQ(exchange_.scheduler().leased(honest_), 1u);
  EXPECT_EQ(exchange_.scheduler().leased(liar_), 1u);
  const std::string past = "flight credits 0\n0 limit 0 0 0 1\n0 grant 0 0 0 0\n";
  EXPECT_EQ(past_of(exchange_.flight(liar_)), past) << "none came back";
  lies_.returned_slots[3] = lies_.granted_slots[0];
  lies_.requests.returned = 4;
  exchange_.poll();
  EXPECT_EQ(past_of(exchange_.flight(liar_)), past + "0 return 0 0 0 0\n0 grant 0 0 0 0\n");
  EXPECT_EQ(past_of(exchange_.flight(honest_)), "flight credits 0\n0 limit 0 0 0 1\n0 grant 0 0 0 1\n");
}

TEST_F(Hostile, return_of_one_slot_twice_counts_once) {
  lies_.returned_slots[0] = lies_.returned_slots[1] = lies_.granted_slots[0];
  lies_.requests.returned = 2;
  exchange_.poll();
  EXPECT_EQ(exchange_.bad_returns(), 1u);
  EXPECT_STREQ(exchange_.scheduler().check_invariants(), nullptr);
}

TEST_F(Hostile, return_count_beyond_the_pool_is_one_bad_return) {
  lies_.requests.returned = 0x8000'0000;
  exchange_.poll();
  EXPECT_EQ(exchange_.bad_returns(), 1u);
  EXPECT_EQ(exchange_.poll(), 0);
}

TEST_F(Hostile, failed_that_says_it_took_more_than_was_granted_is_one_bad_return_and_keeps_its_slots) {
  lies_.requests.wanted = granted_of(lies_.grants) + 1'000;
  lies_.requests.failed = 1;
  exchange_.poll();
  EXPECT_EQ(exchange_.bad_returns(), 1u);
  EXPECT_EQ(exchange_.scheduler().leased(liar_), 1u);
  EXPECT_EQ(exchange_.poll(), 0);
  exchange_.destroy(liar_);
  EXPECT_EQ(exchange_.scheduler().leased(), 1u);
}

// Slots of the failed endpoint: others would be granted again in this poll.
TEST_F(Hostile, poll_counts_the_slots_that_came_back) {
  const std::uint32_t granted = granted_of(lies_.grants);
  lies_.requests.wanted = granted - 1;  // the last grant crossed the failure
  lies_.requests.failed = 1;
  EXPECT_EQ(exchange_.poll(), 2) << "that slot, and the limit of 0";
  EXPECT_EQ(exchange_.scheduler().leased(liar_), 0u);
  truth_.requests.wanted = granted_of(truth_.grants);
  truth_.requests.failed = 1;
  EXPECT_EQ(exchange_.poll(), 1) << "the limit";
  truth_.returned_slots[0] = truth_.granted_slots[0];
  truth_.requests.returned = 1;
  EXPECT_EQ(exchange_.poll(), 1) << "a slot";
  EXPECT_EQ(exchange_.bad_returns(), 0u);
}

TEST_F(Hostile, failure_of_who_gets_a_number_again_is_heard_too) {
  for (int round = 0; round < 2; ++round) {
    lies_.requests.failed = 1;
    lies_.requests.wanted = granted_of(lies_.grants) - 1;
    exchange_.poll();
    EXPECT_EQ(exchange_.scheduler().leased(liar_), 0u) << round;
    exchange_.destroy(liar_);
    lies_ = {};
    ASSERT_EQ(*exchange_.open(lies_.channel(), kSlots), liar_);
    EXPECT_TRUE(exchange_.flight(liar_).events.empty()) << "those of its predecessor";
    exchange_.poll();
    EXPECT_EQ(past_of(exchange_.flight(liar_)), "flight credits 0\n0 limit 0 0 0 1\n0 grant 0 0 0 " +
                                                    std::to_string(lies_.granted_slots[0]) + "\n");
    EXPECT_EQ(exchange_.scheduler().leased(liar_), 1u);
  }
}

TEST_F(Hostile, endpoints_are_those_that_exist) {
  EXPECT_EQ(exchange_.endpoints(), 2u);
  exchange_.retire(liar_);
  EXPECT_EQ(exchange_.endpoints(), 2u);
  exchange_.destroy(liar_);
  EXPECT_EQ(exchange_.endpoints(), 1u);
}

TEST_F(Hostile, boundless_wish_gets_the_share_of_anybody) {
  lies_.requests.wanted = 0x7fff'ffff;
  exchange_.poll();
  EXPECT_LE(exchange_.scheduler().leased(liar_), kSlots / 2);
  EXPECT_EQ(granted_of(lies_.grants), exchange_.scheduler().leased(liar_));
}

TEST_F(Hostile, slot_may_come_and_go_for_ever) {
  for (std::uint32_t i = 0; i < 100; ++i) {
    lies_.requests.wanted = granted_of(lies_.grants) + 1;
    exchange_.poll();
    lies_.returned_slots[lies_.requests.returned % kSlots] =
        lies_.granted_slots[(granted_of(lies_.grants) - 1) % kSlots];
    ++lies_.requests.returned;
    exchange_.poll();
  }
  EXPECT_EQ(exchange_.bad_returns(), 0u);
  EXPECT_EQ(exchange_.scheduler().leased(liar_), 1u);
}

TEST(UnlimitedCredits, are_of_each_slot_and_of_no_other) {
  HeldSlot held[5] = {{9, 9}, {9, 9}, {9, 9}, {9, 9}, {9, 9}};
  StagingHandle pool{};
  pool.held = held;
  pool.slot_count = 4;
  std::uint64_t grants = 0;
  const StagingState state = unlimited_credits(pool, &grants);
  EXPECT_EQ(state.ready, 1u << 31);
  EXPECT_EQ(state.filled, 0u);
  EXPECT_EQ(limit_of(grants), kUnlimitedSlots);
  for (std::uint32_t slot = 0; slot < 4; ++slot) EXPECT_EQ(held[slot].slot, slot);
  EXPECT_EQ(held[4].slot, 9u);
}

}  // namespace credit_scheduler_test
}  // namespace gdx
