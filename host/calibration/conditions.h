// Conditions of a mode table beside the HCA: places of kernels, payload and queues, and an endpoint's slots.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "host/calibration/mode_table.h"
#include "proto/gpu/queue.h"

namespace gdx {

enum class Processor : std::uint8_t { kCpu, kGpu };  // processor that runs kernels

constexpr std::string_view name(Processor processor) { return processor == Processor::kCpu ? "cpu" : "gpu"; }
constexpr std::string_view name(Placement placement) {
  return placement == Placement::kHost ? "host" : "gpu";
}

// Resources of an endpoint, or of one that was measured.
struct QueueShape {
  Placement queues = Placement::kHost;
  std::uint32_t slot_count = 0;  // most slots of NIC memory that it may hold; 0: it cannot push
  std::uint32_t slot_bytes = 0;
  std::uint32_t bounce_slot_count = 0;  // most slots of host memory that it may hold; 0: it cannot bounce
  std::uint32_t bounce_slot_bytes = 0;
  bool blueflame = false;  // its own doorbell register, which takes a WQE along; otherwise a plain doorbell

  friend bool operator==(const QueueShape&, const QueueShape&) = default;
};

[[nodiscard]] constexpr ModeMeans means_of(const QueueShape& shape) {
  return {shape.slot_count != 0, shape.bounce_slot_count != 0};
}

[[nodiscard]] constexpr DoorbellKind doorbell_of(const QueueShape& shape) {
  return shape.blueflame ? DoorbellKind::kBlueFlame : DoorbellKind::kPlain;
}

// Returns whether a table measured with `measured` holds for an endpoint of shape `offered`. It does not hold
// for fewer or other slots than measured. Memory without slots of the endpoint does not count.
[[nodiscard]] constexpr bool holds_for(const QueueShape& measured, const QueueShape& offered) {
  const auto slots_hold = [](std::uint32_t count, std::uint32_t bytes, std::uint32_t offered_count,
                             std::uint32_t offered_bytes) {
    return offered_count == 0 || (count != 0 && count <= offered_count && bytes == offered_bytes);
  };
  return measured.queues == offered.queues && measured.blueflame == offered.blueflame &&
         slots_hold(measured.slot_count, measured.slot_bytes, offered.slot_count, offered.slot_bytes) &&
         slots_hold(measured.bounce_slot_count, measured.bounce_slot_bytes, offered.bounce_slot_count,
                    offered.bounce_slot_bytes);
}

// "queues in host memory, 32 slots of 4 KiB, 64 bounce slots of 64 KiB, BlueFlame"
[[nodiscard]] std::string describe(const QueueShape& shape);

}  // namespace gdx
