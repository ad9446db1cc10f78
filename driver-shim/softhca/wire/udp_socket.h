// The socket beneath the UDP wire. It stays unconnected and sets DF, because Linux sends IPv4 id 0 only then.
// Within a GSO send the ids are 0, 1, ... The ICRC covers the id.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "base/descriptor.h"
#include "base/result.h"
#include "driver-shim/softhca/wire/interface.h"
#include "driver-shim/softhca/wire/wire.h"

namespace gdx::softhca::wire {

struct BoundSocket {
  Descriptor socket;
  Address address;
  Interface interface;  // the way to link-local peers
};

// Takes what else an address needs; false: it is not to be had.
using Reserve = std::function<bool(const Address&)>;

// Binds a non-blocking socket to port 4791 of `address`, or of a free 127.0.x.y when that is empty: the first
// that `reserve` has taken. Errors: those of open_udp() in wire.h.
[[nodiscard]] Result<BoundSocket> bind_socket(const std::string& address, std::size_t receive_bytes,
                                              const Reserve& reserve = {});

struct Endpoint {
  Address address;
  std::uint16_t port = 0;
};

inline constexpr std::size_t kSocketBufferBytes = 16 << 20;

// Sets the send buffer to the process's limit, and the receive buffer to up to `receive_bytes`.
void enlarge_buffers(int fd, std::size_t receive_bytes = kSocketBufferBytes);

// Builds port 4791 of `address`. `interface` counts for IPv6 link-local addresses only.
socklen_t to_sockaddr(const Address& address, std::uint32_t interface, sockaddr_storage& out);
Endpoint from_sockaddr(const sockaddr_storage& from);

}  // namespace gdx::softhca::wire
