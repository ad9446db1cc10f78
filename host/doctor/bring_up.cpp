#include "host/doctor/bring_up.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace gdx::doctor {
namespace {

constexpr std::array<Step, 20> kSteps{{
    {1, "machine", Needs::kNothing, 0, look_at_machine},
    {2, "hcas", Needs::kNothing, 0, look_at_hcas},
    {3, "capabilities", Needs::kHca, 0, query_capabilities},
    {4, "devx", Needs::kHca, 0, create_objects},
    {5, "puts-by-cpu", Needs::kHca, 4, put_by_loopback},
    {6, "blueflame", Needs::kHca, 4, probe_blueflame},
    {7, "device-memory", Needs::kHca, 4, write_from_device_memory},
    {8, "gpu-attributes", Needs::kNothing, 0, ask_gpu},
    {9, "gpu-mappings", Needs::kGpu, 4, map_pages},
    {10, "gpu-payload", Needs::kGpu, 4, exchange_payload},
    {11, "gpu-doorbells", Needs::kGpu, 4, put_by_kernel},
    {12, "gpu-push", Needs::kGpu, 4, push_by_kernel},
    {13, "gpu-blueflame", Needs::kGpu, 4, copy_by_kernel},
    {14, "doorbells-backwards", Needs::kGpu, 4, ring_backwards},
    {15, "receiver-visibility", Needs::kGpu, 4, see_messages},
    {16, "shared-endpoint", Needs::kGpu, 4, share_endpoint},
    {17, "rendezvous", Needs::kPeer, 4, meet_peer},
    {18, "modes-and-sizes", Needs::kPeer, 17, put_all_ways},
    {19, "killed-peer", Needs::kPeer, 17, lose_peer},
    {20, "bandwidth", Needs::kPeer, 17, compare_bandwidth},
}};

StepResult unknown(std::string why) { return {Verdict::kUnknown, std::move(why)}; }

StepReport run_step(const Step& step, std::span<const StepReport> before, Bench& bench) {
  StepReport report{&step, {}};
  if (step.needs == Needs::kPeer && !bench.peer) {
    bench.obstacle = "needs a second host, with --listen there and --peer here";
  } else if (step.needs != Needs::kNothing && !bench.hca) {
    bench.obstacle = "no HCA was opened";
  } else if (step.after != 0 &&
             before[static_cast<std::size_t>(step.after) - 1].result.verdict != Verdict::kOk) {
    bench.obstacle = fmt::format("step {} is not OK", step.after);
  } else {
    bench.obstacle.clear();
  }
  if (!bench.obstacle.empty() && !(step.run == meet_peer && bench.peer)) {
    report.result = unknown("not tried: " + bench.obstacle);
  } else {
    const commands::CommandRecording recording(bench.commands);
    report.result = step.run(bench);
    report.commands = std::exchange(bench.commands, {});
    if (report.result.verdict == Verdict::kFail && report.result.advice.empty())
      report.result.advice = fmt::format(
          "keep all of it by --output FILE; host/doctor/README.md has what step {} tests", step.number);
  }
  return report;
}

}  // namespace

char section(const Step& step) {
  if (step.number <= 4) return 'A';
  if (step.number <= 7) return 'B';
  return step.number <= 16 ? 'C' : 'D';
}

std::span<const Step> bring_up_steps() { return kSteps; }

Verdict BringUpReport::worst() const {
  Verdict verdict = std::max(is_complete() ? Verdict::kOk : Verdict::kUnknown, doctor::worst(findings));
  for (const StepReport& one : steps) verdict = std::max(verdict, one.result.verdict);
  return verdict;
}

BringUpReport bring_up(const BringUpChoice& choice,
                       const std::function<void(const BringUpReport&)>& progress) {
  Bench bench{this_whole_machine(), choice.hca, choice.peer, choice.probe_program, choice.kernel_program};
  bench.wants_short = choice.wants_short;
  bench.machine.hcas = see_hcas(bench.machine);
  BringUpReport report;
  report.software = std::ranges::any_of(bench.machine.hcas, &HcaSeen::software);
  // Runs before the steps, because their errors would show in its counters.
  report.findings = diagnose(bench.machine);
  report.environment = read_environment(bench.machine);
  for (const Step& step : kSteps) {
    report.running = step.number;
    progress(report);
    report.steps.push_back(run_step(step, report.steps, bench));
    if (!bench.hca) continue;
    report.hca = bench.hca->name();
    report.software = bench.hca->is_software();
  }
  report.running = 0;
  progress(report);
  return report;
}

}  // namespace gdx::doctor
