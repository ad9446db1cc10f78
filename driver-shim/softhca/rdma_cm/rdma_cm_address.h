// Addresses that programs pass to /dev/infiniband/rdma_cm, and the host's data about them.
#pragma once

#include <linux/socket.h>

#include <cstdint>
#include <optional>

#include "driver-shim/softhca/engine/hca.h"

namespace gdx::softhca::uverbs {

// AF_INET, AF_INET6, or AF_IB with no GID, which programs bind to test for AF_IB.
struct CmAddress {
  std::uint16_t family = 0;  // 0: none
  wire::Address address;     // address; one of IPv4 is mapped to IPv6
  std::uint16_t port = 0;

  [[nodiscard]] bool is_any() const;
  [[nodiscard]] bool is_loopback() const;  // 127.0.0.0/8 or ::1
};

// Errors: EINVAL for a family or a size that is not served.
[[nodiscard]] ErrnoOr<CmAddress> read_address(const void* sockaddr, std::size_t length_bytes);
// Writes the sockaddr and returns its length; 0 for none.
std::size_t write_address(const CmAddress& address, __kernel_sockaddr_storage& out);

[[nodiscard]] CmAddress any_address(std::uint16_t family);

// 0, or why the host would not send to `destination`: ENETUNREACH, EHOSTUNREACH, ...
[[nodiscard]] Errno route_error(const wire::Address& destination);
// Returns whether this process may listen at a port: those below net.ipv4.ip_unprivileged_port_start need a
// privilege.
[[nodiscard]] bool may_bind_port(std::uint16_t port);
// Returns whether the host has the address.
[[nodiscard]] bool is_host_address(const wire::Address& address);

}  // namespace gdx::softhca::uverbs
