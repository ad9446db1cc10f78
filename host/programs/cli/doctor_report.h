// Prints gdx doctor's findings: those of the machine's files, and those of each step.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "host/programs/doctor/bring_up.h"
#include "host/programs/doctor/checks.h"

namespace gdx {

using OrderedJson = nlohmann::ordered_json;

inline constexpr std::size_t kReportColumns = 100;

// Verdicts with their counts, the worst verdict first.
using VerdictCounts = std::vector<std::pair<doctor::Verdict, std::size_t>>;
template <typename All, typename VerdictOf>
VerdictCounts count_verdicts(const All& all, VerdictOf verdict_of) {
  using doctor::Verdict;
  VerdictCounts counts;
  for (const Verdict verdict : {Verdict::kFail, Verdict::kWarn, Verdict::kUnknown, Verdict::kOk})
    counts.emplace_back(verdict, static_cast<std::size_t>(std::ranges::count(all, verdict, verdict_of)));
  return counts;
}
[[nodiscard]] std::string counts_text(const VerdictCounts& counts);  // "1 FAIL, 0 WARN, 3 UNKNOWN, 2 OK"
[[nodiscard]] OrderedJson counts_json(const VerdictCounts& counts);

// Prints `text` from column `indent` on, the first line behind `head`. Breaks at spaces: no word, which may
// be a path, is cut.
void print_wrapped(std::string head, const std::string& text, std::size_t indent);

[[nodiscard]] OrderedJson findings_json(const std::vector<doctor::Diagnosis>& all);

[[nodiscard]] doctor::Verdict verdict_of_finding(const doctor::Diagnosis& one);

// Prints the last step of a report that grows, if there is one.
void print_newest_step(const doctor::BringUpReport& report);
void print_step_counts(const doctor::BringUpReport& report);
// With the topology of this machine: made once, because it opens each GPU.
[[nodiscard]] OrderedJson environment_json(const doctor::Environment& environment);
// With the bytes of the commands of host/queue, and `environment` as it is.
[[nodiscard]] OrderedJson bring_up_json(const doctor::BringUpReport& report, const OrderedJson& environment);

}  // namespace gdx
