#include "host/programs/calibrate/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "base/output.h"
#include "base/size_text.h"
#include "host/calibration/mode_table.h"
#include "host/gdx.h"
#include "host/gpu/gpu_memory.h"
#include "host/programs/calibrate/put_kernels.h"

namespace gdx::calibration {
namespace {

constexpr std::uint64_t kTimeoutNs = 60'000'000'000;
constexpr std::uint64_t kShortInlineBytes = 28;
constexpr std::array kModes = {TableMode::kInline, TableMode::kPush, TableMode::kPull, TableMode::kBounce};

// Powers of two, and the two sizes at which inline data needs another kind of work request.
std::vector<std::uint64_t> sizes_up_to(std::uint64_t max_bytes) {
  std::vector<std::uint64_t> sizes{kShortInlineBytes, kMaxAutoInlineBytes};
  for (std::uint64_t bytes = 8; bytes <= max_bytes; bytes *= 2) sizes.push_back(bytes);
  std::ranges::sort(sizes);
  return sizes;
}

// Enough that the clock's resolution is nothing, few enough for a calibration of seconds.
std::uint32_t messages_for(std::uint64_t bytes) {
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>((256 * 1024) / bytes, 2, 32));
}

// Returns `wanted` slots of a pool, all of them for 0. Refuses more than the pool has, because no endpoint
// could be made with them.
Result<std::uint32_t> slots_of(const std::optional<StagingPool>& pool, const char* option,
                               std::uint32_t wanted) {
  const std::uint32_t all = pool ? pool->slot_count() : 0;
  if (wanted <= all) return wanted == 0 ? all : wanted;
  return fail(Status::kInvalidArgument,
              fmt::format("{}: '{}': use at most {}, which the pool has", option, wanted, all));
}

// Memory that the HCA reads and writes, and kernels do: of the host, or of the GPU.
struct Buffer {
  std::optional<GpuMemory> on_gpu;  // freed after its registration
  std::optional<Memory> memory;
  std::shared_ptr<GpuMapping> mapping;
};

struct Bench {
  std::optional<StagingPool> nic_memory;  // not every HCA has one
  std::optional<StagingPool> host_memory;
  Buffer source;
  Buffer target;
  Buffer times;
  std::optional<Endpoint> sender;
  std::optional<Endpoint> receiver;
  bool push_refused = false;
};

Result<void> allocate(const Hca& hca, const Gpu* gpu, Placement place, std::uint64_t bytes, Buffer& buffer) {
  if (place == Placement::kHost) {
    auto memory = GDX_TRY(allocate_memory(hca, bytes));
    buffer.memory.emplace(std::move(memory));
    if (gpu == nullptr) return {};
    buffer.mapping = GDX_TRY(gpu->map(buffer.memory->data(), buffer.memory->bytes()));
    return {};
  }
  buffer.on_gpu = GDX_TRY(GpuMemory::allocate(*gpu, bytes));
  auto memory = register_memory(hca, buffer.on_gpu->address(), bytes);
  if (!memory) {
    return fail(memory.error().status,
                memory.error().message + "; or measure with payload in host memory: --payload host");
  }
  buffer.memory.emplace(std::move(*memory));
  return {};
}

// The GPU whose kernels are this program's; those of the CPU layer are on none.
std::optional<Gpu> gpu_of_kernels(const Gpu* gpu) {
  return gpu != nullptr && program_has_cuda_kernels() ? std::optional(*gpu) : std::nullopt;
}

Result<void> connect(const Hca& hca, const Gpu* gpu, const MeasureOptions& wanted, Bench& bench) {
  EndpointOptions options{.gpu = gpu_of_kernels(gpu),
                          .timeout_ns = kTimeoutNs,
                          .retry_count = 7,
                          .may_ring_unprobed_blueflame = true,
                          .may_time_out_before_retries = true};  // whatever GDX_ACK_TIMEOUT
  if (!bench.push_refused) {
    options.slot_count = GDX_TRY(slots_of(bench.nic_memory, "--slots", wanted.slot_count));
  }
  options.bounce_slot_count =
      GDX_TRY(slots_of(bench.host_memory, "--bounce-slots", wanted.bounce_slot_count));
  options.auto_modes.table = ModeTable{0, 0, kNoSizeLimit};  // no put of the measurement uses it
  auto sender = GDX_TRY(
      Endpoint::create(hca, {bench.nic_memory ? &*bench.nic_memory : nullptr, &*bench.host_memory}, options));
  options.slot_count = options.bounce_slot_count = 0;
  auto receiver = GDX_TRY(Endpoint::create(hca, {}, options));
  GDX_TRY(sender.connect(receiver.address()));
  GDX_TRY(receiver.connect(sender.address()));
  bench.sender.emplace(std::move(sender));
  bench.receiver.emplace(std::move(receiver));
  return {};
}

Result<std::unique_ptr<Bench>> set_up(const Hca& hca, const Gpu* gpu, Placement payload,
                                      const MeasureOptions& options) {
  auto bench = std::make_unique<Bench>();
  auto nic_memory = StagingPool::create(hca, {.slot_bytes = options.slot_bytes});
  if (nic_memory) {
    bench->nic_memory.emplace(std::move(*nic_memory));
  } else if (nic_memory.error().status != Status::kUnsupported) {
    return tl::unexpected(nic_memory.error());
  }
  StagingOptions in_host_memory = StagingOptions::in_host_memory();
  in_host_memory.slot_bytes = options.bounce_slot_bytes;
  auto host_memory = GDX_TRY(StagingPool::create(hca, in_host_memory));
  bench->host_memory.emplace(std::move(host_memory));
  const std::tuple<Buffer*, Placement, std::uint64_t> buffers[] = {
      {&bench->source, payload, options.max_bytes},
      {&bench->target, payload, options.max_bytes},
      {&bench->times, Placement::kHost, sizeof(PutTimes)}};
  for (const auto& [buffer, place, bytes] : buffers) {
    GDX_TRY(allocate(hca, gpu, place, bytes, *buffer));
  }
  if (gpu != nullptr) {
    bench->push_refused = bench->nic_memory && !bench->nic_memory->map_if_allowed(*gpu).empty();
    if (bench->push_refused) bench->nic_memory.reset();
    GDX_TRY(bench->host_memory->map_to(*gpu));
  }
  GDX_TRY(connect(hca, gpu, options, *bench));
  if (gpu != nullptr) GDX_TRY(bench->sender->map_to(*gpu));
  return bench;
}

// `options` have at most as many slots as there are, which connect() has checked.
QueueShape shape_of(const EndpointHandle& handle, const MeasureOptions& options) {
  const auto held = [](std::uint32_t wanted, std::uint32_t all) { return wanted == 0 ? all : wanted; };
  return {.queues = handle.placement,
          .slot_count = held(options.slot_count, handle.staging.slot_count),
          .slot_bytes = handle.staging.slot_bytes,
          .bounce_slot_count = held(options.bounce_slot_count, handle.bounce.slot_count),
          .bounce_slot_bytes = handle.bounce.slot_bytes,
          .blueflame = handle.blueflame_half_bytes != 0};
}

bool is_possible(const Bench& bench, TableMode mode, std::uint64_t bytes) {
  switch (mode) {
    case TableMode::kInline: return bytes <= kMaxAutoInlineBytes;
    case TableMode::kPush: return bench.nic_memory.has_value();
    case TableMode::kPull:
    case TableMode::kBounce: return true;
  }
  return false;
}

// Measures puts of `bytes` once, and returns the ns of one message.
Result<double> time_once(const Bench& bench, TableMode mode, std::uint64_t bytes) {
  auto& times = *reinterpret_cast<PutTimes*>(bench.times.memory->data());
  const std::uint32_t messages = messages_for(bytes);
  const Status launched = time_puts(mode, bench.sender->handle(), bench.target.memory->remote(),
                                    bench.source.memory->local(), bytes, messages, &times, progress);
  const Status status = launched != Status::kOk ? launched : times.status;
  if (status == Status::kOk)
    return static_cast<double>(std::max<std::uint64_t>(times.total_ns, 1)) / messages;
  return fail(status, fmt::format("{} of {} failed: {}; calibrate when the HCA and its port are well",
                                  kTableModeNames[static_cast<std::size_t>(mode)], size_text(bytes),
                                  status_name(status)));
}

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

std::string name_of(const Hca& hca) {
  if (hca.is_software()) return "the software HCA";
  return fmt::format("HCA {} (firmware {})", hca.name(), hca.firmware());
}

}  // namespace

