// A team of many ranks, each a process, of which kernels use few pairs. All hosts wait for their kernels
// while the pairs connect.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <utility>

#include "device/team.h"
#include "host/staging/progress.h"
#include "host/team/team.h"
#include "tests/e2e/must.h"

namespace gdx {
namespace sparse_team_test {

constexpr std::uint64_t kTimeoutNs = 200'000'000'000;
constexpr std::array<std::uint32_t, 2> kSteps = {1, 7};

TEST(SparseTeam, only_used_pairs_connect_while_every_host_waits_for_its_kernel) {
  const Hca hca = must(Hca::open());
  World world = must(World::join(must(WorldOptions::from_environment())));
  ASSERT_GE(world.size(), 15u) << "the pairs are to differ";
  Team team = must(Team::create(hca, world, {},
                                {.heap_bytes = 64 << 10,
                                 .endpoint = {.send_queue_blocks = 64, .timeout_ns = kTimeoutNs},
                                 .direct = DirectChoice::kOff,
                                 .timeout_ns = kTimeoutNs}));
  auto* const signals = must(team.allocate<std::uint64_t>(kSteps.size()));
  EXPECT_EQ(team.connections(), 0u);
  ASSERT_TRUE(team.barrier()) << "no rank connects before all have counted";

  const std::uint32_t size = team.size();
  std::array<Status, kSteps.size()> ends = {Status::kPending, Status::kPending};
  const auto kernel = [&](const TeamHandle& handle) {
    const std::uint32_t i = threadIdx.x;
    const std::uint32_t to = (handle.rank + kSteps[i]) % size;
    const std::uint32_t from = (handle.rank + size - kSteps[i]) % size;
    ends[i] = gdx_signal(handle, signals + i, 1, SignalOp::kAdd, to);
    if (ends[i] == Status::kOk) ends[i] = gdx_wait(handle, signals + i, Compare::kGreaterEqual, 1, from);
  };
  const exec::LaunchConfig config{
      .grid = {1}, .block = {static_cast<unsigned>(kSteps.size())}, .progress = progress};
  ASSERT_EQ(exec::launch(config, kernel, team.handle()), Status::kOk);
  for (const Status end : ends) EXPECT_EQ(end, Status::kOk) << team.describe_fault();

  const auto counts = must(world.allgather_value(team.connections(), kTimeoutNs));
  EXPECT_EQ(counts[team.rank()], 2 * kSteps.size());
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0u), 2 * kSteps.size() * size);
  for (std::size_t i = 0; i < kSteps.size(); ++i) {
    EXPECT_EQ(std::atomic_ref(signals[i]).load(), 1u);
    for (const std::uint32_t used :
         {(team.rank() + kSteps[i]) % size, (team.rank() + size - kSteps[i]) % size}) {
      const auto connected = team.connect(used);
      EXPECT_TRUE(connected) << connected.error().message;
    }
  }
  EXPECT_EQ(team.connections(), 2 * kSteps.size()) << "these were connected before";
  const auto closed = team.close();
  EXPECT_TRUE(closed) << closed.error().message;
}

}  // namespace sparse_team_test
}  // namespace gdx
