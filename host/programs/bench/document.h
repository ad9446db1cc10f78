// The result of a benchmark as one JSON document, from which every table, page and comparison is made.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/programs/bench/plan.h"
#include "host/programs/bench/statistics.h"

namespace gdx::bench {

inline constexpr int kDocumentVersion = 3;

// Returns the document of a run, whole or not, from the lines of its journal. Lines that are cut off are left
// out. A run is whole where each row has all rounds of the plan and no case is without figures. `ended_by`:
// empty, or why the run ended early. Figures have four significant digits.
[[nodiscard]] nlohmann::ordered_json make_document(const Plan& plan, const std::vector<Case>& cases,
                                                   const std::string& journal, const std::string& command,
                                                   const std::string& ended_by);

// Sets `fastest`: ranges of sizes, of each series and operation, in which one mode has the least latency, or
// several whose intervals overlap.
void add_fastest(nlohmann::ordered_json& document);

// The document as JSON text, with each row on a line.
[[nodiscard]] std::string to_text(const nlohmann::ordered_json& document);

// Reads a document that --json or --output wrote. Errors: kNotFound; kInvalidArgument naming what is wrong.
[[nodiscard]] Result<nlohmann::ordered_json> read_document(const std::string& file);

// Returns the case of a row, as text.
[[nodiscard]] std::string key_of_row(const nlohmann::ordered_json& row);

// A ratio's figures, what they say, and whether it differs from 1 beyond noise: null after too few rounds.
[[nodiscard]] nlohmann::ordered_json ratio_json(const Interval& ratio);
// Returns how many of the ratios can differ, how many do, how many would by chance alone if none
// did, and how many have no verdict.
[[nodiscard]] nlohmann::ordered_json count_verdicts(const nlohmann::ordered_json& ratios);

// To four significant digits.
[[nodiscard]] double rounded(double value);

}  // namespace gdx::bench
