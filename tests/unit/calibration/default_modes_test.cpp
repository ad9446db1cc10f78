// The defaults of `auto` against the model that they come from: no table that the same figures allow may be
// better.
#include <gtest/gtest.h>

#include <tuple>

#include "perf/modelled_modes.h"

namespace gdx {
namespace default_modes_test {

using DefaultModes = testing::TestWithParam<std::tuple<PathClass, Placement, DoorbellKind>>;

// Excess allowed: that of puts of 64 and 220 B, pulled on NODE and SYS for lack of another mode: 3.8 % each.
TEST_P(DefaultModes, cost_no_more_than_the_best_table_by_the_model) {
  const auto [path, queues, doorbell] = GetParam();
  for (const ModeMeans means : perf::kAllMeans) {
    const std::vector<MeasuredSize> sizes = perf::modelled_sizes(path, queues, means, doorbell);
    const ModeTable defaults = default_mode_table(path, queues, means, doorbell);
    const Result<ModeTable> best = best_table(sizes);
    ASSERT_TRUE(best) << best.error().message;
    EXPECT_LE(perf::excess_over(*best, defaults, sizes), 0.08)
        << describe(defaults) << "; by the model: " << describe(*best);
  }
}

INSTANTIATE_TEST_SUITE_P(ModeTable, DefaultModes,
                         testing::Combine(testing::ValuesIn(kPathClasses),
                                          testing::ValuesIn(perf::kPlacements),
                                          testing::ValuesIn(perf::kDoorbells)),
                         [](const auto& test) {
                           return std::string(name(std::get<0>(test.param))) +
                                  (std::get<1>(test.param) == Placement::kGpu ? "_gpu_" : "_host_") +
                                  std::string(name(std::get<2>(test.param)));
                         });

}  // namespace default_modes_test
}  // namespace gdx
