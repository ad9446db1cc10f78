// The probe of two HCAs, on three software HCAs of which the second is on a rail of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "host/programs/doctor/machine.h"

namespace gdx::doctor {
namespace reachability_test {

using ::testing::HasSubstr;

TEST(Reachability, put_arrives_on_a_rail_and_not_between_rails) {
  const Probes probes = live_probes();
  for (const auto& [from, to] :
       {std::pair{"gdx0", "gdx2"}, std::pair{"gdx2", "gdx0"}, std::pair{"gdx1", "gdx1"}}) {
    const auto put = probes.put(from, to);
    ASSERT_TRUE(put) << put.error().message;
    EXPECT_EQ(*put, "") << from << " to " << to;
  }
  for (const auto& [from, to] : {std::pair{"gdx0", "gdx1"}, std::pair{"gdx1", "gdx2"}}) {
    const auto put = probes.put(from, to);
    ASSERT_TRUE(put) << put.error().message;
    EXPECT_THAT(*put, HasSubstr("syndrome 0x15")) << from << " to " << to;
  }
  EXPECT_FALSE(probes.put("gdx0", "mlx5_77")) << "no such HCA";
}

}  // namespace reachability_test
}  // namespace gdx::doctor
