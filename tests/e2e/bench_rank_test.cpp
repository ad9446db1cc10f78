// The two ranks of `gdx bench`, which `gdx run --ranks 2` starts. The driver shows the NIC's memory to the
// GPU in some tests, and not in others.
#include "host/bench/rank.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/bench/conditions.h"
#include "tests/e2e/must.h"

namespace gdx::bench {
namespace {

using ::testing::HasSubstr;

constexpr char kPeerMapping[] = "GDX_FAKE_CUDA_PEER_MAPPING";
constexpr std::uint64_t kMessages = 32;
constexpr std::uint64_t kLongNs = 60'000'000'000;

class BenchRank : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    joined = std::make_unique<World>(must(World::join(must(WorldOptions::from_environment()))));
  }
  static void TearDownTestSuite() { joined.reset(); }
  void TearDown() override { unsetenv(kPeerMapping); }

  static Result<Rank> connect(const Plan& plan, const std::vector<Case>& cases) {
    const Gpu gpu = must(Gpu::open());
    return Rank::connect(must(Hca::open()), {.kernels = &gpu}, *joined, plan, cases);
  }
  // Runs each case that can run. Returns how many did.
  static int run_all(Rank& rank, const std::vector<Case>& cases) {
    int count = 0;
    for (const Case& item : cases) {
      if (!rank.can_run(item)) continue;
      ++count;
      const Sample sample = must(rank.run(*joined, item, kMessages, false));
      EXPECT_EQ(sample.messages, kMessages) << key_of(item);
      EXPECT_EQ(sample.bad_bytes + sample.dropped_bad_bytes, 0u) << key_of(item);
    }
    return count;
  }

  // Sum of both ranks' HCAs since they were opened.
  static std::uint64_t sent_again(const Rank& rank) {
    const std::uint64_t mine = must(rank.hca().counter("softhca_retransmitted_packets"));
    const auto both = must(joined->allgather_value(mine, kLongNs));
    return both[0] + both[1];
  }
  static std::uint64_t sent_again_in(Rank& rank, const Case& item) {
    return must(rank.run(*joined, item, kMessages, false)).retransmissions;
  }

  // Latency, because beside bandwidth a sampler reads counters that the kernel stores plainly.
  static Plan puts(std::vector<std::string> ways) {
    Plan plan;
    plan.tests = {"put_lat"};
    plan.ways = std::move(ways);
    plan.sizes_bytes = {64};
    return plan;
  }

 private:
  static inline std::unique_ptr<World> joined;
};

TEST_F(BenchRank, gpu_that_is_shown_the_memory_of_the_nic_pushes) {
  const Plan plan = puts({"pull", "push", "inline", "bounce", "auto"});
  const auto cases = must(cases_of(plan));
  Rank rank = must(connect(plan, cases));
  EXPECT_EQ(rank.push_refusal(), "");
  EXPECT_FALSE(read_conditions(rank, {}).contains("push"));
  EXPECT_EQ(run_all(rank, cases), 5);
}

TEST_F(BenchRank, packets_sent_again_count_in_one_case_each) {
  Plan plan = puts({"pull"});
  plan.sizes_bytes = {1 << 16};
  const auto cases = must(cases_of(plan));
  Rank rank = must(connect(plan, cases));
  const std::uint64_t before = sent_again(rank);
  const std::uint64_t first = sent_again_in(rank, cases[0]);
  const std::uint64_t second = sent_again_in(rank, cases[0]);
  EXPECT_GT(first, 0u);
  EXPECT_LE(first + second, sent_again(rank) - before);
}

TEST_F(BenchRank, push_that_is_refused_is_left_out_and_the_rest_is_measured) {
  setenv(kPeerMapping, "0", 1);
  const Plan plan = puts({"pull", "push", "inline", "bounce", "auto"});
  const auto cases = must(cases_of(plan));
  Rank rank = must(connect(plan, cases));
  EXPECT_THAT(rank.push_refusal(), HasSubstr("PeerMappingOverride"));
  EXPECT_EQ(read_conditions(rank, {}).at("push"), "not measured: " + rank.push_refusal());
  EXPECT_EQ(run_all(rank, cases), 4);
}

TEST_F(BenchRank, push_that_one_rank_refuses_is_left_out_at_both) {
  if (std::string_view(std::getenv(kRankVariable)) == "1") setenv(kPeerMapping, "0", 1);
  const Plan plan = puts({"push", "pull"});
  const auto cases = must(cases_of(plan));
  Rank rank = must(connect(plan, cases));
  EXPECT_THAT(rank.push_refusal(),
              HasSubstr(std::getenv(kPeerMapping) != nullptr ? "PeerMappingOverride"
                                                             : "the kernels of rank 1 cannot push"));
  EXPECT_EQ(run_all(rank, cases), 1);
}

TEST_F(BenchRank, plan_of_pushes_alone_fails_with_the_reason_of_their_refusal) {
  setenv(kPeerMapping, "0", 1);
  const Plan plan = puts({"push"});
  const auto rank = connect(plan, must(cases_of(plan)));
  ASSERT_FALSE(rank);
  EXPECT_EQ(rank.error().status, Status::kUnsupported);
  EXPECT_THAT(rank.error().message, HasSubstr("PeerMappingOverride"));
}

}  // namespace
}  // namespace gdx::bench
