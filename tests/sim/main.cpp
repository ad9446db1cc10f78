// gdx_sim: the transports in virtual time, any number of seeds.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "base/command_line.h"
#include "base/output.h"
#include "tests/sim/world.h"

namespace gdx::sim {
namespace {

constexpr int kExitFailure = 1;

struct Options {
  std::string seeds = "1..100000";
  unsigned jobs = std::max(1u, std::thread::hardware_concurrency());
  bool verbose = false;
  bool hunt = false;
};

int simulate(const Options& options, SeedRange seeds) {
  const auto begin = std::chrono::steady_clock::now();
  const Report<Outcome> report = run_seeds(seeds, options.jobs, run);
  const std::chrono::duration<double> elapsed_s = std::chrono::steady_clock::now() - begin;
  if (options.verbose) {
    print("{}\n{:.1f} s on {} threads, {:.0f} seeds a minute\n", summary(report), elapsed_s.count(),
          options.jobs, 60 * static_cast<double>(report.seeds) / elapsed_s.count());
  }
  if (options.hunt) return end_hunt(report, seeds);
  if (report.seed != 0) {
    print_error("seed {}: {}\nscenario: {}\nreplay: ./run sim --seeds {} --verbose\n", report.seed,
                report.failure.problem, report.failure.scenario, report.seed);
    return kExitFailure;
  }
  print("seeds {}..{} kept every promise\n", seeds.first, seeds.last);
  return 0;
}

int run_command_line(int argc, char** argv) {
  Options options;
  command_line::App app("The RC, UC and UD transports in virtual time under seeded faults, against an oracle",
                        "gdx_sim");
  app.add_option("--seeds", options.seeds, "A..B, or A alone (default 1..100000)");
  app.add_option("--jobs", options.jobs, "threads (default: one per core)")
      .check(command_line::whole(1, 1024));
  app.add_flag("--verbose", options.verbose, "print counters and speed");
  app.add_flag("--hunt", options.hunt, "succeed if and only if a seed finds a bug");
  if (const auto ends = app.parse("./run sim", argc, argv)) return *ends;
  const auto seeds = parse_seeds(options.seeds);
  if (!seeds) {
    print_error("./run sim: --seeds: '{}': use A..B or A, whole numbers; see ./run sim --help\n",
                options.seeds);
    return command_line::kExitUsage;
  }
  return simulate(options, *seeds);
}

}  // namespace
}  // namespace gdx::sim

int main(int argc, char** argv) {
  return gdx::run_program("./run sim", [&] { return gdx::sim::run_command_line(argc, argv); });
}
