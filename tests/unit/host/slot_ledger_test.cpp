#include "host/staging/slot_ledger.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace gdx {
namespace {

TEST(SlotLedger, fresh_all_taken_pool_is_empty_and_next_take_is_busy) {
  SlotLedger ledger(32);
  const auto all = ledger.take(32);
  ASSERT_TRUE(all);
  EXPECT_EQ(ledger.free(), 0u);
  const auto more = ledger.take(1);
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().status, Status::kBusy);
  EXPECT_TRUE(ledger.give_back(*all));
  EXPECT_EQ(ledger.free(), 32u);
}

TEST(SlotLedger, impossible_counts_take_is_refused_and_nothing_changes) {
  SlotLedger ledger(8);
  for (const std::uint32_t count : {0u, 3u, 16u, 0x80000000u}) {
    const auto run = ledger.take(count);
    ASSERT_FALSE(run) << count;
    EXPECT_EQ(run.error().status, Status::kInvalidArgument) << count;
    EXPECT_EQ(ledger.free(), 8u);
  }
}

TEST(SlotLedger, run_on_loan_wrong_return_is_refused) {
  SlotLedger ledger(8);
  const auto run = ledger.take(4);
  ASSERT_TRUE(run);
  EXPECT_FALSE(ledger.give_back({run->first, 2}));
  EXPECT_FALSE(ledger.give_back({run->first + 1, 3}));
  EXPECT_EQ(ledger.leased(), 4u);
  EXPECT_TRUE(ledger.give_back(*run));
  EXPECT_FALSE(ledger.give_back(*run)) << "returned twice";
  EXPECT_EQ(ledger.leased(), 0u);
}

TEST(SlotLedger, gap_between_runs_take_reuses_it_only_if_it_fits) {
  SlotLedger ledger(8);
  const auto first = ledger.take(2);
  const auto second = ledger.take(2);
  const auto third = ledger.take(4);
  ASSERT_TRUE(first && second && third);
  ASSERT_TRUE(ledger.give_back(*second));
  EXPECT_EQ(ledger.take(4).error().status, Status::kBusy);
  const auto again = ledger.take(2);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->first, second->first);
}

TEST(SlotLedger, random_takes_and_returns_sum_of_leases_and_free_is_the_pool) {
  constexpr std::uint32_t kSlots = 64;
  constexpr std::uint64_t kSeed = 20260101;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  SlotLedger ledger(kSlots);
  std::vector<SlotRun> held;
  for (int step = 0; step < 20'000; ++step) {
    if (random() % 2 == 0 || held.empty()) {
      if (const auto run = ledger.take(1u << (random() % 6))) held.push_back(*run);
    } else {
      const std::size_t victim = random() % held.size();
      ASSERT_TRUE(ledger.give_back(held[victim]));
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(victim));
    }
    std::vector<int> holders(kSlots, 0);
    for (const SlotRun& run : held) {
      for (std::uint32_t i = 0; i < run.count; ++i) ++holders.at(run.first + i);
    }
    std::uint32_t sum = 0;
    for (const int count : holders) {
      ASSERT_LE(count, 1) << "a slot has two holders at step " << step;
      sum += static_cast<std::uint32_t>(count);
    }
    ASSERT_EQ(sum, ledger.leased()) << "at step " << step;
    ASSERT_EQ(sum + ledger.free(), kSlots) << "at step " << step;
    ASSERT_TRUE(ledger.invariant_holds()) << "at step " << step;
  }
}

}  // namespace
}  // namespace gdx
