// The ranks of the team tests, which `gdx run --ranks N` starts: all run the same tests in the same order.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "device/endpoint.h"
#include "device/team.h"
#include "host/gpu/gpu.h"
#include "host/staging/progress.h"
#include "host/team/team.h"
#include "tests/e2e/must.h"

namespace gdx {

using ::testing::AllOf;
using ::testing::HasSubstr;

inline constexpr std::uint64_t kHeapBytes = 1 << 20;
// Of collective calls, so that a rank may stand still for long.
inline constexpr std::uint64_t kPatienceNs = 200'000'000'000;

// Returns a word that a NIC or another process has written.
inline std::uint64_t arrived(std::uint64_t& word) { return std::atomic_ref(word).load(); }

class TeamOfRanks : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    hca = std::make_unique<Hca>(must(Hca::open()));
    joined = std::make_unique<World>(must(World::join(must(WorldOptions::from_environment()))));
    nic_pool = std::make_unique<StagingPool>(must(StagingPool::create(*hca)));
    host_pool =
        std::make_unique<StagingPool>(must(StagingPool::create(*hca, StagingOptions::in_host_memory())));
  }
  static void TearDownTestSuite() {
    host_pool.reset();
    nic_pool.reset();
    joined.reset();
    hca.reset();
  }
  static World& world() { return *joined; }
  static const Hca& hca_of() { return *hca; }
  static std::uint32_t last() { return world().size() - 1; }
  // Ends waits for another rank's kernel. False, and a failure with the reason, once a rank has gone.
  static bool all_here() {
    const auto here = world().poll_peers();
    EXPECT_TRUE(here) << here.error().message;
    return here.has_value();
  }
  static Result<Team> create(TeamOptions options) {
    if (options.timeout_ns == TeamOptions{}.timeout_ns) options.timeout_ns = kPatienceNs;
    options.heap_bytes = options.heap_bytes == TeamOptions{}.heap_bytes ? kHeapBytes : options.heap_bytes;
    return Team::create(*hca, world(), {nic_pool.get(), host_pool.get()}, options);
  }
  static Team made(const TeamOptions& options = {}) { return must(create(options)); }
  static Team connected(TeamOptions options = {}) {
    options.connect_all = true;
    return made(options);
  }
  template <typename Kernel>
  static void launch(const Team& team, Kernel kernel, unsigned threads = 1) {
    const exec::LaunchConfig config{.grid = {1}, .block = {threads}, .progress = progress};
    ASSERT_EQ(exec::launch(config, kernel, team.handle()), Status::kOk);
  }

 private:
  inline static std::unique_ptr<Hca> hca;
  inline static std::unique_ptr<World> joined;
  inline static std::unique_ptr<StagingPool> nic_pool;
  inline static std::unique_ptr<StagingPool> host_pool;
};

}  // namespace gdx