Result<BlueFlameProbe> probe_blueflame(const Hca& hca, const Gpu* gpu, const ProbeShape& shape) {
  // No packet leaves, so there is no peer whose death could come first.
  constexpr std::uint64_t kProbeTimeoutNs = 5'000'000'000;
  Buffer buffer;
  if (auto allocated = allocate(hca, gpu, Placement::kHost, sizeof(BlueFlameProbe), buffer); !allocated)
    return tl::unexpected(allocated.error());
  auto endpoint = GDX_TRY(Endpoint::create(hca, {},
                                           {.send_queue_blocks = kProbeBlocks,
                                            .gpu = gpu_of_kernels(gpu),
                                            .auto_modes = {.table = ModeTable{0, 0, kNoSizeLimit}},
                                            .timeout_ns = kProbeTimeoutNs,
                                            .doorbell = DoorbellKind::kBlueFlame,
                                            .may_ring_unprobed_blueflame = true,
                                            .may_time_out_before_retries = true}));
  GDX_TRY(endpoint.connect(endpoint.address()));
  if (gpu != nullptr) GDX_TRY(endpoint.map_to(*gpu));
  if (endpoint.handle().blueflame_half_bytes == 0) {
    return fail(Status::kUnsupported, fmt::format("HCA {} has no BlueFlame register left for its probe: end "
                                                  "other programs, or use plain doorbells ({}=plain)",
                                                  hca.name(), kDoorbellVariable));
  }
  auto& probe = *reinterpret_cast<BlueFlameProbe*>(buffer.memory->data());
  const Status launched = launch_probe(endpoint.handle(), shape, &probe, progress);
  if (launched != Status::kOk) probe.status = launched;
  return probe;
}

