// Many seeds, on several threads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tests/sim/world.h"

namespace gdx::sim {

struct SeedRange {
  std::uint64_t first = 1;
  std::uint64_t last = 1;
};

// "A..B", both included, or "A". Nothing for anything else, and for a range that is empty.
[[nodiscard]] std::optional<SeedRange> parse_seeds(std::string_view text);

struct Failure {
  std::uint64_t seed = 0;
  std::string problem;
  std::string scenario;
};

struct Report {
  std::optional<Failure> failure;  // of the lowest seed that has one; the seeds above it may not have run
  std::uint64_t seeds = 0;         // that ran
  Outcome sum;                     // its counters only
};

// The result does not depend on `jobs` unless a seed fails; which one is reported never does.
[[nodiscard]] Report run_seeds(SeedRange seeds, unsigned jobs);

// The counters for a person, in one line.
[[nodiscard]] std::string summary(const Report& report);

}  // namespace gdx::sim
