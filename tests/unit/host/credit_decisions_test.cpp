// Each decision of the scheduler, in its order: grants as "endpoint+slot", limits as "endpoint<=slots".
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "host/staging/credit_scheduler.h"

namespace gdx {
namespace credit_decisions_test {

struct Step {
  const char* events;  // calls of the scheduler with their numbers
  const char* decisions;
};

void apply_one(CreditScheduler& scheduler, const std::string& event) {
  char call[8] = {};
  std::uint32_t first = 0;
  std::uint32_t second = 0;
  ASSERT_GE(std::sscanf(event.c_str(), "%7s %u %u", call, &first, &second), 2) << event;
  const std::string_view name = call;
  if (name == "open") {
    ASSERT_TRUE(scheduler.open(first, second)) << event;
  } else if (name == "want") {
    scheduler.want(first, second);
  } else if (name == "back") {
    ASSERT_TRUE(scheduler.take_back(first, second)) << event;
  } else if (name == "retire") {
    scheduler.retire(first);
  } else {
    ASSERT_EQ(name, "destroy");
    scheduler.destroy(first);
  }
}

void apply(CreditScheduler& scheduler, const std::string& events) {
  std::istringstream lines(events);
  for (std::string event; std::getline(lines, event, ';');)
    ASSERT_NO_FATAL_FAILURE(apply_one(scheduler, event));
}

std::string decided(CreditScheduler& scheduler) {
  std::vector<CreditAction> actions;
  scheduler.decide(actions);
  std::string text;
  for (const CreditAction& action : actions) {
    text += fmt::format("{}{}{}{}", text.empty() ? "" : " ", action.endpoint,
                        action.kind == CreditAction::Kind::kGrant ? "+" : "<=", action.value);
  }
  return text;
}

void expect_decisions(const CreditRules& rules, const std::vector<Step>& steps) {
  CreditScheduler scheduler(rules);
  for (const Step& step : steps) {
    ASSERT_NO_FATAL_FAILURE(apply(scheduler, step.events));
    EXPECT_EQ(decided(scheduler), step.decisions) << step.events;
    EXPECT_EQ(decided(scheduler), "") << "once more after " << step.events;
    EXPECT_STREQ(scheduler.check_invariants(), nullptr) << step.events;
  }
}

TEST(CreditDecisions, endpoint_has_its_minimum_and_not_one_more_below_a_tight_threshold) {
  for (const std::uint32_t minimum : {1u, 2u, 3u}) {
    CreditScheduler scheduler({64, minimum, 1});
    for (CreditEndpoint i = 0; i < 3; ++i) {
      ASSERT_TRUE(scheduler.open(i == 2 ? minimum : 64));
      scheduler.want(i, 64);
      (void)decided(scheduler);
      EXPECT_EQ(scheduler.leased(i), minimum);
      EXPECT_EQ(scheduler.limit(i), minimum);
    }
  }
}

TEST(CreditDecisions, with_a_minimum) {
  expect_decisions({8, 2, 100}, {{"open 8", "0<=1 0+0 0<=2 0+1"},
                                 {"want 0 8", "0<=3 0+2 0<=4 0+3"},
                                 {"open 8", "1<=1 1+4 1<=2 1+5"},
                                 {"want 1 8", "0<=3"},
                                 {"back 0 3", "1<=3 1+3"},
                                 {"want 1 0", ""},
                                 {"open 1", "2<=1 2+6 1<=2"},
                                 {"want 2 5", ""},
                                 {"back 1 4", ""},
                                 {"retire 0", "0<=0"},
                                 {"back 0 0", ""},
                                 {"want 1 1", "1<=3 1+0"},
                                 {"destroy 0", ""},
                                 {"open 8", "0<=1 0+2 0<=2 0+1"},
                                 {"want 0 2", ""}});
}

// A lower bound of half of the pool, and slots kept for tenants that have none.
TEST(CreditDecisions, without_a_minimum) {
  expect_decisions({8, 0, 10'000, 2}, {{"open 8 7", ""},
                                       {"want 0 8", "0<=1 0+0 0<=2 0+1 0<=3 0+2 0<=4 0+3"},
                                       {"open 8 7", ""},
                                       {"want 1 1", "1<=1 1+4"},
                                       {"open 8 7", ""},
                                       {"want 2 1", "2<=1 2+5"},
                                       {"open 8 7", ""},
                                       {"want 3 1", "0<=0 1<=0 2<=0"},
                                       {"open 8 9", ""},
                                       {"want 4 2", "4<=1 4+6 4<=0"},
                                       {"back 0 0", ""},
                                       {"back 0 1", "3<=1 3+1"},
                                       {"back 1 4", ""},
                                       {"destroy 0", "4<=2 4+3"}});
}

TEST(CreditDecisions, endpoint_that_waits_no_more_ends_no_round) {
  expect_decisions({8, 0, 100}, {{"open 8; open 8", ""}, {"want 0 1; want 0 0; want 1 1", "1<=1 1+0"}});
}

TEST(CreditDecisions, rounds_give_each_endpoint_that_waits_a_slot_in_turn) {
  expect_decisions({16, 0, 300}, {{"open 4; open 16; open 16", ""},
                                  {"want 0 5; want 1 2; want 2 1",
                                   "0<=1 0+0 1<=1 1+1 2<=1 2+2 0<=2 0+3 1<=2 1+4 0<=3 0+5 0<=4 0+6"},
                                  {"want 2 9", "2<=2 2+7"},
                                  {"retire 1", "1<=0"},
                                  {"destroy 1", "2<=3 2+4 2<=4 2+1"},
                                  {"open 3", ""},
                                  {"want 1 1; back 0 0", "2<=5 2+0 1<=1 1+8"}});
}

}  // namespace credit_decisions_test
}  // namespace gdx
