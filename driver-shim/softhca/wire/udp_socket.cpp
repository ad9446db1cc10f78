#include "driver-shim/softhca/wire/udp_socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/udp.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

#include "base/log.h"
#include "proto/roce/headers.h"

namespace gdx::softhca::wire {
namespace {

constexpr std::uint32_t kFirstLoopback = 0x7f000002;  // 127.0.0.2
constexpr std::uint32_t kLoopbacks = 0xfffd;          // up to 127.0.255.254

void set_buffer(int fd, int forced, int plain, std::size_t size_bytes) {
  const int bytes = static_cast<int>(size_bytes);
  if (setsockopt(fd, SOL_SOCKET, forced, &bytes, sizeof bytes) == 0) return;
  if (setsockopt(fd, SOL_SOCKET, plain, &bytes, sizeof bytes) != 0) {
    log::debug("socket buffer stays at its default: {}", std::strerror(errno));
  }
}

// Drops datagrams longer than a packet before they take room in the buffer and a copy. Exceptions are batches
// of software HCAs, which come from the RoCE port in packets that must not be fragmented. Datagrams
// reassembled from IPv4 fragments are no exception. Without the filter the ICRC would refuse them later.
void drop_oversized(int fd, bool v4) {
  constexpr std::uint32_t kUdpHeaderBytes = 8;
  constexpr std::uint32_t kLongest = kUdpHeaderBytes + kMaxPacketBytes + roce::kIcrcBytes;
  constexpr std::uint32_t kFragmentsAt = static_cast<std::uint32_t>(SKF_NET_OFF) + offsetof(iphdr, frag_off);
  std::array<sock_filter, 9> program = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0),
      BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, kLongest, 0, 5),
      BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 0),  // the source port
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, roce::kUdpPort, 0, 4),
      BPF_STMT(BPF_JMP | BPF_JA, v4 ? 0u : 2u),
      BPF_STMT(BPF_LD | BPF_H | BPF_ABS, kFragmentsAt),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, IP_DF, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
      BPF_STMT(BPF_RET | BPF_K, 0),
  }};
  const sock_fprog filter{.len = program.size(), .filter = program.data()};
  if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) != 0) {
    log::debug("no filter on the UDP socket: {}", std::strerror(errno));
  }
}

Result<Descriptor> open_socket(const Address& family_of, std::size_t receive_bytes) {
  const bool v4 = family_of.is_ipv4();
  Descriptor socket =
      Descriptor::keep(::socket(v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.value() < 0) {
    return fail(Status::kSystem,
                std::string("no UDP socket: ") + std::strerror(errno) + "; check the limit on open files");
  }
  const int discover = v4 ? IP_PMTUDISC_DO : IPV6_PMTUDISC_DO;
  const int level = v4 ? IPPROTO_IP : IPPROTO_IPV6;
  if (setsockopt(socket.value(), level, v4 ? IP_MTU_DISCOVER : IPV6_MTU_DISCOVER, &discover,
                 sizeof discover) != 0) {
    return fail(Status::kSystem,
                std::string("cannot make datagrams unfragmentable (DF), which the ICRC needs: ") +
                    std::strerror(errno) + "; use a Linux kernel");
  }
  if (!v4) {
    const int on = 1;  // Soft-RoCE sends UDP checksum 0 over IPv6
    if (setsockopt(socket.value(), SOL_UDP, UDP_NO_CHECK6_RX, &on, sizeof on) != 0) {
      log::debug("UDP_NO_CHECK6_RX refused: {}", std::strerror(errno));
    }
  }
  drop_oversized(socket.value(), v4);
  enlarge_buffers(socket.value(), receive_bytes);
  return socket;
}

// Binds the socket. Returns 0, or errno.
int bind_to(const Descriptor& socket, const Address& address, std::uint32_t interface) {
  sockaddr_storage name;
  const socklen_t length = to_sockaddr(address, interface, name);
  return ::bind(socket.value(), reinterpret_cast<const sockaddr*>(&name), length) == 0 ? 0 : errno;
}

// Returns the user who holds the port on all addresses, so that none is left. Source: proc(5), net/udp.
std::optional<unsigned> holder_everywhere() {
  const std::string end = fmt::format(":{:04X}", roce::kUdpPort);
  for (const char* table : {"/proc/net/udp", "/proc/net/udp6"}) {
    std::ifstream file(table);
    std::string line;
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string local;
      std::string skipped;
      unsigned user = 0;
      // sl local_address rem_address st tx:rx tr:tm retrnsmt uid
      words >> skipped >> local >> skipped >> skipped >> skipped >> skipped >> skipped >> user;
      if (words && local.ends_with(end) && local.find_first_not_of('0') == local.size() - end.size())
        return user;
    }
  }
  return std::nullopt;
}

