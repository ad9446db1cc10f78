// Teams whose ranks are threads of this process, all native to each other.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "host/team/team.h"
#include "tests/unit/host/loopback.h"

namespace gdx {
namespace team_test {

using test::kLongNs;
using test::LoopbackRoot;
using test::run_ranks;

inline constexpr std::uint64_t kHeapBytes = 64 << 10;
inline constexpr std::uint32_t kRanks = 4;

template <typename T>
T must(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(*result);
}

template <typename T>
std::string refusal(const Result<T>& result) {
  return result ? "done" : std::string(status_name(result.error().status)) + ": " + result.error().message;
}

class Teams : public ::testing::Test {
 protected:
  void SetUp() override {
    unsetenv(kDirectVariable);
    hca_ = std::make_unique<Hca>(must(Hca::open()));
  }
  Team make(World& world, TeamOptions options = {}) const {
    options.heap_bytes = kHeapBytes;
    options.timeout_ns = kLongNs;
    if (!options.endpoint.timeout_ns) options.endpoint.timeout_ns = kLongNs;
    if (!options.direct) options.direct = DirectChoice::kOff;
    return must(Team::create(*hca_, world, {}, options));
  }
  // Runs `body(world)` at every rank. World::barrier orders the ranks.
  template <typename Body>
  static void at_all_ranks(Body body) {
    const LoopbackRoot root;
    run_ranks(kRanks, [&](std::uint32_t rank) {
      World world = must(World::join(root.options(rank, kRanks)));
      body(world);
      EXPECT_TRUE(world.barrier(kLongNs));
    });
  }
  [[nodiscard]] const Hca& hca() const { return *hca_; }

 private:
  std::unique_ptr<Hca> hca_;
};

}  // namespace team_test
}  // namespace gdx
