#include "driver-shim/softhca/wire/faults.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace gdx::softhca::wire {
namespace faults_test {

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

// Draws of 0 and 1 are never and always; each alone makes the injector active, and marks have their own seed.
TEST(FaultInjector, each_probability_alone_makes_its_own_fault) {
  double FaultConfig::*const all[] = {&FaultConfig::loss, &FaultConfig::corrupt, &FaultConfig::duplicate,
                                      &FaultConfig::reorder, &FaultConfig::mark};
  for (double FaultConfig::*const one : all) {
    FaultConfig config;
    config.*one = 1;
    FaultInjector injector(config);
    EXPECT_TRUE(injector.active());
    for (int i = 0; i < 100; ++i) {
      const Fault fault = injector.next(10);
      EXPECT_EQ(fault.lose, one == &FaultConfig::loss);
      EXPECT_EQ(fault.damage.corrupt_bit.has_value(), one == &FaultConfig::corrupt);
      EXPECT_EQ(fault.duplicate, one == &FaultConfig::duplicate);
      EXPECT_EQ(fault.hold_back, one == &FaultConfig::reorder);
      EXPECT_EQ(fault.damage.mark, one == &FaultConfig::mark);
    }
  }
}

// Damage may hit the ICRC behind the body. A held packet keeps its destination, and is neither marked nor
// damaged.
TEST(FaultStage, damage_reaches_the_icrc_and_a_held_packet_goes_where_it_was_sent) {
  const std::vector<std::byte> body(2, std::byte{7});
  WireCounters counters;
  std::size_t highest_bit = 0;
  FaultStage corrupting(FaultConfig{.corrupt = 1});
  for (int i = 0; i < 300; ++i) {
    corrupting.pass(Address{}, body, counters,
                    [&](const Address&, std::span<const std::byte>, const Damage& damage) {
                      highest_bit = std::max(highest_bit, damage.corrupt_bit.value_or(0));
                    });
  }
  EXPECT_EQ(highest_bit, 8u * 6 - 1);
  EXPECT_EQ(counters.faults_corrupted, 300u);
  FaultStage holding(FaultConfig{.duplicate = 1, .reorder = 1, .mark = 1});
  std::vector<std::pair<std::uint32_t, bool>> left;
  const auto note = [&](const Address& to, std::span<const std::byte> bytes, const Damage& damage) {
    left.emplace_back(to.ipv4_host_order(), damage.mark);
    EXPECT_EQ(std::vector(bytes.begin(), bytes.end()), body);
  };
  for (std::uint32_t to = 1; to <= 3; ++to) holding.pass(Address::ipv4(to), body, counters, note);
  EXPECT_EQ(left, (std::vector<std::pair<std::uint32_t, bool>>{{2, true}, {2, false}, {1, false}}));
  holding.flush(note);
  holding.flush(note);
  EXPECT_EQ(left.size(), 4u);
  EXPECT_EQ(left.back(), std::pair(3u, false));
  EXPECT_EQ(counters.faults_marked, 1u);
  EXPECT_EQ(counters.faults_lost, 0u);
}

}  // namespace faults_test
}  // namespace gdx::softhca::wire
