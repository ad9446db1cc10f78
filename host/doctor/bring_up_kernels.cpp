// Of section C of the bring-up what the CPU layer can do in place of a GPU, over any HCA. That it does as it
// should says nothing of a GPU, so no such step is OK here; one that fails has found something all the same.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <sstream>

#include "device/gdx.h"
#include "device/shared.h"
#include "host/calibrate/measure.h"
#include "host/doctor/bring_up.h"
#include "host/doctor/loopback.h"
#include "host/staging/progress.h"

namespace gdx::doctor {
namespace {

constexpr std::uint32_t kBlocks = 128;
constexpr std::uint64_t kWordBytes = sizeof(std::uint64_t);

// Returns the word that signals are added to, at the end of the target.
RemoteMemory signal_of(const Loopback& loopback) {
  return loopback.target().remote() + (Loopback::kBufferBytes - kWordBytes);
}

// The message where the signal is not `wanted`.
std::string check_signal(const Loopback& loopback, std::uint64_t wanted) {
  std::uint64_t value = 0;
  std::memcpy(&value, loopback.target().data() + (Loopback::kBufferBytes - kWordBytes), sizeof value);
  return value == wanted ? "" : fmt::format("the signal is {}, wanted {}", value, wanted);
}

std::string check_launch(Status launched, Status put) {
  if (launched != Status::kOk) return fmt::format("the kernel: {}", status_name(launched));
  return put == Status::kOk ? "" : fmt::format("a put: {}", status_name(put));
}

// `failure` is empty where all was as it should be.
StepResult on_cpu_layer(const std::string& failure, const std::string& done) {
  if (!failure.empty()) return {Verdict::kFail, "on the CPU layer: " + failure};
  return {Verdict::kUnknown,
          fmt::format("on the CPU layer as it should be: {}; not tried by kernels on a GPU", done)};
}

}  // namespace

namespace {

struct KernelPuts {
  std::string failure;
  double ns_each = 0;
};

// Puts with signals by one thread on an exclusive endpoint.
KernelPuts put_alone(Bench& bench, std::uint64_t puts) {
  auto loopback = Loopback::open(*bench.hca, kBlocks);
  if (!loopback) return {loopback.error().message};
  fill_pattern(loopback->source().span().first(kWordBytes), 1);
  Status put = Status::kOk;
  const auto kernel = [&](EndpointHandle handle) {
    device::Endpoint<> endpoint(handle);
    for (std::uint64_t i = 0; i < puts && put == Status::kOk; ++i) {
      put = gdx_put_signal<Mode::kPull>(endpoint, loopback->target().remote(), loopback->source().local(),
                                        kWordBytes, signal_of(*loopback), 1, SignalOp::kAdd);
    }
    if (put == Status::kOk) put = gdx_flush(endpoint);
  };
  const auto begin = std::chrono::steady_clock::now();
  const Status launched = exec::launch({.block = {1}, .progress = progress}, kernel, loopback->handle());
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
  KernelPuts done{check_launch(launched, put), took.count() / static_cast<double>(puts)};
  if (done.failure.empty()) done.failure = first_mismatch(loopback->target().data(), kWordBytes, 1);
  if (done.failure.empty()) done.failure = check_signal(*loopback, puts);
  return done;
}

const StepSizes& sizes_of(const Bench& bench) { return is_short(bench) ? kShortSizes : kFullSizes; }

}  // namespace

StepResult put_by_kernel(Bench& bench) {
  const std::uint64_t puts = sizes_of(bench).puts;
  const KernelPuts done = put_alone(bench, puts);
  return on_cpu_layer(done.failure, fmt::format("{} puts with signals by plain doorbells, {:.0f} ns each",
                                                puts, done.ns_each));
}

StepResult push_by_kernel(Bench& bench) {
  constexpr std::uint32_t kLongest = 4097;
  if (bench.hca->device_memory_bytes() == 0) return {Verdict::kUnknown, "the HCA has no device memory"};
  auto pool = StagingPool::create(*bench.hca);
  if (!pool) return without_staging(pool.error());
  auto loopback = Loopback::open(*bench.hca, kBlocks, &*pool);
  if (!loopback) return on_cpu_layer(loopback.error().message, {});
  std::string failure;
  const std::uint32_t pushes = sizes_of(bench).pushes;
  for (std::uint32_t i = 0; i < pushes && failure.empty(); ++i) {
    const std::uint32_t bytes = 1 + i % kLongest;
    fill_pattern(loopback->source().span().first(bytes), i);
    std::atomic<Status> put{Status::kOk};
    const auto kernel = [&](EndpointHandle handle) {
      device::Endpoint<Scope::kWarp> endpoint(handle);
      Status status =
          gdx_put<Mode::kPush>(endpoint, loopback->target().remote(), loopback->source().local(), bytes);
      if (status == Status::kOk) status = gdx_flush(endpoint);
      if (status != Status::kOk) put = status;
    };
    const Status launched =
        exec::launch({.block = {kWarpThreads}, .progress = progress}, kernel, loopback->handle());
    failure = check_launch(launched, put);
    if (failure.empty()) failure = first_mismatch(loopback->target().data(), bytes, i);
  }
  return on_cpu_layer(failure, fmt::format("{} pushes of 1 to {} B by a warp", pushes, kLongest));
}

// By the program of which kernels are for a GPU: its first line names what ran them.
StepResult copy_on_gpu(const Bench& bench) {
  const auto told = live_probes().run({bench.gpu_program, "--probe", "--hca", bench.hca->name()});
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
    result.facts.emplace_back(line.substr(0, colon), line.substr(colon + 2));
  }
  return result;
}

