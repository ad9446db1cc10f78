#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "host/programs/doctor/checks.h"

namespace gdx::doctor {

Finding judge(std::string subject, std::optional<bool> good, Words words, std::string evidence,
              std::string fix, Verdict bad) {
  if (!good) return {std::move(subject), Verdict::kUnknown, std::move(words.unknown), std::move(evidence)};
  if (*good) return {std::move(subject), Verdict::kOk, std::move(words.ok), std::move(evidence)};
  return {std::move(subject), bad, std::move(words.bad), std::move(evidence), std::move(fix)};
}

Finding judge(std::string subject, const Result<Refusal>& tried, Words words, const std::string& call,
              std::string fix) {
  const std::string told = !tried ? tried.error().message : tried->empty() ? "done" : *tried;
  return judge(std::move(subject), tried ? std::optional(tried->empty()) : std::nullopt, std::move(words),
               fmt::format("{}: {}", call, told), std::move(fix), Verdict::kFail);
}

std::vector<Diagnosis> diagnose(Machine machine) {
  machine.hcas = see_hcas(machine);
  std::vector<Diagnosis> diagnoses;
  for (const auto checks : {gpu_checks(), port_checks(), pcie_checks(), system_checks()}) {
    for (const Check& check : checks) {
      for (Finding& finding : check.run(machine)) diagnoses.push_back({&check, std::move(finding)});
    }
  }
  return diagnoses;
}

Verdict worst(std::span<const Diagnosis> diagnoses) {
  Verdict worst = Verdict::kOk;
  for (const Diagnosis& one : diagnoses) worst = std::max(worst, one.finding.verdict);
  return worst;
}

}  // namespace gdx::doctor
