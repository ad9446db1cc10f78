// Faults of a fabricated machine, and their expected reports.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "host/doctor/checks.h"
#include "tests/unit/doctor/fabricated.h"

namespace gdx::doctor {

using Spot = std::pair<std::string, std::string>;  // a check's name, and its subject

struct Expected {
  Spot spot;
  Verdict verdict;
  std::string fix;  // a part of it; empty: none is told
};

struct Fault {
  std::string name;
  std::function<void(Fabricated&)> apply;
  std::vector<Expected> expected = {};
  std::vector<Spot> hidden = {};  // findings that become unavailable
};

[[nodiscard]] const std::vector<Fault>& faults();
// Machines with which nothing is wrong.
[[nodiscard]] const std::vector<Fault>& good_variants();
// Machines that show more than one thing at once.
[[nodiscard]] const std::vector<Fault>& odd_machines();

void make_infiniband(Fabricated& machine);

}  // namespace gdx::doctor
