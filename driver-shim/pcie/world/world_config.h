// Parts of a modelled world besides the PCIe platform. Sources as in parameters.h.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/result.h"
#include "driver-shim/pcie/parameters.h"
#include "driver-shim/pcie/world/modes.h"
#include "proto/mlx5/wqe.h"
#include "proto/path_class.h"

namespace gdx::pcie {

struct Wire {
  double bits_per_s = 400e9;
  std::uint32_t latency_ns = 800;  // [guessed] one way: two cables and a switch, with its FEC
  std::uint32_t mtu_bytes = 4096;
  // Preamble, Ethernet, IPv4, UDP, BTH, ICRC, FCS and gap of a packet: 8 + 14 + 20 + 8 + 12 + 4 + 4 + 12, and
  // RETH in the first. [spec] IEEE 802.3, InfiniBand annex A17
  std::uint32_t packet_overhead_bytes = 82;
  std::uint32_t reth_bytes = 16;
};

// On-NIC memory for pushes.
struct Staging {
  std::uint64_t pool_bytes = 128 * 1024;  // [measured] MEMIC of a ConnectX-5 and later: 128 to 256 KiB
  std::uint32_t slot_bytes = 4096;        // as proto/gpu/staging.h
};

// Host memory through which bounce and proxy send.
struct Bounce {
  std::uint64_t pool_bytes = 4 << 20;     // [guessed] NCCL's default buffer size of a channel
  std::uint32_t chunk_bytes = 64 * 1024;  // [guessed]
};

// Control and remote-address segment and the inline header leave the rest of a work request to an inline
// payload: of one block, or of the four that it may have. The sizes are those of
// device/impl/wqe.h.
inline constexpr std::uint32_t kInlineFixedBytes = 2 * mlx5::kSegmentBytes + 4;
inline constexpr std::uint32_t kShortInlineBytes = mlx5::kWqeBasicBlockBytes - kInlineFixedBytes;
inline constexpr std::uint32_t kMaxInlineBytes = 4 * mlx5::kWqeBasicBlockBytes - kInlineFixedBytes;

// Time of a put's ordering, all its fences together. [measured] H200 with ConnectX-7, "Dissecting Down to the
// Bone" (2026): 0.70 us at GPU scope, 2.62 us at system scope. GPU scope suffices if queue and payload are in
// GPU memory. Stores that another device or the host reads in order need system scope.
struct Ordering {
  std::uint32_t gpu_scope_ns = 700;
  std::uint32_t system_scope_ns = 2620;
};

enum class QueuePlacement : std::uint8_t { kHost, kGpu };

// Returns the time of ordering for a put that device code posts; shorter if it reaches GPU memory only.
constexpr std::uint32_t order_ns(const Ordering& ordering, Mode mode, QueuePlacement queues) {
  const bool within_gpu = queues == QueuePlacement::kGpu && (mode == Mode::kPull || mode == Mode::kInline);
  return within_gpu ? ordering.gpu_scope_ns : ordering.system_scope_ns;
}

struct WorldConfig {
  Platform platform = kGeneric;
  PathClass path = PathClass::kPix;  // on both sides
  QueuePlacement queues = QueuePlacement::kHost;
  DoorbellKind doorbell =
      DoorbellKind::kBlueFlame;         // with the fewest reads; endpoints ring plainly by default
  RecordUse record = RecordUse::kRead;  // for a doorbell that brings no WQE. [guessed]
  Wire wire;
  Staging staging;
  Bounce bounce;
  Ordering ordering;
  std::uint32_t nic_ns = 150;                    // [guessed] a NIC's pipeline, per message and direction
  std::uint32_t notice_ns = 200;                 // [guessed] a polling CPU thread, until its next store
  std::uint64_t fetch_ahead_bytes = 256 * 1024;  // [guessed] payload a NIC fetches before the wire takes it
  std::uint32_t lanes = 32;   // for rates: endpoints that post at once, each one put after the other
  std::uint32_t window = 16;  // for rates: batches that an endpoint leaves uncompleted
  // Puts that share one release and one plain doorbell, as by Doorbell::kDefer; no more than the endpoint's
  // lease has slots.
  std::uint32_t batch = 1;
};

// Most messages a second that were published. A modelled rate above them is endpoints over fence, which no
// NIC is known to serve. [measured] H200 with ConnectX-7, as Ordering: 21.6 million by a warp on one queue,
// 260 million by all. Source of the order of size: NVIDIA ConnectX-6 user manual, "215 million messages per
// second".
inline constexpr double kMostMessagesOfQueuePerS = 21.6e6;
inline constexpr double kMostMessagesOfNicPerS = 260e6;
constexpr double most_messages_per_s(const WorldConfig& config) {
  return std::min(kMostMessagesOfNicPerS, config.lanes * kMostMessagesOfQueuePerS);
}

// Returns the payload that fits a slot of the mode, which stages; 0 for flagged lines in slots of less.
constexpr std::uint32_t slot_payload_bytes(const WorldConfig& config, Mode mode) {
  if (!is_push(mode)) return config.bounce.chunk_bytes;
  const std::uint32_t bytes = config.staging.slot_bytes;
  return mode == Mode::kPushFlags ? bytes / kFlaggedLineBytes * (kFlaggedLineBytes - kFlagBytes) : bytes;
}

// Returns the slots of all endpoints together.
constexpr std::uint64_t slots_of(const WorldConfig& config, Mode mode) {
  return is_push(mode) ? config.staging.pool_bytes / config.staging.slot_bytes
                       : config.bounce.pool_bytes / config.bounce.chunk_bytes;
}

// Errors: kInvalidArgument naming what is impossible.
[[nodiscard]] Result<void> check(const WorldConfig& config);

// Errors: kUnsupported when this platform and path cannot do it, with the reason.
[[nodiscard]] Result<void> check(const WorldConfig& config, Mode mode, std::uint64_t message_bytes);

}  // namespace gdx::pcie
