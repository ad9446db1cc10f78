#include "host/programs/doctor/bring_up.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

namespace gdx::doctor {
namespace {

constexpr int kMeeting = 17;  // the step for which both hosts meet before the first one

constexpr std::array<Step, 20> kSteps{{
    {1, "machine", "there is an RDMA device", Needs::kNothing, 0, look_at_machine},
    {2, "hcas", "gdx can use an HCA: its port is active and has an address", Needs::kNothing, 0,
     look_at_hcas},
    {3, "capabilities", "the HCA has what gdx needs", Needs::kHca, 0, query_capabilities},
    {4, "devx",
     "the HCA makes queues on umems, and takes two queue pairs to RTS with the fields that were set",
     Needs::kHca, 0, create_objects},
    {5, "puts-by-cpu", "a processor's puts, adds and a bad rkey bring the bytes and completions of the PRM",
     Needs::kHca, 4, put_by_loopback},
    {6, "blueflame", "the HCA takes NOPs by plain doorbells and by copies, which it may leave unused",
     Needs::kHca, 4, probe_blueflame},
    {7, "device-memory", "words stored into device memory are sent as they were stored", Needs::kHca, 4,
     write_from_device_memory},
    {8, "gpu-attributes", "CUDA opens GPU 0, and its architecture is one that kernels are built for",
     Needs::kNothing, 0, ask_gpu},
    {9, "gpu-mappings", "a page of the host, a doorbell page and device memory are mapped to the GPU",
     Needs::kGpu, 4, map_pages},
    {10, "gpu-payload", "the HCA reads and writes the GPU's memory by dmabuf or nvidia_peermem", Needs::kGpu,
     4, exchange_payload},
    {11, "gpu-doorbells", "a kernel's puts and signals arrive, with queues in host memory and in GPU memory",
     Needs::kGpu, 4, put_by_kernel},
    {12, "gpu-push", "payload that a kernel stores into device memory arrives as it was", Needs::kGpu, 4,
     push_by_kernel},
    {13, "gpu-blueflame", "the HCA takes WQEs that a kernel copies to it, and may leave the copies unused",
     Needs::kGpu, 4, copy_by_kernel},
    {14, "doorbells-backwards", "a doorbell for an older WQE after a newer one does no harm", Needs::kGpu, 4,
     ring_backwards},
    {15, "receiver-visibility", "a signal is seen after its payload, in each placement of both", Needs::kGpu,
     4, see_messages},
    {16, "shared-endpoint", "31 warps share an endpoint in each mode and lose no byte and no signal",
     Needs::kGpu, 4, share_endpoint},
    {17, "rendezvous", "two hosts meet over TCP, connect a queue pair, and put 8 B each way", Needs::kPeer, 4,
     meet_peer},
    {18, "modes-and-sizes", "each mode puts 1 B to 1 MiB both ways, and every byte is right", Needs::kPeer,
     17, put_all_ways},
    {19, "killed-peer", "a put to a queue pair that is gone ends with syndrome 0x15", Needs::kPeer, 17,
     lose_peer},
    {20, "bandwidth", "on hardware, puts of 1 MiB reach at least half of ib_write_bw", Needs::kPeer, 17,
     compare_bandwidth},
}};

StepResult unknown(std::string why) { return {Verdict::kUnknown, std::move(why)}; }

StepReport run_step(const Step& step, std::span<const StepReport> before, Bench& bench) {
  StepReport report{&step, {}};
  const auto begun = std::chrono::steady_clock::now();
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
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  report.seconds = took.count();
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
  bench.tell = choice.tell;
  bench.machine.hcas = see_hcas(bench.machine);
  BringUpReport report;
  report.software = std::ranges::any_of(bench.machine.hcas, &HcaSeen::software);
  // Runs before the steps, because their errors would show in its counters.
  report.findings = diagnose(bench.machine);
  report.environment = read_environment(bench.machine);
  if (bench.peer) {
    report.running = kMeeting;
    progress(report);
    if (bench.machine.hcas.empty()) bench.tell("no HCA here, so step 17 will fail on both hosts");
    join_peer(bench);
  }
  for (const Step& step : kSteps) {
    report.running = step.number;
    progress(report);
    report.steps.push_back(run_step(step, report.steps, bench));
    if (step.number < kMeeting) watch_peer(bench);
    if (!bench.hca) continue;
    report.hca = bench.hca->name();
    report.software = bench.hca->is_software();
  }
  report.running = 0;
  progress(report);
  return report;
}

}  // namespace gdx::doctor
