// gdx_doctor_cuda: runs one step of `gdx doctor --hardware`, by kernels of this program, and prints its
// result as JSON. gdx doctor starts it; so can a user: gdx_doctor_cuda --step gpu-push --hca mlx5_0.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/command_line.h"
#include "base/commit.h"
#include "base/output.h"
#include "host/gpu/gpu.h"
#include "host/hca/hca.h"
#include "host/programs/doctor/kernel_steps.h"

namespace gdx::doctor {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string step;
  std::string hca;
  bool wants_short = false;
  std::byte* (*seen_by_kernels)(std::byte*) = nullptr;
};

// Prints a blank line every second, which JSON permits before a document: a reader knows that the step goes
// on.
void print_blank() {
  static auto newest = std::chrono::steady_clock::now();
  const auto now = std::chrono::steady_clock::now();
  if (now - newest < std::chrono::seconds(1)) return;
  newest = now;
  print("\n");
  flush_output();
}

Json fact_json(const Fact& fact) {
  Json json = {{"name", fact.name}, {"value", fact.value}};
  if (fact.verdict) json["verdict"] = name(*fact.verdict);
  return json;
}

StepResult run_step(const Options& options, const KernelStep& step, const Gpu* gpu) {
  const auto hca = Hca::open({.name = options.hca, .in_this_process = true});
  if (!hca) return {Verdict::kFail, hca.error().message};
  KernelBench bench{*hca, gpu, options.wants_short ? kShortSizes : kFullSizes, print_blank};
  if (options.seen_by_kernels != nullptr) bench.seen_by_kernels = options.seen_by_kernels;
  return run_kernel_step(step, bench);
}

int run(const Options& options) {
  const auto steps = kernel_steps();
  const auto named = std::ranges::find(steps, options.step, &KernelStep::name);
  const KernelStep& step = named != steps.end() ? *named : steps.front();
  const auto gpu = open_gpu_or_skip();
  if (!gpu && program_has_cuda_kernels()) {
    print_error("{}: {}\n", kKernelProgram, gpu.error().message);
    return exit_status_without_gpu(gpu.error());
  }
  const StepResult result = run_step(options, step, gpu ? &*gpu : nullptr);
  Json facts = Json::array();
  for (const Fact& fact : result.facts) facts.push_back(fact_json(fact));
  const Json json = {
      {"commit", commit()}, {"verdict", name(result.verdict)}, {"value", result.value}, {"facts", facts}};
  print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
  return 0;
}

int run_command_line(int argc, char** argv, std::byte* (*seen_by_kernels)(std::byte*)) {
  Options options;
  command_line::App app("Runs one step of gdx doctor --hardware, by kernels of this program", kKernelProgram);
  std::vector<std::string> names;
  for (const KernelStep& step : kernel_steps()) names.emplace_back(step.name);
  app.add_option("--step", options.step, fmt::format("One of {} (the first)", fmt::join(names, ", ")))
      .check(command_line::one_of(names));
  app.add_option("--hca", options.hca, "HCA to bring up (the first)")
      .check(command_line::not_empty("the name of an HCA"));
  app.add_flag("--short", options.wants_short, "Few puts");
  if (const auto ends = app.parse(kKernelProgram, argc, argv)) return *ends;
  options.seen_by_kernels = seen_by_kernels;
  return run(options);
}

}  // namespace

int run_kernel_program(int argc, char** argv, std::byte* (*seen_by_kernels)(std::byte*)) {
  return run_program(kKernelProgram, [&] { return run_command_line(argc, argv, seen_by_kernels); });
}

}  // namespace gdx::doctor
