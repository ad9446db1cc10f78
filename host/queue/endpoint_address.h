// Address of an endpoint, by which its peer connects to it.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/result.h"

namespace gdx {

inline constexpr std::uint32_t kEndpointAddressVersion = 2;

// Address of an endpoint for its peer; exchanged at bootstrap, hence checked by connect().
struct EndpointAddress {
  std::uint32_t version;
  std::uint32_t qpn;  // 24 bits
  std::uint32_t psn;  // 24 bits: the first PSN that this side will send
  std::uint16_t mtu_bytes;
  std::uint16_t lid;  // of an InfiniBand port; 0: the port is Ethernet's
  std::uint8_t gid[16];

  bool operator==(const EndpointAddress&) const = default;
};
static_assert(sizeof(EndpointAddress) == 32 && std::is_trivially_copyable_v<EndpointAddress>);

// Validates a peer's address. Errors: kVersionMismatch, kInvalidArgument naming the impossible field.
[[nodiscard]] Result<void> check_endpoint_address(const EndpointAddress& address);

}  // namespace gdx
