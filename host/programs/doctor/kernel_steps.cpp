#include "host/programs/doctor/kernel_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/page_size.h"
#include "host/gpu/gpu_memory.h"
#include "host/memory/memory.h"
#include "host/programs/doctor/endpoint_pair.h"
#include "host/programs/doctor/step_kernels.h"
#include "host/staging/progress.h"
#include "proto/mlx5/doorbell.h"

namespace gdx::doctor {
namespace {

constexpr std::uint32_t kBlocks = 128;
constexpr std::uint64_t kWordBytes = sizeof(std::uint64_t);
constexpr std::uint64_t kSignalAt = kBufferBytes - kWordBytes;
constexpr char kHostRings[] = "a thread of the host rang for the GPU, whose driver maps no doorbell";

// An endpoint pair, and a report, for kernels.
struct KernelPair {
  EndpointPair ends;
  Memory report_page;
  std::shared_ptr<GpuMapping> mapping;
  EndpointHandle handle;

  [[nodiscard]] KernelReport* report() const { return reinterpret_cast<KernelReport*>(report_page.data()); }
  // Describes puts of words to the target, whose signal word lies at kSignalAt.
  [[nodiscard]] PutJob job(std::uint64_t bytes, std::uint64_t puts) const {
    return {ends.target.remote(), ends.source.local(), bytes, ends.target.remote() + kSignalAt, puts};
  }
};

Result<KernelPair> open_pair(const KernelBench& bench, PairOptions options) {
  options.gpu = bench.gpu;
  auto ends = GDX_TRY(EndpointPair::open(bench.hca, options));
  auto page = GDX_TRY(allocate_memory(bench.hca, page_bytes()));
  std::shared_ptr<GpuMapping> mapping;
  if (bench.gpu != nullptr) mapping = GDX_TRY(bench.gpu->map(page.data(), page.bytes()));
  const EndpointHandle handle = ends.endpoint.handle();
  return KernelPair{std::move(ends), std::move(page), std::move(mapping), handle};
}

StepResult failed(const std::string& what) { return {Verdict::kFail, what}; }

// Returns OK if the GPU rings by itself. If a thread of the host rings for it, nothing is known of the GPU.
StepResult done(const KernelPair& pair, const std::string& what) {
  if (!pair.ends.endpoint.host_rings()) return {Verdict::kOk, what};
  return {Verdict::kUnknown, fmt::format("{}; {}", what, kHostRings)};
}

std::string check_launch(Status launched, const KernelPair& pair) {
  if (launched != Status::kOk) return fmt::format("the kernel: {}", status_name(launched));
  const auto put = static_cast<Status>(pair.report()->status);
  return put == Status::kOk ? "" : fmt::format("a put: {}", status_name(put));
}

std::string check_arrival(const KernelPair& pair, std::uint64_t bytes, std::uint64_t signals) {
  std::string wrong = first_mismatch(pair.ends.target.data(), bytes, 1);
  std::uint64_t signal = 0;
  std::memcpy(&signal, pair.ends.target.data() + kSignalAt, sizeof signal);
  if (wrong.empty() && signal != signals) wrong = fmt::format("the signal is {}, wanted {}", signal, signals);
  return wrong;
}

struct KernelPuts {
  StepResult result;
  double ns_each = 0;
};

KernelPuts put_alone(const KernelBench& bench, std::uint64_t puts, std::optional<Placement> queues = {}) {
  const auto pair = open_pair(bench, {.blocks = kBlocks, .queues = queues});
  if (!pair && pair.error().status == Status::kUnsupported)
    return {{Verdict::kUnknown, pair.error().message}};
  if (!pair) return {failed(pair.error().message)};
  fill_pattern(pair->ends.source.span().first(kWordBytes), 1);
  const auto begin = std::chrono::steady_clock::now();
  const Status launched = launch_puts(pair->handle, pair->job(kWordBytes, puts), pair->report(), progress);
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
  std::string wrong = check_launch(launched, *pair);
  if (wrong.empty()) wrong = check_arrival(*pair, kWordBytes, puts);
  if (!wrong.empty()) return {failed(wrong)};
  return {done(*pair, {}), took.count() / static_cast<double>(puts)};
}

// Puts with signals, with queues in each place. Returns what says nothing of a GPU that rings by itself.
std::string put_from_each_place(const KernelBench& bench, PartResults& parts) {
  std::string unlike;
  for (const Placement queues : {Placement::kHost, Placement::kGpu}) {
    if (queues == Placement::kGpu && !program_has_cuda_kernels()) continue;
    const std::string name = fmt::format("queues in {} memory", queues == Placement::kGpu ? "GPU" : "host");
    const KernelPuts puts = put_alone(bench, bench.sizes.puts, queues);
    if (puts.ns_each == 0 && puts.result.verdict == Verdict::kUnknown) {
      unlike += fmt::format("; {}: not tried: {}", name, puts.result.value);
      continue;
    }
    const bool fails = puts.result.verdict == Verdict::kFail;
    if (puts.result.verdict == Verdict::kUnknown) unlike = puts.result.value;
    parts.add(name, fails ? puts.result.value : "",
              fmt::format("{} puts with signals by plain doorbells, {:.0f} ns each", bench.sizes.puts,
                          puts.ns_each));
  }
  return unlike;
}

// Returns staging memory that kernels reach, or the result of a step without it.
tl::expected<StagingPool, StepResult> open_staging(const KernelBench& bench, const StagingOptions& options) {
  auto pool = StagingPool::create(bench.hca, options);
  if (!pool) {
    const bool on_nic = options.memory == StagingMemory::kNic;
    return tl::unexpected(on_nic ? without_staging(pool.error()) : failed(pool.error().message));
  }
  if (bench.gpu == nullptr) return std::move(*pool);
  const auto mapped = pool->map_to(*bench.gpu);
  if (mapped) return std::move(*pool);
  const bool unsupported = mapped.error().status == Status::kUnsupported;
  return tl::unexpected(StepResult{unsupported ? Verdict::kUnknown : Verdict::kFail, mapped.error().message});
}

StepResult push_by_kernel(const KernelBench& bench) {
  constexpr std::uint32_t kLongest = 4097;
  auto pool = open_staging(bench, {});
  if (!pool) return pool.error();
  PartResults parts;
  StepResult last;
  const std::pair<const char*, PushKernel*> pushes[] = {{"by stores of a warp", launch_push},
                                                        {"by TMA of a block", launch_bulk_push}};
  for (const auto& [name, launch] : pushes) {
    const auto pair = open_pair(bench, {.blocks = kBlocks, .pools = &*pool});
    if (!pair) return failed(pair.error().message);
    std::string wrong;
    for (std::uint32_t i = 0; i < bench.sizes.pushes && wrong.empty(); ++i) {
      const std::uint32_t bytes = 1 + i % kLongest;
      fill_pattern(pair->ends.source.span().first(bytes), i);
      wrong = check_launch(launch(pair->handle, pair->job(bytes, 1), pair->report(), progress), *pair);
      if (wrong.empty()) wrong = first_mismatch(pair->ends.target.data(), bytes, i);
      bench.alive();
    }
    parts.add(name, wrong, fmt::format("{} pushes of 1 to {} B", bench.sizes.pushes, kLongest));
    last = done(*pair, {});
  }
  StepResult result = parts.result();
  if (result.verdict != Verdict::kOk) return result;
  return {last.verdict, result.value + last.value, {}, result.facts};
}

// Puts by 31 warps on one endpoint of `pools`, each thread's of a word of its own.
StepResult share(const KernelBench& bench, const StagingPools& pools, SharedPutKernel* launch) {
  constexpr std::uint32_t kWarps = 31;
  constexpr std::uint64_t kThreads = 32 * kWarps;
  static_assert(kThreads * kWordBytes <= kSignalAt);
  const std::uint64_t each = (bench.sizes.shared_puts + kThreads - 1) / kThreads;
  const auto pair = open_pair(bench, {.blocks = kBlocks, .pools = pools, .sharing = Sharing::kShared});
  if (!pair) return failed(pair.error().message);
  fill_pattern(pair->ends.source.span().first(kThreads * kWordBytes), 1);
  const Status launched = launch(pair->handle, kWarps, pair->job(kWordBytes, each), pair->report(), progress);
  std::string wrong = check_launch(launched, *pair);
  if (wrong.empty()) wrong = check_arrival(*pair, kThreads * kWordBytes, each * kThreads);
  if (!wrong.empty()) return failed(wrong);
  bench.alive();
  return done(*pair, fmt::format("{} puts with signals by {} warps", each * kThreads, kWarps));
}

StepResult share_endpoint(const KernelBench& bench) {
  auto on_nic = open_staging(bench, {});
  auto in_host = open_staging(bench, StagingOptions::in_host_memory());
  PartResults parts;
  std::string untried;
  Verdict verdict = Verdict::kOk;
  const auto judge = [&](const char* name, bool tried, const StepResult& one) {
    verdict = std::max(verdict, one.verdict);
    if (tried || one.verdict == Verdict::kFail) {
      parts.add(name, one.verdict == Verdict::kFail ? one.value : "", one.value);
    } else {
      untried += fmt::format("; {}: not tried: {}", name, one.value);
    }
  };
  judge("pull", true, share(bench, {}, launch_shared_pulls));
  judge("push", on_nic.has_value(), on_nic ? share(bench, &*on_nic, launch_shared_pushes) : on_nic.error());
  judge("bounce", in_host.has_value(),
        in_host ? share(bench, {nullptr, &*in_host}, launch_shared_bounces) : in_host.error());
  // A put with its signal takes two blocks at least, so these are no fewer laps.
  KernelPuts laps = put_alone(bench, std::uint64_t{bench.sizes.laps} * kBlocks);
  const bool ran = laps.ns_each != 0;
  if (ran) laps.result.value = fmt::format("{} laps{}", bench.sizes.laps, laps.result.value);
  judge("exclusive", ran, laps.result);
  StepResult result = parts.result();
  result.verdict = std::max(result.verdict, verdict);
  result.value += untried;
  return result;
}

// Describes the completion that a kernel did not take; empty: it took all.
std::string describe_completion(const KernelPair& pair,
                                mlx5::WqeOpcode opcode = mlx5::WqeOpcode::kRdmaWrite) {
  const KernelReport& report = *pair.report();
  const auto index = static_cast<std::uint16_t>(report.index);
  switch (static_cast<Status>(report.status)) {
    case Status::kOk: return {};
    case Status::kTimeout: return fmt::format("no completion of WQE {} in {} s", index, kWaitS);
    default: return describe_wrong({std::bit_cast<mlx5::Cqe64>(report.cqe)}, index, opcode, pair.handle.qpn);
  }
}

// Adds a part of which kernels read completions by themselves.
void add_part(PartResults& parts, const std::string& name, const KernelPair& pair, const std::string& wrong,
              const std::string& value) {
  parts.add(name, wrong, value);
  if (wrong.empty()) return;
  parts.add_evidence(name, Completed{std::bit_cast<mlx5::Cqe64>(pair.report()->cqe)}.bytes(),
                     pair.ends.endpoint);
}

// Judges such a part.
StepResult judge_part(PartResults& parts, const std::string& name, const KernelPair& pair,
                      const std::string& wrong, const std::string& value) {
  add_part(parts, name, pair, wrong, value);
  StepResult result = parts.result();
  if (result.verdict == Verdict::kOk && pair.ends.endpoint.host_rings())
    return {Verdict::kUnknown, fmt::format("{}; {}", result.value, kHostRings), {}, result.facts};
  return result;
}

// Judges a launch whose kernels count what they do. Returns what went wrong; empty: nothing.
std::string check_rings(Status launched, const KernelPair& pair, const char* counted) {
  const KernelReport& report = *pair.report();
  if (launched != Status::kOk) return check_launch(launched, pair);
  if (report.status != 0) return fmt::format("{} {}: {}", counted, report.at, describe_completion(pair));
  if (report.wrong == 0) return {};
  return first_mismatch(report.got, kPutBytes, static_cast<std::uint32_t>(report.first_wrong));
}

// Rings by one of both indices: before the record, and in the order of all posts.
void ring_by_index(const KernelBench& bench, PartResults& parts, Named named) {
  const char* const name = named == Named::kLast ? "index of the last WQE" : "index of the next WQE";
  const auto pair = open_pair(bench, {.blocks = kBlocks});
  if (!pair) return parts.add(name, pair.error().message, {});
  RingJob job{pair->ends.target.remote(), pair->ends.source.local(), 0, 1, named, bench.sizes.record_late_ns};
  std::string wrong =
      check_rings(launch_rings(pair->handle, job, pair->report(), progress), *pair, "a late record: put");
  const char* const late = pair->report()->early != 0 ? "goes before" : "waits for";
  const auto begin = std::chrono::steady_clock::now();
  job.first = std::exchange(job.puts, bench.sizes.rings);
  job.record_late_ns = 0;
  if (wrong.empty())
    wrong = check_rings(launch_rings(pair->handle, job, pair->report(), progress), *pair, "put");
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
  add_part(parts, name, *pair, wrong,
           fmt::format("{} puts, one by one, {:.0f} ns each; a put {} a record that comes {} ms late",
                       job.puts, took.count() / job.puts, late, bench.sizes.record_late_ns / 1'000'000));
  bench.alive();
}

// Memory of the host or of the GPU that kernels read.
struct Place {
  std::optional<GpuMemory> on_gpu;  // freed after its registration
  Memory memory;
  const std::byte* here;
  std::shared_ptr<GpuMapping> mapping;
};

Result<std::vector<KernelPair>> open_lanes(const KernelBench& bench, bool shares_page) {
  std::vector<KernelPair> pairs;
  for (std::uint32_t lane = 0; lane < kLanes; ++lane)
    pairs.push_back(GDX_TRY(open_pair(bench, {.blocks = 16, .shares_page = shares_page})));
  return pairs;
}

// Returns lanes of `pairs` in memory that kernels reach.
Result<Place> make_lanes(const KernelBench& bench, const std::vector<KernelPair>& pairs) {
  auto memory = GDX_TRY(allocate_memory(bench.hca, pairs.size() * sizeof(Lane)));
  std::shared_ptr<GpuMapping> mapping;
  if (bench.gpu != nullptr) mapping = GDX_TRY(bench.gpu->map(memory.data(), memory.bytes()));
  auto* lane = reinterpret_cast<Lane*>(memory.data());
  for (const KernelPair& pair : pairs)
    new (lane++) Lane{pair.handle, pair.ends.target.remote(), pair.ends.source.local(), pair.report()};
  const std::byte* const here = memory.data();
  return Place{std::nullopt, std::move(memory), here, std::move(mapping)};
}

// The lanes of a warp ring an endpoint each, at once.
void ring_by_lanes(const KernelBench& bench, PartResults& parts, bool shares_page) {
  const char* const name = shares_page ? "32 lanes on the shared page" : "32 lanes on pages of their own";
  const auto pairs = open_lanes(bench, shares_page);
  const auto lanes = pairs ? make_lanes(bench, *pairs) : tl::unexpected(pairs.error());
  if (!lanes) return parts.add(name, lanes.error().message, {});
  std::set<std::uintptr_t> pages;
  for (const KernelPair& pair : *pairs)
    pages.insert(reinterpret_cast<std::uintptr_t>(pair.handle.doorbell) / mlx5::kUarPageBytes);
  const Status launched =
      launch_lanes(reinterpret_cast<const Lane*>(lanes->here), bench.sizes.rings, progress);
  const KernelPair* failing = &pairs->front();
  std::string wrong;
  for (std::uint32_t lane = 0; lane < pairs->size() && wrong.empty(); ++lane) {
    failing = &(*pairs)[lane];
    wrong = check_rings(launched, *failing, "round");
    if (!wrong.empty() && launched == Status::kOk) wrong = fmt::format("lane {}: {}", lane, wrong);
  }
  add_part(parts, name, *failing, wrong,
           fmt::format("{} rounds of {} queues; pages: {}", bench.sizes.rings, pairs->size(), pages.size()));
  bench.alive();
}

StepResult put_by_kernel(const KernelBench& bench) {
  PartResults parts;
  const std::string unlike = put_from_each_place(bench, parts);
  if (unlike.find(kHostRings) != std::string::npos)
    return parts.result(unlike + "; indices and lanes: not tried");
  for (const Named named : {Named::kLast, Named::kNext}) ring_by_index(bench, parts, named);
  for (const bool shares_page : {false, true}) ring_by_lanes(bench, parts, shares_page);
  return parts.result(unlike);
}

StepResult ring_backwards(const KernelBench& bench) {
  constexpr std::uint32_t kPairBlocks = 16;
  constexpr char kPart[] = "newest first";
  const auto pair = open_pair(bench, {.blocks = kPairBlocks});
  if (!pair) return failed(pair.error().message);
  // That thread keeps the newest doorbell alone, so a late one would hide its successor's.
  if (pair->ends.endpoint.host_rings()) return {Verdict::kUnknown, kHostRings};
  const Status launched =
      launch_backwards(pair->handle, pair->ends.target.remote(), pair->ends.source.local(),
                       bench.sizes.backward_pairs, pair->report(), progress);
  PartResults parts;
  return judge_part(parts, kPart, *pair, check_rings(launched, *pair, "pair"),
                    fmt::format("{} pairs", bench.sizes.backward_pairs));
}

Result<Place> make_place(const KernelBench& bench, bool on_gpu) {
  if (!on_gpu) {
    auto memory = GDX_TRY(allocate_memory(bench.hca, page_bytes()));
    std::shared_ptr<GpuMapping> mapping;
    if (bench.gpu != nullptr) mapping = GDX_TRY(bench.gpu->map(memory.data(), memory.bytes()));
    const std::byte* const here = memory.data();
    return Place{std::nullopt, std::move(memory), here, std::move(mapping)};
  }
  auto allocated = GDX_TRY(GpuMemory::allocate(*bench.gpu, kGpuPageBytes));
  GDX_TRY(allocated.write(0, std::array<std::byte, kPutBytes>{}));
  auto memory = GDX_TRY(register_memory(bench.hca, allocated.address(), allocated.bytes()));
  const std::byte* const here = bench.seen_by_kernels(allocated.address());
  return Place{std::move(allocated), std::move(memory), here, nullptr};
}

// Sends messages by as many kernels as keep each short. Returns what went wrong.
std::string exchange_messages(const KernelBench& bench, const KernelPair& pair, const Place& payload,
                              const Place& signal, std::uint64_t count, bool adds) {
  constexpr std::uint64_t kAtOnce = 50'000;
  KernelReport& report = *pair.report();
  for (std::uint64_t first = 1; first <= count; first += kAtOnce) {
    const Messages messages{payload.memory.remote(),
                            signal.memory.remote(),
                            payload.here,
                            reinterpret_cast<const std::uint64_t*>(signal.here),
                            pair.ends.source.local(),
                            first,
                            std::min(kAtOnce, count + 1 - first),
                            adds};
    report.ended = 0;
    const Status launched = launch_messages(pair.handle, messages, &report, progress);
    if (launched != Status::kOk) return check_launch(launched, pair);
    const bool of_add = adds && report.index % 2 != 0;
    const std::string wrong =
        describe_completion(pair, of_add ? mlx5::WqeOpcode::kAtomicFetchAdd : mlx5::WqeOpcode::kRdmaWrite);
    const std::uint64_t newest = first + messages.count - 1;
    if (report.seen == newest && wrong.empty()) {
      bench.alive();
      continue;
    }
    const bool came = report.seen >= report.at;
    if (!wrong.empty()) return came ? wrong : fmt::format("signal {} never came: {}", report.at, wrong);
    return fmt::format("signal {} came {}, and both requests completed", report.at, came ? "late" : "never");
  }
  if (report.wrong == 0) return {};
  return fmt::format("{} of {} messages stale; the first: {}", report.wrong, count,
                     first_mismatch(report.got, kPutBytes, static_cast<std::uint32_t>(report.first_wrong)));
}

struct Placements {
  const char* name;
  bool payload_on_gpu;
  bool signal_on_gpu;
  bool adds = false;  // the signal is an add, else a WRITE
};
constexpr Placements kPlacements[] = {{"payload host, signal host", false, false},
                                      {"payload GPU, signal GPU", true, true},
                                      {"payload GPU, signal host", true, false},
                                      {"payload host, signal GPU", false, true},
                                      {"payload GPU, add GPU", true, true, true}};

StepResult see_messages(const KernelBench& bench) {
  // Step 10 judges the HCA's way to the GPU. Here memory that it refuses is left untried.
  std::string unreached;
  if (bench.gpu != nullptr) {
    const auto reached = make_place(bench, true);
    if (!reached) unreached = reached.error().message;
  }
  PartResults parts;
  StepResult result;
  for (const Placements& where : kPlacements) {
    const bool on_gpu = where.payload_on_gpu || where.signal_on_gpu;
    if (on_gpu && (bench.gpu == nullptr || !unreached.empty())) continue;
    const auto pair = open_pair(bench, {.blocks = 16});
    const auto payload = make_place(bench, where.payload_on_gpu);
    const auto signal = make_place(bench, where.signal_on_gpu);
    for (const Error* const error : {pair ? nullptr : &pair.error(), payload ? nullptr : &payload.error(),
                                     signal ? nullptr : &signal.error()}) {
      if (error != nullptr) return failed(fmt::format("{}: {}", where.name, error->message));
    }
    const std::uint64_t count = on_gpu ? bench.sizes.on_gpu : bench.sizes.messages;
    const std::string wrong = exchange_messages(bench, *pair, *payload, *signal, count, where.adds);
    result = judge_part(parts, where.name, *pair, wrong, fmt::format("{} messages, 0 stale", count));
  }
  if (!unreached.empty()) result.facts.push_back({"GPU memory", "not tried: " + unreached});
  return result;
}

constexpr KernelStep kSteps[] = {
    {"gpu-doorbells", put_by_kernel},        {"gpu-push", push_by_kernel},
    {"doorbells-backwards", ring_backwards}, {"receiver-visibility", see_messages},
    {"shared-endpoint", share_endpoint},
};

}  // namespace

std::span<const KernelStep> kernel_steps() { return kSteps; }

StepResult on_cpu_layer(StepResult result) {
  if (result.verdict == Verdict::kFail) {
    result.value = "on the CPU layer: " + result.value;
  } else if (result.verdict == Verdict::kOk) {
    result.verdict = Verdict::kUnknown;
    result.value =
        fmt::format("on the CPU layer as it should be: {}; not tried by kernels on a GPU", result.value);
  }
  return result;
}

StepResult run_kernel_step(const KernelStep& step, const KernelBench& bench) {
  StepResult result = step.run(bench);
  if (!program_has_cuda_kernels()) return on_cpu_layer(std::move(result));
  result.value = fmt::format("GPU {}: {}", bench.gpu->name(), result.value);
  return result;
}

}  // namespace gdx::doctor
