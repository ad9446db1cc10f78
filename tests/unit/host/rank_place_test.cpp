#include "host/programs/cli/rank_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "host/hca/hca.h"
#include "host/staging/staging_pool.h"
#include "host/topo/topology.h"

namespace gdx {
namespace rank_place_test {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class RankPlace : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : kVariables) unsetenv(name);
    auto read = read_topology(GDX_TOPOLOGIES "/two-sockets.xml");  // two GPUs near mlx5_0, one near mlx5_1
    ASSERT_TRUE(read) << read.error().message;
    machine_ = std::move(*read);
  }
  void TearDown() override {
    for (const char* name : kVariables) unsetenv(name);
  }

  static constexpr const char* kVariables[] = {kHcaVariable, kProcessesVariable, "CUDA_VISIBLE_DEVICES"};
  Topology machine_;
};

TEST_F(RankPlace, ranks_take_gpus_in_turn_and_the_nic_nearest_to_each) {
  const std::string order = "CUDA_DEVICE_ORDER=PCI_BUS_ID";
  const std::string first = "GDX_HCA=" + machine_.nics[0].os_name;
  const std::string second = "GDX_HCA=" + machine_.nics[1].os_name;
  EXPECT_NE(first, second);
  EXPECT_THAT(place_of_rank(machine_, 0, 4),
              ElementsAre(order, "CUDA_VISIBLE_DEVICES=0", first, "GDX_PROCESSES_PER_HCA=3"));
  EXPECT_THAT(place_of_rank(machine_, 1, 4),
              ElementsAre(order, "CUDA_VISIBLE_DEVICES=1", first, "GDX_PROCESSES_PER_HCA=3"));
  EXPECT_THAT(place_of_rank(machine_, 2, 4), ElementsAre(order, "CUDA_VISIBLE_DEVICES=2", second));
  EXPECT_THAT(place_of_rank(machine_, 3, 4),
              ElementsAre(order, "CUDA_VISIBLE_DEVICES=0", first, "GDX_PROCESSES_PER_HCA=3"));
  EXPECT_THAT(place_of_rank(machine_, 0, 1), ElementsAre(order, "CUDA_VISIBLE_DEVICES=0", first));
}

TEST_F(RankPlace, gpus_without_cuda_have_no_number) {
  machine_.gpus[0].runs_cuda = false;
  EXPECT_THAT(place_of_rank(machine_, 0, 2), Contains("CUDA_VISIBLE_DEVICES=0"));
  EXPECT_THAT(place_of_rank(machine_, 1, 2), Contains("CUDA_VISIBLE_DEVICES=1"));
}

TEST_F(RankPlace, what_the_user_has_chosen_stays) {
  setenv(kHcaVariable, "mlx5_7", 1);
  EXPECT_THAT(
      place_of_rank(machine_, 2, 4),
      ElementsAre("CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=2", "GDX_PROCESSES_PER_HCA=4"));
  unsetenv(kHcaVariable);
  setenv("CUDA_VISIBLE_DEVICES", "2", 1);
  EXPECT_THAT(place_of_rank(machine_, 0, 2), ElementsAre("GDX_PROCESSES_PER_HCA=2"));
  setenv(kProcessesVariable, "8", 1);
  EXPECT_THAT(place_of_rank(machine_, 0, 2), IsEmpty());
}

TEST_F(RankPlace, ranks_without_a_gpu_share_the_first_nic) {
  EXPECT_THAT(place_of_rank(Topology{}, 0, 1), IsEmpty());
  EXPECT_THAT(place_of_rank(Topology{}, 999, 1000), ElementsAre("GDX_PROCESSES_PER_HCA=256"));
}

TEST(ShareOfProcessors, is_of_neighbours_and_leaves_none_over) {
  const auto set_of = [](const std::vector<int>& processors) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int processor : processors) CPU_SET(processor, &set);
    return set;
  };
  const cpu_set_t all = set_of({1, 3, 4, 6, 9});
  const std::vector<std::vector<std::vector<int>>> shares = {{{1, 3, 4, 6, 9}},
                                                             {{1, 3}, {4, 6, 9}},
                                                             {{1}, {3, 4}, {6, 9}},
                                                             {{1}, {3}, {4}, {6, 9}},
                                                             {{1}, {3}, {4}, {6}, {9}}};
  for (const auto& of_ranks : shares) {
    for (std::uint32_t rank = 0; rank < of_ranks.size(); ++rank) {
      const auto share = share_of_processors(all, rank, static_cast<std::uint32_t>(of_ranks.size()));
      const cpu_set_t wanted = set_of(of_ranks[rank]);
      EXPECT_TRUE(share && CPU_EQUAL(&*share, &wanted)) << "rank " << rank << " of " << of_ranks.size();
    }
  }
  EXPECT_EQ(share_of_processors(all, 0, 6).error().message,
            "--pin: more ranks (6) than processors (5): leave it out, or start fewer ranks");
}

}  // namespace rank_place_test
}  // namespace gdx
