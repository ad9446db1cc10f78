// The defaults of `auto` against the model that they come from: no table that the same figures allow may be
// better.
#include <gtest/gtest.h>

#include <cmath>

#include "driver-shim/pcie/world/measure.h"
#include "host/calibration/mode_table.h"
#include "host/calibration/thresholds.h"

namespace gdx {
namespace {

constexpr std::uint64_t kSizesBytes[] = {8,    28,    64,    220,   512,    1024,   2048,   4096,
                                         8192, 16384, 32768, 65536, 131072, 262144, 524288, 2097152};
constexpr ModeMeans kMeans[] = {{true, true}, {true, false}, {false, true}, {false, false}};

// What papers/push-vs-pull/PATH-host.txt says: put and completion, production's doorbells.
std::vector<MeasuredSize> modelled(PathClass path, ModeMeans means) {
  pcie::WorldConfig world;
  world.path = path;
  std::vector<MeasuredSize> sizes;
  for (const std::uint64_t bytes : kSizesBytes) {
    const auto ns = [&](pcie::Mode mode, bool possible) -> std::optional<double> {
      if (!possible) return std::nullopt;
      return pcie::measure_latency(world, mode, bytes).completed_ns;
    };
    sizes.push_back(
        {bytes,
         {ns(pcie::Mode::kInline, bytes <= kMaxAutoInlineBytes), ns(pcie::Mode::kPush, means.push),
          ns(pcie::Mode::kPull, true), ns(pcie::Mode::kGpuBounce, means.bounce)}});
  }
  return sizes;
}

double ns_by(const ModeTable& table, const MeasuredSize& size) {
  const auto of = [&](TableMode mode) { return size.ns[static_cast<std::size_t>(mode)].value_or(HUGE_VAL); };
  if (size.bytes <= table.inline_bytes) return of(TableMode::kInline);
  if (size.bytes <= table.push_bytes) return of(TableMode::kPush);
  return of(size.bytes <= table.pull_bytes ? TableMode::kPull : TableMode::kBounce);
}

using DefaultModes = testing::TestWithParam<PathClass>;

// By as much as puts of 64 and 220 B that are pulled on NODE and SYS where nothing else is there: 3.8 % each.
TEST_P(DefaultModes, cost_no_more_than_the_best_table_by_the_model) {
  for (const ModeMeans means : kMeans) {
    const std::vector<MeasuredSize> sizes = modelled(GetParam(), means);
    const ModeTable defaults = default_mode_table(GetParam(), means);
    const Result<ModeTable> best = best_table(sizes);
    ASSERT_TRUE(best) << best.error().message;
    double excess = 0;
    for (const MeasuredSize& size : sizes) excess += std::log(ns_by(defaults, size) / ns_by(*best, size));
    EXPECT_LE(excess, 0.08) << describe(defaults) << "; by the model: " << describe(*best);
  }
}

INSTANTIATE_TEST_SUITE_P(ModeTable, DefaultModes, testing::ValuesIn(kPathClasses),
                         [](const auto& test) { return std::string(name(test.param)); });

}  // namespace
}  // namespace gdx