StepResult copy_by_kernel(Bench& bench) {
  const auto gpus = Gpu::count();
  if (gpus && *gpus > 0 && !bench.gpu_program.empty()) return copy_on_gpu(bench);
  bool failed = false;
  std::vector<std::string> ways;
  std::vector<std::pair<std::string, std::string>> facts;
  for (const calibration::ProbeWay& way : calibration::kProbeWays) {
    const auto probe = calibration::probe_blueflame(*bench.hca, nullptr, way.shape);
    if (!probe && probe.error().status == Status::kUnsupported)
      return {Verdict::kUnknown, probe.error().message};
    const std::string found = probe ? describe(*probe) : probe.error().message;
    failed |= !probe || probe->status != Status::kOk;
    ways.push_back(fmt::format("{}: {}", way.name, found));
    facts.emplace_back(way.name, found);
  }
  const std::string all = fmt::format("{}", fmt::join(ways, "; "));
  StepResult result = on_cpu_layer(failed ? all : "", all);
  result.facts = std::move(facts);
  return result;
}

StepResult share_endpoint(Bench& bench) {
  constexpr std::uint32_t kWarps = 32;
  constexpr std::uint64_t kThreads = kWarps * kWarpThreads;
  const StepSizes& sizes = sizes_of(bench);
  const std::uint64_t each = (sizes.shared_puts + kThreads - 1) / kThreads;
  const std::uint64_t puts = each * kThreads;
  auto loopback = Loopback::open(*bench.hca, kBlocks, nullptr, Sharing::kShared);
  if (!loopback) return on_cpu_layer(loopback.error().message, {});
  fill_pattern(loopback->source().span().first(kWordBytes), 1);
  std::atomic<Status> put{Status::kOk};
  const auto kernel = [&](EndpointHandle handle) {
    device::SharedEndpoint<> endpoint(handle);
    Status status = Status::kOk;
    for (std::uint64_t i = 0; i < each && status == Status::kOk; ++i) {
      status = gdx_put_signal<Mode::kPull>(endpoint, loopback->target().remote(), loopback->source().local(),
                                           kWordBytes, signal_of(*loopback), 1, SignalOp::kAdd);
    }
    if (status == Status::kOk) status = gdx_flush(endpoint);
    if (status != Status::kOk) put = status;
  };
  const Status launched = exec::launch({.grid = {kWarps}, .block = {kWarpThreads}, .progress = progress},
                                       kernel, loopback->handle());
  std::string failure = check_launch(launched, put);
  if (failure.empty()) failure = first_mismatch(loopback->target().data(), kWordBytes, 1);
  if (failure.empty()) failure = check_signal(*loopback, puts);
  // A put with its signal takes two blocks at least, so these are no fewer laps.
  if (failure.empty()) failure = put_alone(bench, std::uint64_t{sizes.laps} * kBlocks).failure;
  return on_cpu_layer(failure,
                      fmt::format("{} puts with signals by {} warps on one endpoint, and {} laps of an "
                                  "exclusive one",
                                  puts, kWarps, sizes.laps));
}

}  // namespace gdx::doctor
