// The HCA that a program gets which names none, on a fabricated machine: gdx1 at a switch with GPU 0, gdx0
// and gdx2 at GPU 1 on the other socket. The GPUs are the fake driver's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>

#include "driver-shim/cuda/driver.h"
#include "host/gpu/gpu.h"
#include "host/hca/hca.h"
#include "host/team/team.h"
#include "host/topo/nearest_nic.h"
#include "tests/unit/host/loopback.h"
#include "tests/unit/host/own_gdxd.h"

namespace gdx {
namespace nearest_hca_test {

using ::testing::HasSubstr;

template <typename T>
T must(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(*result);
}

std::string chosen(const HcaOptions& options = {}) {
  const auto hca = Hca::open(options);
  return hca ? hca->name() + " " + hca->chosen() : hca.error().message;
}

class NearestHca : public ::testing::Test {
 protected:
  void SetUp() override { unsetenv(kHcaVariable); }
  void TearDown() override { unsetenv(kHcaVariable); }
};

// Goes first, because later tests load the driver.
TEST_F(NearestHca, is_near_the_processors_in_a_process_without_cuda) {
  ASSERT_EQ(cuda::loaded_driver(), nullptr);
  for (const std::uint32_t rank : {0u, 1u}) {
    const auto ranked = rank_nics(this_machine(), {.processors = allowed_processors()}, *list_hcas(), rank);
    EXPECT_EQ(chosen({.rank = rank}), ranked.front().name + " " + ranked.front().why);
    EXPECT_THAT(ranked.front().why, HasSubstr(" from processors "));
  }
  EXPECT_EQ(cuda::loaded_driver(), nullptr) << "whoever has no kernels for it needs no driver";
}

TEST_F(NearestHca, is_near_the_gpu_of_the_current_context_or_else_near_gpu_0) {
  const std::string near_0 = "gdx1 as the nearest that serves: PIX from GPU 0000:f0:00.0";
  const std::string near_1 =
      "gdx0 as the nearest that serves: PHB from GPU 0000:f1:00.0, one of 2 such, by rank 0";
  const Gpu gpu = must(Gpu::open(1));
  EXPECT_EQ(chosen(), near_0);
  EXPECT_EQ(chosen({.gpu = 1}), near_1);
  EXPECT_EQ(gpu.run([&] {
    EXPECT_EQ(chosen(), near_1);
    EXPECT_EQ(chosen({.gpu = 0}), near_0) << "a number goes before the context";
    return CUDA_SUCCESS;
  }),
            CUDA_SUCCESS);
  EXPECT_EQ(chosen(), near_0);
}

TEST_F(NearestHca, named_goes_before_the_nearest) {
  EXPECT_EQ(chosen({.name = "gdx2", .gpu = 0}), "gdx2 by the program");
  setenv(kHcaVariable, "gdx0", 1);
  EXPECT_EQ(chosen({.gpu = 0}), "gdx0 by GDX_HCA");
  EXPECT_EQ(chosen({.name = "gdx2", .gpu = 0}), "gdx2 by the program");
}

TEST_F(NearestHca, is_told_in_the_log) {
  testing::internal::CaptureStderr();
  EXPECT_TRUE(Hca::open({.gpu = 0}));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("HCA gdx1: chosen as the nearest that serves: PIX from GPU 0000:f0:00.0\n"));
  testing::internal::CaptureStderr();
  EXPECT_TRUE(Hca::open({.name = "gdx0"}));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "the program has chosen it";
}

TEST_F(NearestHca, is_asked_for_of_gdxd_too) {
  const test::OwnGdxd gdxd;
  for (const int gpu : {0, 1}) {
    const Hca hca = must(Hca::open({.gpu = gpu}));
    EXPECT_NE(hca.daemon(), nullptr);
    EXPECT_EQ(hca.name() + " " + hca.chosen(), chosen({.in_this_process = true, .gpu = gpu}));
  }
  EXPECT_THAT(chosen({.name = "gdx7"}), HasSubstr("no HCA named gdx7"));
}

// Ranks take gdx0 and gdx2, which are equally near to GPU 1.
TEST_F(NearestHca, of_a_teams_ranks_differ_where_several_are_equally_near) {
  const test::LoopbackRoot root;
  testing::internal::CaptureStderr();
  test::run_ranks(2, [&](std::uint32_t rank) {
    const TeamOptions options{
        .heap_bytes = kMinTeamHeapBytes, .world = root.options(rank, 2), .hca = {.gpu = 1}};
    Team team = must(Team::create(options));
    EXPECT_TRUE(team.close());
  });
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_THAT(told, HasSubstr("HCA gdx0: chosen as the nearest that serves: PHB from GPU 0000:f1:00.0, "
                              "one of 2 such, by rank 0\n"));
  EXPECT_THAT(told, HasSubstr("HCA gdx2: chosen as the nearest that serves: PHB from GPU 0000:f1:00.0, "
                              "one of 2 such, by rank 1\n"));
}

TEST_F(NearestHca, of_a_team_is_near_its_gpu) {
  testing::internal::CaptureStderr();
  Team team = must(Team::create({.heap_bytes = kMinTeamHeapBytes, .gpu = 1}));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("HCA gdx0: chosen as the nearest"));
}

}  // namespace nearest_hca_test
}  // namespace gdx
