#include "perf/modelled_modes.h"

#include <cmath>
#include <optional>

#include "driver-shim/pcie/world/measure.h"

namespace gdx::perf {
namespace {

constexpr std::uint64_t kSizesBytes[] = {8,    28,    64,    220,   512,    1024,   2048,   4096,
                                         8192, 16384, 32768, 65536, 131072, 262144, 524288, 2097152};

double ns_by(const ModeTable& table, const MeasuredSize& size) {
  return size.ns[static_cast<std::size_t>(mode_of(table, size.bytes))].value_or(HUGE_VAL);
}

}  // namespace

std::vector<MeasuredSize> modelled_sizes(PathClass path, Placement queues, ModeMeans means,
                                         DoorbellKind doorbell) {
  pcie::WorldConfig world;
  world.path = path;
  world.doorbell = doorbell;
  world.queues = queues == Placement::kGpu ? pcie::QueuePlacement::kGpu : pcie::QueuePlacement::kHost;
  std::vector<MeasuredSize> sizes;
  for (const std::uint64_t bytes : kSizesBytes) {
    const auto ns = [&](pcie::Mode mode, bool possible) -> std::optional<double> {
      if (!possible) return std::nullopt;
      return pcie::measure_latency(world, mode, bytes).completed_ns;
    };
    sizes.push_back(
        {bytes,
         {ns(pcie::Mode::kInline, bytes <= kMaxAutoInlineBytes), ns(pcie::Mode::kPush, means.push),
          ns(pcie::Mode::kPull, true), ns(pcie::Mode::kBounce, means.bounce)}});
  }
  return sizes;
}

double excess_over(const ModeTable& best, const ModeTable& table, const std::vector<MeasuredSize>& sizes) {
  double excess = 0;
  for (const MeasuredSize& size : sizes) excess += std::log(ns_by(table, size) / ns_by(best, size));
  return excess;
}

}  // namespace gdx::perf
