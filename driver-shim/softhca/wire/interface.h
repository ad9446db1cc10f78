// The network interface that has an address.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "driver-shim/softhca/wire/wire.h"

namespace gdx::softhca::wire {

struct Interface {
  std::array<char, 16> name{};  // "lo"; IFNAMSIZ
  std::uint32_t index = 0;
  std::uint32_t mtu_bytes = 0;  // largest IP packet
};

// Returns all zeroes for an address of no interface.
[[nodiscard]] Interface interface_of(const Address& address);

// Returns the addresses of all interfaces of this network namespace. 127.0.0.0/8 belongs to it whole,
// whatever of it is among them. Nothing where they cannot all be read, as without a free descriptor.
[[nodiscard]] std::optional<std::vector<Address>> addresses_of_host();

// Returns the largest RoCE MTU whose packets fit into IP packets of this size, with all headers that Linux
// allows; 0 if not even 256 fits. Source: include/rdma/ib_addr.h, iboe_get_mtu.
[[nodiscard]] std::uint32_t roce_mtu_within(std::uint32_t ip_mtu_bytes);
// Returns the least IP MTU for a RoCE MTU.
[[nodiscard]] std::uint32_t ip_mtu_for(std::uint32_t roce_mtu_bytes);

}  // namespace gdx::softhca::wire