std::string describe(const BlueFlameProbe& probe) {
  if (probe.status == Status::kUnsupported) return "not offered here";
  if (probe.status != Status::kOk) return fmt::format("failed: {}", status_name(probe.status));
  return fmt::format("{} of {} copies used", probe.used, probe.copies);
}

Result<void> judge(const std::string& hca, const BlueFlameProbe& probe) {
  if (probe.status == Status::kOk && 2 * probe.used >= probe.copies) return {};
  const std::string found = probe.status == Status::kOk
                                ? fmt::format("{} of {} copies arrived whole", probe.used, probe.copies)
                                : std::string(status_name(probe.status));
  return fail(Status::kUnsupported,
              fmt::format("the probe of BlueFlame on HCA {} failed: {}; use plain doorbells ({}=plain)", hca,
                          found, kDoorbellVariable));
}

Result<void> check_measure_options(const MeasureOptions& options) {
  if (!std::has_single_bit(options.max_bytes) || options.max_bytes < kMinMaxBytes ||
      options.max_bytes > kMaxMaxBytes) {
    return fail(Status::kInvalidArgument, fmt::format("--max-bytes: '{}': use a power of two from {} to {}",
                                                      options.max_bytes, kMinMaxBytes, kMaxMaxBytes));
  }
  if (options.rounds == 0 || options.rounds > kMaxCalibrationRounds) {
    return fail(Status::kInvalidArgument, fmt::format("--rounds: '{}': use a whole number from 1 to {}",
                                                      options.rounds, kMaxCalibrationRounds));
  }
  return {};
}

MeasuredSize size_of_rounds(std::uint64_t bytes, ModeRounds rounds) {
  MeasuredSize size{.bytes = bytes};
  for (std::size_t mode = 0; mode < rounds.size(); ++mode) {
    std::vector<double>& all = rounds[mode];
    if (all.empty()) continue;
    const auto [least, most] = std::ranges::minmax(all);
    size.spread[mode] = {least, most};
    size.ns[mode] = median(all);
  }
  return size;
}

Result<Measurement> measure_modes(const Hca& hca, const Gpu* gpu, const MeasureOptions& options) {
  GDX_TRY(check_measure_options(options));
  Measurement measurement;
  measurement.payload = options.payload.value_or(gpu != nullptr ? Placement::kGpu : Placement::kHost);
  if (measurement.payload == Placement::kGpu && gpu == nullptr) {
    return fail(Status::kInvalidArgument, "--payload: 'gpu': kernels on a CPU do not reach it; add --gpu");
  }
  const auto bench = GDX_TRY(set_up(hca, gpu, measurement.payload, options));
  if (bench->sender->handle().blueflame_half_bytes != 0) {
    const auto probe = GDX_TRY(probe_blueflame(hca, gpu, {}));
    GDX_TRY(judge(hca.name(), probe));
    measurement.copies = probe.copies;
    measurement.whole_copies = probe.used;
  }
  const std::vector<std::uint64_t> sizes = sizes_up_to(options.max_bytes);
  measurement.rounds.resize(sizes.size());
  const Progress shown;
  for (std::uint32_t round = 0; round <= options.rounds; ++round) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      shown.show("measuring {} B, round {} of {}", sizes[i], round, options.rounds);
      for (const TableMode mode : kModes) {
        if (!is_possible(*bench, mode, sizes[i])) continue;
        const auto ns = GDX_TRY(time_once(*bench, mode, sizes[i]));
        // Leaves the first round out, because it warms up.
        if (round != 0) measurement.rounds[i][static_cast<std::size_t>(mode)].push_back(ns);
      }
    }
  }
  measurement.shape = shape_of(bench->sender->handle(), options);
  measurement.measured_on = fmt::format(
      "{}, {}", name_of(hca), gpu != nullptr ? fmt::format("kernels of {}", gpu->name()) : "CPU kernels");
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    measurement.sizes.push_back(size_of_rounds(sizes[i], measurement.rounds[i]));
  }
  return measurement;
}

}  // namespace gdx::calibration
