// Standard benchmarks beside gdx's, on the same HCA.
#pragma once

#include <nlohmann/json.hpp>

#include "base/result.h"
#include "host/bench/plan.h"
#include "host/cli/launcher.h"

namespace gdx {

// Runs each program of perftest that matches the plan and is installed, for every round, both ends on this
// machine. Adds their figures to `peers` of the document. Tells on stderr which are missing, or gave no
// figures. Errors: those of launch().
[[nodiscard]] Result<void> add_peers(const bench::Plan& plan, const LaunchOptions& launch,
                                     nlohmann::ordered_json& document);

}  // namespace gdx
