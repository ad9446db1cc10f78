#include "driver-shim/pcie/world/world_config.h"

#include <fmt/format.h>

#include <bit>

#include "driver-shim/pcie/fabric.h"

namespace gdx::pcie {
namespace {

constexpr double kMinBitsPerSecond = 1e9;
constexpr double kMaxBitsPerSecond = 10e12;

tl::unexpected<Error> refuse(std::string message) {
  return fail(Status::kInvalidArgument, std::move(message));
}

// A put of several work requests rings for each but the last, and a CPU posts what it is given.
Result<void> check_batch(const WorldConfig& config, Mode mode, std::uint64_t message_bytes) {
  const std::uint64_t most = mode == Mode::kPull     ? ~std::uint64_t{0}
                             : mode == Mode::kInline ? kMaxInlineBytes
                                                     : slot_payload_bytes(config, mode);
  if (most == 0) {
    return fail(Status::kUnsupported,
                fmt::format("slots of {} B hold no line of {} B with a flag: use larger",
                            config.staging.slot_bytes, kFlaggedLineBytes));
  }
  if (config.batch == 1) return {};
  if (mode == Mode::kProxy) return fail(Status::kUnsupported, "a proxy's CPU rings for each put: no batches");
  if (message_bytes <= most) return {};
  return fail(Status::kUnsupported,
              fmt::format("a batch has puts of one work request, here of up to {} B: no batches", most));
}

}  // namespace

Result<void> check(const WorldConfig& config) {
  if (auto checked = check(config.platform); !checked) return checked;
  const Wire& wire = config.wire;
  if (!(wire.bits_per_s >= kMinBitsPerSecond && wire.bits_per_s <= kMaxBitsPerSecond))
    return refuse(fmt::format("a wire of {} Gb/s: use 1 to 10000", wire.bits_per_s / 1e9));
  if (!std::has_single_bit(wire.mtu_bytes) || wire.mtu_bytes < 256 || wire.mtu_bytes > 4096)
    return refuse(fmt::format("MTU {}: use 256, 512, 1024, 2048 or 4096 B", wire.mtu_bytes));
  const Staging& staging = config.staging;
  const bool two_root_complexes = config.path == PathClass::kNode || config.path == PathClass::kSys;
  if (config.platform.root.only_one && two_root_complexes) {
    return refuse(fmt::format("{} has one root complex, so no {} path: use PIX, PXB or PHB",
                              config.platform.name, name(config.path)));
  }
  if (!std::has_single_bit(staging.slot_bytes) || staging.slot_bytes < 64)
    return refuse(fmt::format("slots of {} B: use a power of two from 64", staging.slot_bytes));
  // The library finds a slot by a counter that wraps, so it accepts no other number of slots.
  if (!std::has_single_bit(staging.pool_bytes))
    return refuse(fmt::format("a staging pool of {} B: use a power of two", staging.pool_bytes));
  if (staging.pool_bytes < staging.slot_bytes) {
    return refuse(fmt::format("a staging pool of {} B holds no slot of {} B: enlarge it or use smaller slots",
                              staging.pool_bytes, staging.slot_bytes));
  }
  if (config.lanes == 0 || config.window == 0)
    return refuse("no endpoint or no window: use at least 1 of each");
  if (config.batch == 0) return refuse("a batch of no puts: use at least 1");
  const Bounce& bounce = config.bounce;
  if (!std::has_single_bit(bounce.chunk_bytes) || bounce.pool_bytes < bounce.chunk_bytes)
    return refuse(fmt::format("bounce chunks of {} B in {} B: use a power of two that fits",
                              bounce.chunk_bytes, bounce.pool_bytes));
  return {};
}

Result<void> check(const WorldConfig& config, Mode mode, std::uint64_t message_bytes) {
  // Leaves a proxy's slots unscheduled, as other libraries do.
  const bool scheduled = is_push(mode) || mode == Mode::kBounce;
  const std::uint64_t slots = slots_of(config, mode);
  if (scheduled && config.lanes > slots) {
    return fail(Status::kUnsupported,
                fmt::format("{} endpoints on {} slots, of which each keeps one: use fewer{}", config.lanes,
                            slots, is_push(mode) ? ", or a larger pool" : ""));
  }
  if (auto checked = check_batch(config, mode, message_bytes); !checked) return checked;
  EventQueue events;
  const Fabric fabric(events, config.platform, config.path);
  if (fabric.can_read(kNicNode, kGpuNode)) return {};
  const bool gpu_posts = mode != Mode::kProxy;
  const bool brought = config.doorbell == DoorbellKind::kBlueFlame && config.batch == 1 &&
                       (mode != Mode::kInline || message_bytes <= kShortInlineBytes);
  const bool reads_gpu_queue = config.queues == QueuePlacement::kGpu && gpu_posts && !brought;
  if (mode != Mode::kPull && !reads_gpu_queue) return {};
  return fail(Status::kUnsupported,
              fmt::format("{} forwards no peer reads on a {} path", config.platform.name, name(config.path)));
}

}  // namespace gdx::pcie
