// Two documents, row by row: differences beyond noise.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace gdx::bench {

// Ratios of B to A for every case that both have: of latencies, or of rates. Then the conditions of
// each rank and the options of the plan that differ, and the cases that one alone has.
[[nodiscard]] nlohmann::ordered_json compare(const nlohmann::ordered_json& a,
                                             const nlohmann::ordered_json& b);

// The comparison as a table, at most 100 columns wide.
[[nodiscard]] std::string comparison_table(const nlohmann::ordered_json& comparison);

}  // namespace gdx::bench
