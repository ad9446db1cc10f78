#include "driver-shim/softhca/wire/faults.h"

#include <gtest/gtest.h>

#include <vector>

namespace gdx::softhca::wire {
namespace {

constexpr int kPackets = 100'000;

TEST(FaultInjector, no_probabilities_touch_nothing) {
  FaultInjector injector(FaultConfig{});
  EXPECT_FALSE(injector.active());
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(injector.next(100), Fault{});
}

TEST(FaultInjector, seeded_rates_come_out_as_configured) {
  FaultInjector injector(
      FaultConfig{.loss = 0.01, .corrupt = 0.02, .duplicate = 0.03, .reorder = 0.04, .seed = 7});
  EXPECT_TRUE(injector.active());
  int lost = 0, corrupt = 0, duplicate = 0, reorder = 0;
  for (int i = 0; i < kPackets; ++i) {
    const Fault fault = injector.next(40);
    lost += fault.lose;
    corrupt += fault.damage.corrupt_bit.has_value();
    duplicate += fault.duplicate;
    reorder += fault.hold_back;
    if (fault.damage.corrupt_bit) {
      EXPECT_LT(*fault.damage.corrupt_bit, 320u);
    }
    if (fault.lose) {
      EXPECT_EQ(fault, Fault{.lose = true});
    }
  }
  EXPECT_NEAR(lost, 0.01 * kPackets, 150);
  EXPECT_NEAR(corrupt, 0.02 * kPackets, 200);
  EXPECT_NEAR(duplicate, 0.03 * kPackets, 250);
  EXPECT_NEAR(reorder, 0.04 * kPackets, 300);
}

TEST(FaultInjector, same_seed_replays_and_another_differs) {
  const auto sequence = [](std::uint64_t seed) {
    FaultInjector injector(FaultConfig{.loss = 0.5, .corrupt = 0.5, .seed = seed});
    std::vector<Fault> faults;
    for (int i = 0; i < 64; ++i) faults.push_back(injector.next(100));
    return faults;
  };
  EXPECT_EQ(sequence(3), sequence(3));
  EXPECT_NE(sequence(3), sequence(4));
}

}  // namespace
}  // namespace gdx::softhca::wire
