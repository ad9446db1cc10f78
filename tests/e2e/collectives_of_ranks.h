// Ranks that make collective calls in kernels, each by the ways of a parameter.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "device/collectives/collectives.h"
#include "host/gdx.h"
#include "tests/e2e/must.h"

namespace gdx::collectives_test {

enum class Ways { kNic, kDirect, kMixed };

// Has a block's threads in each launch, so that a scope of any width fits.
inline constexpr unsigned kThreads = 64;

// Sizes in elements: fewer than ranks, odd, above the scratch of a direct all-reduce, of several chunks.
inline constexpr std::size_t kCounts[] = {1, 7, 1000, 70'001};
inline constexpr std::size_t kMostCount = 70'001;

class Collectives : public ::testing::TestWithParam<Ways> {
 protected:
  Collectives() : team_(made(GetParam())) {}

  static Team made(Ways ways) {
    TeamOptions options;
    options.heap_bytes = 16 << 20;
    options.lanes = 2;
    options.timeout_ns = 200'000'000'000;
    const auto world = must(WorldOptions::from_environment());
    const bool off = ways == Ways::kNic || (ways == Ways::kMixed && world.rank == 0);
    options.direct = off ? DirectChoice::kOff : DirectChoice::kAuto;
    return must(Team::create(options));
  }

  // Runs `call(team)` in all threads of a block; of scope kThread in one thread.
  template <Scope S, typename Call>
  void in_kernel(const Call& call) {
    in_kernel_of<S>(team_, call);
  }
  template <Scope S, typename Call>
  static void in_kernel_of(const Team& of, const Call& call) {
    std::vector<Status> ends(kThreads, Status::kOk);
    const auto kernel = [&](const TeamHandle& team) {
      const auto thread = exec::thread_rank<Scope::kBlock>();
      if (S == Scope::kBlock || thread < (S == Scope::kWarp ? 32u : 1u)) ends[thread] = call(team);
    };
    ASSERT_EQ(exec::launch({.block = {kThreads}}, kernel, of.handle()), Status::kOk);
    for (const Status end : ends) ASSERT_EQ(end, Status::kOk) << of.describe_fault();
  }

  [[nodiscard]] std::uint64_t value(std::uint32_t rank, std::size_t i) const {
    return (rank + 1) * 1'000'003ull + i * 7 + round_;
  }
  template <typename T>
  T* allocate(std::size_t count) {
    return must(team_.allocate<T>(count));
  }

  Team team_;
  std::uint64_t round_ = 0;
};

inline std::string name_of(const ::testing::TestParamInfo<Ways>& test) {
  switch (test.param) {
    case Ways::kNic: return "nic";
    case Ways::kDirect: return "direct";
    case Ways::kMixed: return "mixed";
  }
  return "";
}

}  // namespace gdx::collectives_test
