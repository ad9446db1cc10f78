// Devices that NCCL is offered: addresses of one provider's NICs.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "host/messaging/meeting.h"
#include "host/poster/contract.h"
#include "host/poster/libfabric_port.h"

namespace gdx::nccl {

struct Device {
  std::string name;      // "mlx5_0"
  std::string pci_path;  // in /sys; empty: none
  int mbit_per_s = 0;
  messaging::Door door;
  PortTraits traits;
};

// Finds them by GDX_PROVIDER and GDX_NCCL_ADDRESSES. Errors: those of libfabric_nics; kNoDevice where neither
// a provider was named nor a NIC is here; kInvalidArgument for a variable.
[[nodiscard]] Result<std::vector<Device>> find_devices();

// Returns how a peer is reached: "direct", "proxied" or "emulated".
[[nodiscard]] const char* way_of(const PortTraits& traits);
// Returns by whom signals are ordered: "ordered by the provider".
[[nodiscard]] const char* words_of(SignalOrder order);
// Returns the line that refuses memory of another kind than the host's.
[[nodiscard]] std::string refusal_of_memory(int kind);

}  // namespace gdx::nccl
