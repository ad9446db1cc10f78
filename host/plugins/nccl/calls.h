// Calls that have one meaning in all of NCCL's interfaces.
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <exception>

#include "host/plugins/nccl/abi.h"
#include "host/plugins/nccl/context.h"
#include "host/plugins/nccl/log.h"

namespace gdx::nccl {

inline constexpr std::size_t kMostMessageBytes = std::size_t{1} << 30;

// Runs a call of NCCL's, which no exception leaves.
template <typename Call>
Outcome guarded(Call call) {
  try {
    return call();
  } catch (const std::exception& error) {
    warn(fmt::format("the call failed: {}", error.what()));
    return Outcome::kSystemError;
  }
}

// Opens a listener by `open` of the context, and writes the handle by which others find it.
template <typename Open>
Outcome listen_by(void* context, void* handle, void** listener, Open open) {
  return guarded([&] {
    Handle made{};
    const auto found = context_of(context);
    if (!found) return told(found.error());
    auto opened = open(**found, made);
    if (!opened) return told(opened.error());
    std::memcpy(handle, &made, sizeof made);
    *listener = opened->release();
    return Outcome::kSuccess;
  });
}

[[nodiscard]] Outcome init(void** context, Logger logger);
[[nodiscard]] Outcome count_devices(int* count);
[[nodiscard]] Outcome finalize(void* context);

// `device_type`: who posts, by NCCL's numbers. `most_receives`: of a group; for RMA, which has none, NCCL
// keeps 32 times as many requests open.
template <typename Properties, int device_type, int most_receives>
Outcome get_properties(int number, Properties* properties) {
  constexpr int kMostCommunicators = 65'536;
  return guarded([&] {
    const auto found = device_at(number);
    if (!found) return told(found.error());
    const Device& device = **found;
    Properties made{};
    made.name = const_cast<char*>(device.name.c_str());
    made.pci_path = device.pci_path.empty() ? nullptr : const_cast<char*>(device.pci_path.c_str());
    made.guid = static_cast<std::uint64_t>(number);
    made.pointers = kHostMemory;
    made.mbit_per_s = device.mbit_per_s;
    made.most_communicators = kMostCommunicators;
    made.most_receives = most_receives;
    made.device_type = device_type;
    made.virtual_device.count = 1;
    made.virtual_device.devices[0] = number;
    made.most_p2p_bytes = kMostMessageBytes;
    made.most_collective_bytes = kMostMessageBytes;
    made.most_multi_request = 1;
    if constexpr (requires { made.rail; }) {
      made.rail = kNoRail;
      made.plane = kNoRail;
    }
    *properties = made;
    return Outcome::kSuccess;
  });
}

}  // namespace gdx::nccl
