// The order of RDMA devices by their distance from a GPU or from processors, on stored machines.
#include "host/topo/nearest_nic.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <string>
#include <vector>

namespace gdx {
namespace nearest_nic_test {

using testing::ElementsAre;

const Topology& machine() {
  static const auto read = read_topology(GDX_TOPOLOGIES "/two-gpus-three-hcas.xml");
  return *read;
}

std::vector<std::string> ranked(const Place& place, const std::vector<std::string>& names,
                                std::uint32_t rank = 0) {
  std::vector<std::string> lines;
  for (const RankedNic& one : rank_nics(machine(), place, names, rank))
    lines.push_back(fmt::format("{} {}", one.name, one.why));
  return lines;
}

TEST(NearestNic, nearest_to_the_gpu_is_first_and_the_unknown_last) {
  EXPECT_THAT(ranked({.gpu = "0000:F0:00.0"}, {"rxe0", "gdx0", "gdx1"}),
              ElementsAre("gdx1 as the nearest that serves: PIX from GPU 0000:f0:00.0",
                          "gdx0 as the nearest that serves: SYS from GPU 0000:f0:00.0",
                          "rxe0 as the first that serves: its distance from GPU 0000:f0:00.0 is not known"));
  EXPECT_THAT(ranked({.gpu = "0000:f1:00.0"}, {"gdx1", "gdx0"}),
              ElementsAre("gdx0 as the nearest that serves: PHB from GPU 0000:f1:00.0",
                          "gdx1 as the nearest that serves: SYS from GPU 0000:f1:00.0"));
}

TEST(NearestNic, nearest_to_any_of_the_processors_is_first_without_a_gpu) {
  EXPECT_THAT(ranked({.processors = {0}}, {"gdx0", "gdx1"}),
              ElementsAre("gdx1 as the nearest that serves: NODE from processors 0",
                          "gdx0 as the nearest that serves: SYS from processors 0"));
  EXPECT_THAT(ranked({.processors = {1, 7}}, {"gdx1", "gdx0"}),
              ElementsAre("gdx0 as the nearest that serves: NODE from processors 1,7",
                          "gdx1 as the nearest that serves: SYS from processors 1,7"));
  EXPECT_THAT(
      ranked({.processors = {0, 1, 2, 5, 6, 8}}, {"gdx1", "gdx0"}),
      ElementsAre(
          "gdx1 as the nearest that serves: NODE from processors 0-2,5-6,8, one of 2 such, by rank 0",
          "gdx0 as the nearest that serves: NODE from processors 0-2,5-6,8, one of 2 such, by rank 0"));
  EXPECT_THAT(ranked({}, {"gdx0"}),
              ElementsAre("gdx0 as the first that serves: its distance from the processors is not known"));
}

TEST(NearestNic, ranks_begin_with_different_ones_of_those_at_one_distance) {
  const auto order = [](std::uint32_t rank) {
    std::string text;
    for (const RankedNic& one : rank_nics(machine(), {.gpu = "0000:f1:00.0"},
                                          {"rxe0", "gdx0", "gdx1", "gdx2", "rxe1", "rxe2"}, rank))
      text += one.name + " ";
    return text;
  };
  EXPECT_EQ(order(0), "gdx0 gdx2 gdx1 rxe0 rxe1 rxe2 ");
  EXPECT_EQ(order(1), "gdx2 gdx0 gdx1 rxe1 rxe2 rxe0 ");
  EXPECT_EQ(order(2), "gdx0 gdx2 gdx1 rxe2 rxe0 rxe1 ");
  EXPECT_EQ(order(0xffffffff), "gdx2 gdx0 gdx1 rxe0 rxe1 rxe2 ");
}

TEST(NearestNic, processors_are_those_of_this_thread) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  const auto all = allowed_processors();
  EXPECT_EQ(all.size(), static_cast<std::size_t>(CPU_COUNT(&before)));
  cpu_set_t last;
  CPU_ZERO(&last);
  CPU_SET(all.back(), &last);
  ASSERT_EQ(sched_setaffinity(0, sizeof last, &last), 0);
  EXPECT_THAT(allowed_processors(), ElementsAre(all.back()));
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

}  // namespace nearest_nic_test
}  // namespace gdx
