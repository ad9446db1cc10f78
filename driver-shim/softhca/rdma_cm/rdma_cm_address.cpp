#include "driver-shim/softhca/rdma_cm/rdma_cm_address.h"

#include <infiniband/ib.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "driver-shim/softhca/uverbs/real.h"
#include "proto/byte_order.h"
#include "proto/roce/headers.h"

namespace gdx::softhca::uverbs {
namespace {

// Connects or binds a UDP socket, which sends nothing: the Linux kernel only looks up the address.
template <typename Call>
Errno ask_kernel(const wire::Address& address, std::uint16_t port, Call call) {
  const int domain = address.is_ipv4() ? AF_INET : AF_INET6;
  const int fd = ::socket(domain, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_addr.s_addr = htonl(address.ipv4_host_order());
  v4.sin_port = htons(port);
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  std::copy(address.gid.begin(), address.gid.end(), v6.sin6_addr.s6_addr);
  v6.sin6_port = htons(port);
  const int result = domain == AF_INET ? call(fd, reinterpret_cast<sockaddr*>(&v4), sizeof v4)
                                       : call(fd, reinterpret_cast<sockaddr*>(&v6), sizeof v6);
  const Errno error = result == 0 ? 0 : errno;
  real_close(fd);
  return error;
}

}  // namespace

bool CmAddress::is_any() const {
  const auto begin = address.gid.begin() + (family == AF_INET ? 12 : 0);
  return std::all_of(begin, address.gid.end(), [](std::uint8_t byte) { return byte == 0; });
}

bool CmAddress::is_loopback() const {
  constexpr std::uint32_t kLoopbackNet = 127;
  if (family == AF_INET) return address.ipv4_host_order() >> 24 == kLoopbackNet;
  return family == AF_INET6 && address.gid.back() == 1 &&
         std::all_of(address.gid.begin(), address.gid.end() - 1, [](std::uint8_t byte) { return byte == 0; });
}

CmAddress any_address(std::uint16_t family) {
  CmAddress any;
  any.family = family;
  if (family == AF_INET) any.address = wire::Address::ipv4(INADDR_ANY);
  return any;
}

ErrnoOr<CmAddress> read_address(const void* sockaddr, std::size_t length_bytes) {
  CmAddress read;
  if (length_bytes < sizeof read.family) return refuse(EINVAL);
  std::memcpy(&read.family, sockaddr, sizeof read.family);
  if (read.family == AF_INET && length_bytes >= sizeof(sockaddr_in)) {
    sockaddr_in v4;
    std::memcpy(&v4, sockaddr, sizeof v4);
    read.address = wire::Address::ipv4(ntohl(v4.sin_addr.s_addr));
    read.port = ntohs(v4.sin_port);
    return read;
  }
  if (read.family == AF_INET6 && length_bytes >= sizeof(sockaddr_in6)) {
    sockaddr_in6 v6;
    std::memcpy(&v6, sockaddr, sizeof v6);
    std::copy_n(v6.sin6_addr.s6_addr, read.address.gid.size(), read.address.gid.begin());
    read.port = ntohs(v6.sin6_port);
    return read;
  }
  if (read.family == AF_IB && length_bytes >= sizeof(sockaddr_ib)) {
    sockaddr_ib ib;
    std::memcpy(&ib, sockaddr, sizeof ib);
    std::copy_n(ib.sib_addr.sib_raw, read.address.gid.size(), read.address.gid.begin());
    read.port = static_cast<std::uint16_t>(be64toh(ib.sib_sid) & be64toh(ib.sib_sid_mask));
    return read;
  }
  return refuse(EINVAL);
}

std::size_t write_address(const CmAddress& address, __kernel_sockaddr_storage& out) {
  std::memset(&out, 0, sizeof out);
  if (address.family == AF_INET) {
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_addr.s_addr = htonl(address.address.ipv4_host_order());
    v4.sin_port = htons(address.port);
    std::memcpy(&out, &v4, sizeof v4);
    return sizeof v4;
  }
  if (address.family == AF_INET6) {
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    std::copy(address.address.gid.begin(), address.address.gid.end(), v6.sin6_addr.s6_addr);
    v6.sin6_port = htons(address.port);
    std::memcpy(&out, &v6, sizeof v6);
    return sizeof v6;
  }
  if (address.family == AF_IB) {
    sockaddr_ib ib{};
    ib.sib_family = AF_IB;
    std::copy(address.address.gid.begin(), address.address.gid.end(), ib.sib_addr.sib_raw);
    ib.sib_sid = htobe64(address.port);
    ib.sib_sid_mask = htobe64(0xffff);
    std::memcpy(&out, &ib, sizeof ib);
    return sizeof ib;
  }
  return 0;
}

Errno route_error(const wire::Address& destination) {
  return ask_kernel(destination, roce::kUdpPort,
                    [](int fd, const sockaddr* name, socklen_t length) { return connect(fd, name, length); });
}

bool may_bind_port(std::uint16_t port) {
  return ask_kernel(wire::Address::ipv4(INADDR_LOOPBACK), port,
                    [](int fd, const sockaddr* name, socklen_t length) {
                      return ::bind(fd, name, length);
                    }) != EACCES;
}

bool is_host_address(const wire::Address& address) {
  return ask_kernel(address, 0, [](int fd, const sockaddr* name, socklen_t length) {
           return bind(fd, name, length);
         }) == 0;
}

}  // namespace gdx::softhca::uverbs
