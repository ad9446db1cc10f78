// gdx_default_modes: the tables of `auto` without a calibration, each beside the best that the model's
// figures allow. papers/push-vs-pull.sh keeps what it prints.
#include <fmt/format.h>

#include "perf/modelled_modes.h"

int main() {
  using gdx::describe;
  fmt::print(
      "modelled: what auto takes without a calibration, by path, by where queues are and by what an "
      "endpoint\n"
      "has. excess: its cost beyond the best table's by the same figures, the mean over all sizes.\n\n");
  fmt::print("{:<5} {:<6} {:<12} {:>7}  {}\n", "path", "queues", "slots", "excess",
             "default; the best table");
  for (const gdx::Placement queues : gdx::perf::kPlacements) {
    for (const gdx::PathClass path : gdx::kPathClasses) {
      for (const gdx::ModeMeans means : gdx::perf::kAllMeans) {
        const auto sizes = gdx::perf::modelled_sizes(path, queues, means);
        const auto best = gdx::best_table(sizes);
        if (!best) {
          fmt::print(stderr, "gdx_default_modes: {}\n", best.error().message);
          return 1;
        }
        const gdx::ModeTable table = gdx::default_mode_table(path, queues, means);
        const double excess = gdx::perf::excess_over(*best, table, sizes) / static_cast<double>(sizes.size());
        const char* const slots =
            means.push ? (means.bounce ? "NIC and host" : "NIC") : (means.bounce ? "host" : "none");
        fmt::print("{:<5} {:<6} {:<12} {:>6.2f}%  {}{}\n", gdx::name(path),
                   queues == gdx::Placement::kGpu ? "GPU" : "host", slots, 100 * excess, describe(table),
                   table == *best ? "" : "; " + describe(*best));
      }
    }
  }
  return 0;
}
