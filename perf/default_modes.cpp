// gdx_default_modes: the tables of `auto` without a calibration, each beside the best that the model's
// figures allow. papers/push-vs-pull.sh keeps what it prints.
#include <fmt/format.h>

#include <string>

#include "perf/modelled_modes.h"

namespace gdx {
namespace {

// One line of the table.
Result<std::string> compare(DoorbellKind doorbell, Placement queues, PathClass path, ModeMeans means) {
  const auto sizes = perf::modelled_sizes(path, queues, means, doorbell);
  const auto best = GDX_TRY(best_table(sizes));
  const ModeTable table = default_mode_table(path, queues, means, doorbell);
  const double excess = perf::excess_over(best, table, sizes) / static_cast<double>(sizes.size());
  const char* const slots =
      means.push ? (means.bounce ? "NIC and host" : "NIC") : (means.bounce ? "host" : "none");
  return fmt::format("{:<9} {:<5} {:<6} {:<12} {:>6.2f}%  {}{}\n", name(doorbell), name(path),
                     queues == Placement::kGpu ? "GPU" : "host", slots, 100 * excess, describe(table),
                     table == best ? "" : "; " + describe(best));
}

int print_all() {
  fmt::print(
      "modelled: what auto takes without a calibration, by doorbell, by path, by where queues are and by\n"
      "what an endpoint has. Doorbells without their work request have records read. excess: its cost "
      "beyond\n"
      "the best table's by the same figures, the mean over all sizes.\n\n");
  fmt::print("{:<9} {:<5} {:<6} {:<12} {:>7}  {}\n", "doorbell", "path", "queues", "slots", "excess",
             "default; the best table");
  for (const DoorbellKind doorbell : perf::kDoorbells) {
    for (const Placement queues : perf::kPlacements) {
      for (const PathClass path : kPathClasses) {
        for (const ModeMeans means : perf::kAllMeans) {
          const auto line = compare(doorbell, queues, path, means);
          if (!line) {
            fmt::print(stderr, "gdx_default_modes: {}\n", line.error().message);
            return 1;
          }
          fmt::print("{}", *line);
        }
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace gdx

int main() { return gdx::print_all(); }
