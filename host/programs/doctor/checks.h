// Checks for causes that break GPU-initiated RDMA on real machines: a table, each a function of a Machine
// alone.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "host/programs/doctor/machine.h"

namespace gdx::doctor {

// By what an operator should look at first, reversed. kUnknown: what was to be read or tried was not to be
// had.
enum class Verdict { kOk, kUnknown, kWarn, kFail };
[[nodiscard]] constexpr std::string_view name(Verdict verdict) {
  constexpr std::string_view kNames[] = {"OK", "UNKNOWN", "WARN", "FAIL"};
  return kNames[static_cast<std::size_t>(verdict)];
}

// Returns the exit status that tells the verdict. 2 is left out, because it is bad usage everywhere.
[[nodiscard]] constexpr int exit_status(Verdict verdict) {
  constexpr int kStatus[] = {0, 4, 3, 1};
  return kStatus[static_cast<std::size_t>(verdict)];
}

struct Finding {
  std::string subject;  // "machine", an HCA, a GPU or a bridge
  Verdict verdict = Verdict::kUnknown;
  std::string what;
  std::string evidence;  // the path or call, and what it told
  std::string fix = {};  // fix that documentation gives; empty: none
};

struct Words {
  std::string ok, bad, unknown;
};
// Returns a finding: OK if `good`, `bad` with the fix if not, and UNKNOWN if `good` is absent.
[[nodiscard]] Finding judge(std::string subject, std::optional<bool> good, Words words, std::string evidence,
                            std::string fix = {}, Verdict bad = Verdict::kWarn);
// OK where `call` did what it was to, FAIL where it was refused, UNKNOWN where it could not be tried.
[[nodiscard]] Finding judge(std::string subject, const Result<Refusal>& tried, Words words,
                            const std::string& call, std::string fix = {});

// Returns the findings of `judge_one` for each of `things`.
template <typename Things, typename JudgeOne>
[[nodiscard]] std::vector<Finding> each(const Things& things, JudgeOne judge_one) {
  std::vector<Finding> findings;
  for (const auto& thing : things) findings.push_back(judge_one(thing));
  return findings;
}

struct Check {
  const char* name;
  const char* reads;
  std::vector<Finding> (*run)(const Machine&);
};

// A check of what is not there, such as of PFC on InfiniBand, finds nothing. Only a hardware HCA is checked.
[[nodiscard]] std::span<const Check> gpu_checks();
[[nodiscard]] std::span<const Check> port_checks();
[[nodiscard]] std::span<const Check> pcie_checks();
[[nodiscard]] std::span<const Check> system_checks();

// Tells whether the IOMMU translates for a PCI function; the check `iommu` asks it of GPUs and HCAs.
[[nodiscard]] Finding judge_iommu(const Machine& machine, const std::string& bus_id);

struct Diagnosis {
  const Check* check;
  Finding finding;
};
// All checks, in the order of the tables.
[[nodiscard]] std::vector<Diagnosis> diagnose(Machine machine);
// Returns the worst verdict of all findings.
[[nodiscard]] Verdict worst(std::span<const Diagnosis> diagnoses);

}  // namespace gdx::doctor