tl::unexpected<Error> taken(const std::string& otherwise) {
  const auto holder = holder_everywhere();
  if (!holder) return fail(Status::kBusy, otherwise);
  return fail(Status::kBusy,
              fmt::format("UDP port {0} is taken on all addresses, by user {1} and no HCA: end that user's "
                          "program, which `ss -ulpn sport = {0}` names, or use another network namespace",
                          roce::kUdpPort, *holder));
}

Result<BoundSocket> bind_given(const std::string& text, std::size_t receive_bytes) {
  const Result<Address> address = Address::parse(text);
  if (!address) return tl::unexpected<Error>(address.error());
  const std::uint32_t v4 = address->ipv4_host_order();
  constexpr std::uint32_t kNoHosts = 7;      // 224.0.0.0/3: multicast, reserved, broadcast
  constexpr std::uint8_t kMulticast = 0xff;  // ff00::/8
  const bool unusable = address->is_ipv4() ? v4 == 0 || v4 >> 29 == kNoHosts
                                           : *address == Address{} || address->gid[0] == kMulticast;
  if (unusable) {
    return fail(Status::kInvalidArgument, text + " is no address of one host: give a unicast address");
  }
  Result<Descriptor> socket = open_socket(*address, receive_bytes);
  if (!socket) return tl::unexpected<Error>(socket.error());
  const Interface interface = interface_of(*address);
  const int error_number = bind_to(*socket, *address, interface.index);
  if (error_number == EADDRINUSE) {
    return taken(text + " port 4791 is taken by another HCA: give another address, or none");
  }
  if (error_number != 0) {
    return fail(Status::kSystem, "cannot bind " + text + " port 4791: " + std::strerror(error_number) +
                                     "; give an address of this machine");
  }
  return BoundSocket{std::move(*socket), *address, interface};
}

// Starts at a place of the process's own, so that processes started together seldom collide.
Result<BoundSocket> bind_free_loopback(std::size_t receive_bytes, const Reserve& reserve) {
  Result<Descriptor> socket = open_socket(Address::ipv4(kFirstLoopback), receive_bytes);
  if (!socket) return tl::unexpected<Error>(socket.error());
  const auto start = static_cast<std::uint32_t>(::getpid());
  for (std::uint32_t i = 0; i < kLoopbacks; ++i) {
    const Address address = Address::ipv4(kFirstLoopback + (start + i) % kLoopbacks);
    if (reserve && !reserve(address)) continue;
    const int error_number = bind_to(*socket, address, 0);
    if (error_number == 0) return BoundSocket{std::move(*socket), address, interface_of(address)};
    if (error_number != EADDRINUSE) {
      return fail(Status::kSystem, "cannot bind " + address.text() + " port 4791: " +
                                       std::strerror(error_number) + "; check that lo is up");
    }
  }
  return taken("no free loopback address 127.0.x.y with port 4791: end some HCAs");
}

}  // namespace

void enlarge_buffers(int fd, std::size_t receive_bytes) {
  set_buffer(fd, SO_SNDBUFFORCE, SO_SNDBUF, kSocketBufferBytes);
  set_buffer(fd, SO_RCVBUFFORCE, SO_RCVBUF, receive_bytes);
}

socklen_t to_sockaddr(const Address& address, std::uint32_t interface, sockaddr_storage& out) {
  out = {};
  if (address.is_ipv4()) {
    auto& v4 = reinterpret_cast<sockaddr_in&>(out);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(roce::kUdpPort);
    v4.sin_addr.s_addr = htonl(address.ipv4_host_order());
    return sizeof v4;
  }
  auto& v6 = reinterpret_cast<sockaddr_in6&>(out);
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(roce::kUdpPort);
  std::memcpy(&v6.sin6_addr, address.gid.data(), address.gid.size());
  if (IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr)) v6.sin6_scope_id = interface;
  return sizeof v6;
}

Endpoint from_sockaddr(const sockaddr_storage& from) {
  if (from.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(from);
    return {Address::ipv4(ntohl(v4.sin_addr.s_addr)), ntohs(v4.sin_port)};
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(from);
  Endpoint endpoint{.address = {}, .port = ntohs(v6.sin6_port)};
  std::memcpy(endpoint.address.gid.data(), &v6.sin6_addr, endpoint.address.gid.size());
  return endpoint;
}

Result<BoundSocket> bind_socket(const std::string& address, std::size_t receive_bytes,
                                const Reserve& reserve) {
  return address.empty() ? bind_free_loopback(receive_bytes, reserve) : bind_given(address, receive_bytes);
}

}  // namespace gdx::softhca::wire
