// The RDMA device behind a port by verbs: found by the IP addresses of this host, with its properties.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "base/result.h"
#include "host/poster/verbs_connection.h"
#include "host/poster/verbs_port.h"

namespace gdx::verbs {

struct Device {
  Channel channel;
  Id listener;  // bound to an address of the device, which it opens
  Domain domain;
  Bounds bounds;
  PortTraits traits;

  [[nodiscard]] std::string_view name() const { return listener->verbs->device->name; }
  [[nodiscard]] bool is_iwarp() const {
    return listener->verbs->device->transport_type == IBV_TRANSPORT_IWARP;
  }
  // Returns the listener's address and port, or port 0, as Address has them.
  [[nodiscard]] std::array<std::byte, 32> socket() const;
  [[nodiscard]] std::array<std::byte, 32> socket_with_any_port() const;
};

// Errors: those of open_verbs_port.
[[nodiscard]] Result<Device> open_device(const VerbsOptions& options);

}  // namespace gdx::verbs
