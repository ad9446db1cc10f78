// Steps of section C that run kernels: on a GPU where there is one and a program for it, else on the CPU
// layer.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "base/commit.h"
#include "host/gpu/gpu.h"
#include "host/programs/calibrate/measure.h"
#include "host/programs/doctor/bring_up.h"
#include "host/programs/doctor/kernel_steps.h"

namespace gdx::doctor {
namespace {

using Json = nlohmann::json;

bool has_gpu() {
  const auto count = Gpu::count();
  return count && *count > 0;
}

std::string advice_to_build(const char* program) {
  return fmt::format(
      "build {}, whose kernels run on the GPU: ./run gdx doctor --hardware does, with nvcc in PATH", program);
}

// Returns the fact that the program of kernels wrote by its fact_json().
Fact fact_of(const Json& json) {
  Fact fact{json.value("name", ""), json.value("value", "")};
  for (const Verdict verdict : {Verdict::kOk, Verdict::kFail}) {
    if (json.value("verdict", "") == name(verdict)) fact.verdict = verdict;
  }
  return fact;
}

// Reads what the program printed: verdict, value and facts.
StepResult parse_result(const std::string& told) {
  const Json json = Json::parse(told, nullptr, false);
  StepResult result{Verdict::kFail, fmt::format("{} printed no result", kKernelProgram)};
  if (!json.is_object() || !json.contains("verdict") || !json.contains("value") || !json.contains("facts"))
    return result;
  if (!json.contains("commit") || json["commit"] != commit())
    return {Verdict::kFail, fmt::format("{} is of another commit than gdx, {}", kKernelProgram, commit()),
            advice_to_build(kKernelProgram)};
  result.value = json["value"];
  for (const Verdict verdict : {Verdict::kOk, Verdict::kUnknown}) {
    if (json["verdict"] == name(verdict)) result.verdict = verdict;
  }
  for (const Json& fact : json["facts"]) result.facts.push_back(fact_of(fact));
  return result;
}

StepResult run_step(const Bench& bench, std::string_view step_name) {
  if (has_gpu() && !bench.kernel_program.empty()) {
    std::vector<std::string> command = {bench.kernel_program, "--step", std::string(step_name), "--hca",
                                        bench.hca->name()};
    if (is_short(bench)) command.emplace_back("--short");
    const auto told = live_probes().run(command);
    return told ? parse_result(*told) : StepResult{Verdict::kFail, told.error().message};
  }
  const auto step = std::ranges::find(kernel_steps(), step_name, &KernelStep::name);
  StepResult result =
      run_kernel_step(*step, {*bench.hca, nullptr, is_short(bench) ? kShortSizes : kFullSizes, [] {}});
  if (has_gpu()) result.advice = advice_to_build(kKernelProgram);
  return result;
}

}  // namespace

// By the program of which kernels are for a GPU: its first line names what ran them.
StepResult copy_on_gpu(const Bench& bench) {
  const auto told = live_probes().run({bench.probe_program, "--probe", "--hca", bench.hca->name()});
  if (!told) return {Verdict::kFail, told.error().message};
  const bool failed = told->find(": failed: ") != std::string::npos;
  StepResult result{failed ? Verdict::kFail : Verdict::kOk, told->substr(0, told->find('\n'))};
  const bool offered = told->find(": not offered here") == std::string::npos;
  if (!failed && (!offered || !told->starts_with("GPU "))) result.verdict = Verdict::kUnknown;
  std::istringstream lines(*told);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    result.value += "; " + line;
    Fact fact{line.substr(0, colon), line.substr(colon + 2)};
    if (fact.value.starts_with("failed: ")) fact.verdict = Verdict::kFail;
    if (fact.value.find(" copies used") != std::string::npos) fact.verdict = Verdict::kOk;
    result.facts.push_back(std::move(fact));
  }
  return result;
}

StepResult copy_by_kernel(Bench& bench) {
  if (has_gpu() && !bench.probe_program.empty()) return copy_on_gpu(bench);
  bool failed = false;
  std::vector<std::string> ways;
  std::vector<Fact> facts;
  for (const calibration::ProbeWay& way : calibration::kProbeWays) {
    const auto probe = calibration::probe_blueflame(*bench.hca, nullptr, way.shape);
    if (!probe && probe.error().status == Status::kUnsupported)
      return {Verdict::kUnknown, probe.error().message};
    const std::string found = probe ? describe(*probe) : probe.error().message;
    const bool fails = !probe || probe->status != Status::kOk;
    failed |= fails;
    ways.push_back(fmt::format("{}: {}", way.name, found));
    facts.push_back({way.name, found, fails ? Verdict::kFail : Verdict::kOk});
  }
  const std::string all = fmt::format("{}", fmt::join(ways, "; "));
  const std::string advice = has_gpu() ? advice_to_build("gdx_calibrate_cuda") : "";
  return on_cpu_layer({failed ? Verdict::kFail : Verdict::kOk, all, advice, std::move(facts)});
}

StepResult put_by_kernel(Bench& bench) { return run_step(bench, "gpu-doorbells"); }
StepResult push_by_kernel(Bench& bench) { return run_step(bench, "gpu-push"); }
StepResult ring_backwards(Bench& bench) { return run_step(bench, "doorbells-backwards"); }
StepResult see_messages(Bench& bench) { return run_step(bench, "receiver-visibility"); }
StepResult share_endpoint(Bench& bench) { return run_step(bench, "shared-endpoint"); }

}  // namespace gdx::doctor
