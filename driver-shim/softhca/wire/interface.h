// The network interface that has an address.
#pragma once

#include <cstdint>

#include "driver-shim/softhca/wire/wire.h"

namespace gdx::softhca::wire {

struct Interface {
  std::uint32_t index = 0;
  std::uint32_t mtu_bytes = 0;  // of IP packets
};

// Nothing is known of an address that no interface bears: all zeroes.
[[nodiscard]] Interface interface_of(const Address& address);

// The largest RoCE MTU whose packets, with all that Linux allows for headers, fit into IP packets of this
// size; 0 where not even 256 does. Source: include/rdma/ib_addr.h, iboe_get_mtu.
[[nodiscard]] std::uint32_t roce_mtu_within(std::uint32_t ip_mtu_bytes);
// The least IP MTU for that.
[[nodiscard]] std::uint32_t ip_mtu_for(std::uint32_t roce_mtu_bytes);

}  // namespace gdx::softhca::wire
