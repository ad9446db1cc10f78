#include "driver-shim/pcie/model/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

namespace gdx::pcie {
namespace {

constexpr std::uint64_t kSmallestBytes = 8;

tl::unexpected<Error> refuse(std::string message) {
  return fail(Status::kInvalidArgument, std::move(message));
}

template <typename T>
void override_with(T& field, T value) {
  if (value != 0) field = value;
}

Result<Platform> platform_named(const std::string& wanted) {
  std::vector<std::string_view> names;
  for (const Platform* platform : kPlatforms) {
    if (platform->name == wanted) return *platform;
    names.push_back(platform->name);
  }
  return refuse(fmt::format("--platform: '{}': use {}", wanted, fmt::join(names, ", ")));
}

Result<std::vector<Mode>> modes_named(const std::string& list) {
  if (list == "all") return std::vector<Mode>(kModes.begin(), kModes.end());
  std::vector<std::string_view> names;
  names.reserve(kModes.size());
  for (const Mode mode : kModes) names.push_back(name(mode));
  const std::string use = fmt::format("use {} or all", fmt::join(names, ", "));
  std::vector<Mode> modes;
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) {
    const auto mode = mode_of(word);
    if (!mode) return refuse(fmt::format("--mode: '{}': {}", word, use));
    modes.push_back(*mode);
  }
  if (modes.empty()) return refuse("--mode: '': " + use);
  return modes;
}

std::vector<std::uint64_t> all_sizes() {
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t size = kSmallestBytes; size < kLargestBytes; size *= 4) sizes.push_back(size);
  sizes.push_back(kLargestBytes);
  return sizes;
}

Result<void> apply(const ModelOptions& options, WorldConfig& world) {
  Platform& platform = world.platform;
  if (options.generation != 0) platform.link.generation = static_cast<Generation>(options.generation);
  override_with(platform.link.lanes, options.lanes);
  override_with(platform.link.mps_bytes, options.mps_bytes);
  override_with(platform.nic.mrrs_bytes, options.mrrs_bytes);
  override_with(platform.nic.tags, options.tags);
  override_with(platform.host_memory.completion_bytes, options.rcb_bytes);
  override_with(platform.root.socket_bytes_per_s, options.socket_gbps * 1e9 / 8);
  override_with(platform.root.peer_read_lines, options.peer_read_lines);
  if (options.peer_read_lines != 0) platform.root.peer_read_lines_are = Origin::kGiven;
  override_with(world.wire.mtu_bytes, options.mtu_bytes);
  override_with(platform.gpu_store_bytes, options.store_bytes);
  override_with(world.staging.pool_bytes, options.pool_bytes);
  override_with(world.staging.slot_bytes, options.slot_bytes);
  override_with(world.lanes, options.endpoints);
  world.batch = options.batch;
  override_with(world.wire.latency_ns, options.wire_latency_ns);
  world.wire.bits_per_s = options.wire_gbps * 1e9;
  if (options.order_ns >= 0) {
    world.ordering.gpu_scope_ns = static_cast<std::uint32_t>(options.order_ns);
    world.ordering.system_scope_ns = static_cast<std::uint32_t>(options.order_ns);
  }
  const auto path = path_class(options.path);
  if (!path) return refuse(fmt::format("--path: '{}': use PIX, PXB, PHB, NODE or SYS", options.path));
  world.path = *path;
  if (options.queues != "host" && options.queues != "gpu")
    return refuse(fmt::format("--queues: '{}': use host or gpu", options.queues));
  const auto doorbell = doorbell_kind_of(options.doorbell);
  if (!doorbell) return refuse(fmt::format("--doorbell: '{}': use plain or blueflame", options.doorbell));
  world.doorbell = *doorbell;
  const auto record = record_use_of(options.record);
  if (!record) return refuse(fmt::format("--record: '{}': use read or unread", options.record));
  world.record = *record;
  world.queues = options.queues == "gpu" ? QueuePlacement::kGpu : QueuePlacement::kHost;
  return {};
}

}  // namespace

Result<ModelRequest> to_request(const ModelOptions& options) {
  ModelRequest request;
  request.world.platform = GDX_TRY(platform_named(options.platform));
  GDX_TRY(apply(options, request.world));
  request.modes = GDX_TRY(modes_named(options.modes));
  request.sizes_bytes = options.sizes_bytes.empty() ? all_sizes() : options.sizes_bytes;
  for (const std::uint64_t size : request.sizes_bytes) {
    if (size == 0 || size > kLargestBytes)
      return refuse(fmt::format("--size-bytes: '{}': use a whole number from 1 to {}", size, kLargestBytes));
  }
  GDX_TRY(check(request.world));
  return request;
}

}  // namespace gdx::pcie
