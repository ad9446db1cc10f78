#include "host/calibration/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <utility>

#include "host/calibration/mode_table.h"
#include "host/calibration/put_kernels.h"
#include "host/gdx.h"

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
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>((256 * 1024) / bytes, 1, 32));
}

struct Bench {
  std::optional<StagingPool> nic_memory;  // not every HCA has one
  std::optional<StagingPool> host_memory;
  std::optional<Memory> source;
  std::optional<Memory> target;
  std::optional<Memory> times;
  std::optional<Endpoint> sender;
  std::optional<Endpoint> receiver;
};

Result<void> connect(const Hca& hca, Bench& bench) {
  EndpointOptions options{.timeout_ns = kTimeoutNs, .retry_count = 7};
  options.slot_count = bench.nic_memory ? bench.nic_memory->slot_count() : 0;
  options.bounce_slot_count = bench.host_memory->slot_count();
  options.auto_modes.table = ModeTable{0, 0, kNoSizeLimit};  // no put of these goes by it
  auto sender =
      Endpoint::create(hca, {bench.nic_memory ? &*bench.nic_memory : nullptr, &*bench.host_memory}, options);
  if (!sender) return tl::unexpected(sender.error());
  options.slot_count = options.bounce_slot_count = 0;
  auto receiver = Endpoint::create(hca, {}, options);
  if (!receiver) return tl::unexpected(receiver.error());
  if (auto connected = sender->connect(receiver->address()); !connected) return connected;
  if (auto connected = receiver->connect(sender->address()); !connected) return connected;
  bench.sender.emplace(std::move(*sender));
  bench.receiver.emplace(std::move(*receiver));
  return {};
}

Result<std::unique_ptr<Bench>> set_up(const Hca& hca, std::uint64_t max_bytes) {
  auto bench = std::make_unique<Bench>();
  auto nic_memory = StagingPool::create(hca);
  if (nic_memory) {
    bench->nic_memory.emplace(std::move(*nic_memory));
  } else if (nic_memory.error().status != Status::kUnsupported) {
    return tl::unexpected(nic_memory.error());
  }
  auto host_memory = StagingPool::create(hca, StagingOptions::in_host_memory());
  if (!host_memory) return tl::unexpected(host_memory.error());
  bench->host_memory.emplace(std::move(*host_memory));
  const std::pair<std::optional<Memory>*, std::uint64_t> buffers[] = {
      {&bench->source, max_bytes}, {&bench->target, max_bytes}, {&bench->times, sizeof(PutTimes)}};
  for (const auto& [buffer, bytes] : buffers) {
    auto memory = allocate_memory(hca, bytes);
    if (!memory) return tl::unexpected(memory.error());
    buffer->emplace(std::move(*memory));
  }
  if (auto connected = connect(hca, *bench); !connected) return tl::unexpected(connected.error());
  return bench;
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

// ns of one message.
Result<double> time_once(const Bench& bench, TableMode mode, std::uint64_t bytes) {
  auto& times = *reinterpret_cast<PutTimes*>(bench.times->data());
  const std::uint32_t messages = messages_for(bytes);
  const Status launched = time_puts(mode, bench.sender->handle(), bench.target->remote(),
                                    bench.source->local(), bytes, messages, &times, progress);
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
  if (hca.counter("softhca_retransmitted_packets")) return "the software HCA";
  return fmt::format("HCA {} (firmware {})", hca.name(), hca.firmware());
}

}  // namespace

Result<void> check_measure_options(const MeasureOptions& options) {
  if (!std::has_single_bit(options.max_bytes) || options.max_bytes < kMinMaxBytes ||
      options.max_bytes > kMaxMaxBytes) {
    return fail(Status::kInvalidArgument, fmt::format("--max-bytes {}: use a power of two from {} to {}",
                                                      options.max_bytes, kMinMaxBytes, kMaxMaxBytes));
  }
  if (options.rounds == 0 || options.rounds > kMaxRounds) {
    return fail(Status::kInvalidArgument,
                fmt::format("--rounds {}: use 1 to {}", options.rounds, kMaxRounds));
  }
  return {};
}

Result<Measurement> measure_modes(const Hca& hca, const MeasureOptions& options) {
  if (auto checked = check_measure_options(options); !checked) return tl::unexpected(checked.error());
  const auto bench = set_up(hca, options.max_bytes);
  if (!bench) return tl::unexpected(bench.error());
  const std::vector<std::uint64_t> sizes = sizes_up_to(options.max_bytes);
  std::vector<std::array<std::vector<double>, kModes.size()>> samples(sizes.size());
  for (std::uint32_t round = 0; round <= options.rounds; ++round) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      for (const TableMode mode : kModes) {
        if (!is_possible(**bench, mode, sizes[i])) continue;
        const auto ns = time_once(**bench, mode, sizes[i]);
        if (!ns) return tl::unexpected(ns.error());
        if (round != 0) samples[i][static_cast<std::size_t>(mode)].push_back(*ns);  // the first warms up
      }
    }
  }
  Measurement measurement;
  measurement.measured_on = fmt::format("{}, {}", name_of(hca), kernels_run_as());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    MeasuredSize size{.bytes = sizes[i]};
    for (std::size_t mode = 0; mode < kModes.size(); ++mode) {
      if (!samples[i][mode].empty()) size.ns[mode] = median(samples[i][mode]);
    }
    measurement.sizes.push_back(size);
  }
  return measurement;
}

}  // namespace gdx::calibration
