// The kit of seeded worlds: runs the seeds of any world, adds up what they met, and is the program that
// replays them. An outcome has a `problem`, empty if every promise was kept, and add().
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace gdx::sim {

struct SeedRange {
  std::uint64_t first = 1;
  std::uint64_t last = 1;
};

// "A..B", both included, or "A". Nothing for anything else, and for a range that is empty.
[[nodiscard]] std::optional<SeedRange> parse_seeds(std::string_view text);

template <typename Outcome>
struct Report {
  std::uint64_t seed = 0;   // the lowest with a problem, 0: none; the seeds above it may not have run
  Outcome failure;          // of that seed
  std::uint64_t seeds = 0;  // that ran
  Outcome sum;              // its counters only
};

// Runs run(seed) on `jobs` threads. The result does not depend on `jobs` unless a seed fails; which one is
// reported never does.
template <typename Run>
auto run_seeds(SeedRange seeds, unsigned jobs, Run run) {
  using Outcome = decltype(run(seeds.first));
  Report<Outcome> report;
  std::mutex mutex;
  // Seeds are handed out in ascending order, so whoever fails first knows that all lower ones have begun.
  std::atomic<std::uint64_t> next = seeds.first;
  const auto work = [&] {
    Report<Outcome> mine;
    for (std::uint64_t seed = next++; seed <= seeds.last; seed = next++) {
      Outcome outcome = run(seed);
      ++mine.seeds;
      mine.sum.add(outcome);
      if (outcome.problem.empty()) continue;
      mine.seed = seed;
      mine.failure = std::move(outcome);
      next = seeds.last + 1;
      break;
    }
    const std::lock_guard lock(mutex);
    report.seeds += mine.seeds;
    report.sum.add(mine.sum);
    if (mine.seed == 0 || (report.seed != 0 && report.seed < mine.seed)) return;
    report.seed = mine.seed;
    report.failure = std::move(mine.failure);
  };
  std::vector<std::jthread> helpers;
  for (unsigned i = 1; i < jobs; ++i) helpers.emplace_back(work);
  work();
  helpers.clear();
  return report;
}

// Prints what a hunt for a known bug found. Returns the exit status: 0 if and only if a seed found it.
template <typename Outcome>
int end_hunt(const Report<Outcome>& report, SeedRange seeds) {
  if (report.seed != 0) {
    fmt::print("seed {} finds it: {}\n", report.seed, report.failure.problem);
    return 0;
  }
  fmt::print("seeds {}..{} find nothing: the simulation is blind to this bug\n", seeds.first, seeds.last);
  return 1;
}

// Arguments of a world's program: FIRST LAST [CHOICE] [hunt].
struct SeedArguments {
  SeedRange seeds;
  std::string choice;  // empty without one
  bool hunts = false;  // succeeds if and only if a seed finds a problem
};
[[nodiscard]] std::optional<SeedArguments> parse_seed_arguments(int argc, char** argv);

// The program: world_of(choice) is what runs one seed, or empty for an unknown choice; tell(sum) the counters
// for a person. Returns the exit status.
template <typename WorldOf, typename Tell>
int run_seed_program(int argc, char** argv, const char* usage, WorldOf world_of, Tell tell) {
  const std::optional<SeedArguments> arguments = parse_seed_arguments(argc, argv);
  const auto run = world_of(arguments ? arguments->choice : std::string());
  if (!arguments || !run) {
    fmt::print(stderr, "which seeds? use {} [hunt]\n", usage);
    return 2;
  }
  const auto report = run_seeds(arguments->seeds, 1, run);
  if (arguments->hunts) return end_hunt(report, arguments->seeds);
  fmt::print("{} seeds: {}: {}\n", report.seeds, tell(report.sum),
             report.seed == 0 ? std::string("every promise was kept")
                              : fmt::format("seed {}: {}", report.seed, report.failure.problem));
  return report.seed == 0 ? 0 : 1;
}

// Returns a line for each seed's run, which tell(outcome) words, below a head.
template <typename Run, typename Tell>
std::string courses(std::string_view head, std::uint64_t seeds, Run run, Tell tell) {
  std::string text = fmt::format("# seed: {}\n", head);
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) text += fmt::format("{}: {}\n", seed, tell(run(seed)));
  return text;
}

}  // namespace gdx::sim
