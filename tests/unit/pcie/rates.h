// Steady rates of a fabric, taken between the first and the last arrival, so that no latency is in them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "driver-shim/pcie/fabric.h"

namespace gdx::pcie::test {

struct Flow {
  NodeId from;
  NodeId to;
  std::uint32_t transfer_bytes;
  std::uint32_t transfers = 8192;
};

template <typename Start>
double bytes_per_s(const Platform& platform, PathClass path, const Flow& flow, Start start) {
  EventQueue events;
  Fabric fabric(events, platform, path);
  TimePs first = 0;
  TimePs last = 0;
  for (std::uint32_t i = 0; i < flow.transfers; ++i) {
    const std::uint64_t address = std::uint64_t{i} * std::max(flow.transfer_bytes, 4096u);
    start(fabric, address, [&](TimePs now) {
      if (first == 0) first = now;
      last = now;
    });
  }
  events.run();
  const double bytes = static_cast<double>(flow.transfer_bytes) * (flow.transfers - 1);
  return bytes * kPsPerSecond / static_cast<double>(last - first);
}

inline double write_bytes_per_s(const Platform& platform, PathClass path, const Flow& flow) {
  return bytes_per_s(platform, path, flow, [&](Fabric& fabric, std::uint64_t address, auto done) {
    fabric.write(flow.from, flow.to, address, flow.transfer_bytes, Purpose::kPayload, done);
  });
}

inline double read_bytes_per_s(const Platform& platform, PathClass path, const Flow& flow) {
  return bytes_per_s(platform, path, flow, [&](Fabric& fabric, std::uint64_t address, auto done) {
    fabric.read(flow.from, flow.to, address, flow.transfer_bytes, Purpose::kPayload, done);
  });
}

inline double read_latency_ns(const Platform& platform, PathClass path, NodeId from, NodeId to,
                              std::uint32_t length_bytes) {
  EventQueue events;
  Fabric fabric(events, platform, path);
  TimePs at = 0;
  fabric.read(from, to, 0, length_bytes, Purpose::kPayload, [&](TimePs now) { at = now; });
  events.run();
  return to_ns(at);
}

constexpr double kBitsPerByte = 8;
constexpr double kGiga = 1e9;
constexpr double gigabits(double bytes_per_s) { return bytes_per_s * kBitsPerByte / kGiga; }
constexpr double gigabytes(double bytes_per_s) { return bytes_per_s / kGiga; }

// Buffers and tags so plentiful that only the links count, as in pcie-bench's model.
inline Platform without_limits(Platform platform) {
  constexpr Credits kPlenty{1 << 16, 1 << 24};
  platform.buffers = {kPlenty, kPlenty, kPlenty};
  platform.nic.tags = 1 << 16;
  platform.root.peer_read_lines = 1 << 16;
  platform.memory_bytes_per_s = 1e12;
  return platform;
}

}  // namespace gdx::pcie::test
