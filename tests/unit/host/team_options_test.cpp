// Checks of a team without an HCA: its options, and the agreement of its ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "host/team/agreement.h"
#include "host/team/team_options.h"
#include "tests/unit/host/loopback.h"

namespace gdx {
namespace team_options_test {

using team::agree;
using team::Call;
using team::Statement;
using test::kLongNs;
using test::LoopbackRoot;
using test::run_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(TeamOptions, impossible_value_is_refused_with_its_range) {
  struct Case {
    TeamOptions options;
    const char* message;
  };
  const Case cases[] = {
      {{.heap_bytes = 4095}, "heap_bytes = 4095: use 4096 to 1099511627776"},
      {{.heap_bytes = kMaxTeamHeapBytes + 1}, "heap_bytes = 1099511627777"},
      {{.lanes = 0}, "lanes = 0: use 1 to 64"},
      {{.lanes = 65}, "lanes = 65: use 1 to 64"},
      {{.heap_memory = HeapMemory::kGpu}, "heap_memory = gpu: say with option gpu"},
      {{.gpu = -1}, "gpu = -1"},
      {{.endpoint = {.send_queue_blocks = 32}}, "send_queue_blocks = 32: use at least 64"},
      {{.endpoint = {.placement = Placement::kGpu}}, "option gpu"},
      {{.gpu = 0, .endpoint = {.placement = Placement::kGpu}}, "heap_memory = gpu"},
      {{.timeout_ns = 0}, "timeout_ns = 0: use 1 to 3600000000000"},
      {{.timeout_ns = kMaxWaitNs + 1}, "timeout_ns = 3600000000001"},
  };
  for (const Case& c : cases) {
    const auto refused = resolve_team_options(c.options, true, LinkLayer::kEthernet);
    ASSERT_FALSE(refused) << c.message;
    EXPECT_EQ(refused.error().status, Status::kInvalidArgument);
    EXPECT_THAT(refused.error().message, HasSubstr(c.message));
    EXPECT_EQ(refused.error().message.find('\n'), std::string::npos);
  }
}

TEST(TeamOptions, every_value_is_set_and_endpoints_are_shared) {
  const auto usual = resolve_team_options({.endpoint = {.slot_count = 3}}, true, LinkLayer::kEthernet);
  ASSERT_TRUE(usual) << usual.error().message;
  EXPECT_EQ(usual->endpoint.sharing, Sharing::kShared);
  EXPECT_EQ(usual->endpoint.send_queue_blocks, 128u);
  EXPECT_EQ(usual->endpoint.timeout_ns, 5'000'000'000u);
  EXPECT_EQ(usual->direct, DirectChoice::kAuto);
  const auto in_gpu = resolve_team_options(
      {.heap_memory = HeapMemory::kGpu, .gpu = 0, .endpoint = {.placement = Placement::kGpu}}, true,
      LinkLayer::kEthernet);
  ASSERT_TRUE(in_gpu) << in_gpu.error().message;
  EXPECT_EQ(in_gpu->endpoint.placement, Placement::kGpu);
}

TEST(TeamOptions, bad_variable_is_refused) {
  ASSERT_EQ(setenv(kDirectVariable, "perhaps", 1), 0);
  const auto refused = resolve_team_options({}, true, LinkLayer::kEthernet);
  EXPECT_TRUE(resolve_team_options({.direct = DirectChoice::kOff}, true, LinkLayer::kEthernet));
  unsetenv(kDirectVariable);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("GDX_DIRECT is 'perhaps'"));
}

// Runs `body(world)` at three ranks.
template <typename Body>
void at_three_ranks(Body body) {
  const LoopbackRoot root;
  run_ranks(3, [&](std::uint32_t rank) {
    auto world = World::join(root.options(rank, 3));
    ASSERT_TRUE(world) << world.error().message;
    body(*world);
  });
}

TEST(TeamAgreement, equal_statements_come_back_from_every_rank) {
  at_three_ranks([](World& world) {
    const Statement mine{.call = Call::kSplit, .own = {world.rank() + 10, 7}};
    const auto all = agree(world, mine, {}, kLongNs);
    ASSERT_TRUE(all) << all.error().message;
    ASSERT_EQ(all->size(), 3u);
    for (std::uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ((*all)[rank].own[0], rank + 10);
  });
}

TEST(TeamAgreement, rank_that_differs_is_named_at_every_rank) {
  at_three_ranks([](World& world) {
    const std::uint64_t bytes = world.rank() == 2 ? 64 : 32;
    const auto all = agree(world, {.call = Call::kAllocate, .arguments = {bytes, 8}}, {}, kLongNs);
    ASSERT_FALSE(all);
    EXPECT_EQ(all.error().status, Status::kInvalidArgument);
    EXPECT_THAT(all.error().message, AllOf(HasSubstr("rank 2: allocate of 64 bytes aligned to 8"),
                                           HasSubstr("rank 0: allocate of 32 bytes")));
    const auto other = agree(world, {.call = world.rank() == 1 ? Call::kBarrier : Call::kClose}, {}, kLongNs);
    ASSERT_FALSE(other);
    EXPECT_THAT(other.error().message, AllOf(HasSubstr("rank 1: barrier"), HasSubstr("rank 0: close")));
    EXPECT_TRUE(agree(world, {.call = Call::kBarrier}, {}, kLongNs)) << "the world goes on";
  });
}

TEST(TeamAgreement, rank_that_means_another_team_is_named_at_every_rank) {
  at_three_ranks([](World& world) {
    const std::uint64_t team = world.rank() == 1 ? 2 : 1;
    const auto all = agree(world, {.call = Call::kClose, .team = team}, {}, kLongNs);
    ASSERT_FALSE(all);
    EXPECT_EQ(all.error().status, Status::kInvalidArgument);
    EXPECT_THAT(all.error().message,
                AllOf(HasSubstr("rank 1: close (team 2)"), HasSubstr("rank 0: close (team 1)")));
  });
}

TEST(TeamAgreement, failure_of_one_rank_reaches_the_others_with_its_reason) {
  at_three_ranks([](World& world) {
    Result<void> done;
    if (world.rank() == 1) done = fail(Status::kNoMemory, std::string(400, 'x') + '\n');
    const auto all = agree(world, {.call = Call::kRest}, done, kLongNs);
    ASSERT_FALSE(all);
    EXPECT_EQ(all.error().status, Status::kNoMemory);
    const std::size_t most = sizeof Statement::reason - 1;
    EXPECT_EQ(all.error().message,
              world.rank() == 1 ? done.error().message : "rank 1: " + std::string(most, 'x'));
  });
}

}  // namespace team_options_test
}  // namespace gdx
