#include "host/poster/verbs_device.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

namespace gdx::verbs {
namespace {

using Socket = std::array<std::byte, sizeof(Address::socket)>;

struct FreeAddresses {
  void operator()(ifaddrs* list) const { freeifaddrs(list); }
};

std::size_t bytes_of(const sockaddr& address) {
  return address.sa_family == AF_INET    ? sizeof(sockaddr_in)
         : address.sa_family == AF_INET6 ? sizeof(sockaddr_in6)
                                         : 0;
}

Socket socket_of(const sockaddr& address) {
  Socket socket{};
  std::memcpy(socket.data(), &address, bytes_of(address));
  return socket;
}

Socket with_any_port(Socket socket) {
  std::memset(socket.data() + offsetof(sockaddr_in, sin_port), 0, sizeof(in_port_t));
  return socket;
}
static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));

std::string text_of(const Socket& socket) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const auto family = reinterpret_cast<const sockaddr*>(socket.data())->sa_family;
  const std::size_t at =
      family == AF_INET ? offsetof(sockaddr_in, sin_addr) : offsetof(sockaddr_in6, sin6_addr);
  inet_ntop(family, socket.data() + at, text.data(), text.size());
  return text.data();
}

bool is_link_local(const sockaddr& address) {
  return address.sa_family == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

// Returns the addresses of interfaces that are up, IPv4 first. A loopback interface belongs to no device.
Result<std::vector<Socket>> own_addresses() {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) return tl::unexpected(error_of("getifaddrs", errno));
  const std::unique_ptr<ifaddrs, FreeAddresses> list(found);
  std::vector<Socket> addresses;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* one = found; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != family) continue;
      if ((one->ifa_flags & IFF_UP) == 0 || (one->ifa_flags & IFF_LOOPBACK) != 0) continue;
      if (!is_link_local(*one->ifa_addr)) addresses.push_back(socket_of(*one->ifa_addr));
    }
  }
  return addresses;
}

// Returns an id at the first address that belongs to a usable device. `seen` gets all devices that there are.
Result<Id> bind_to_device(rdma_event_channel* channel, const VerbsOptions& options, std::string& seen) {
  for (Socket socket : GDX_TRY(own_addresses())) {
    rdma_cm_id* made = nullptr;
    if (library().create_id(channel, &made, nullptr, RDMA_PS_TCP) != 0)
      return tl::unexpected(error_of("rdma_create_id", errno));
    Id id(made);
    if (library().bind_addr(made, reinterpret_cast<sockaddr*>(socket.data())) != 0) continue;
    if (made->verbs == nullptr) continue;
    ibv_port_attr port{};
    const bool active =
        ibv_query_port(made->verbs, made->port_num, &port) == 0 && port.state == IBV_PORT_ACTIVE;
    const std::string name = made->verbs->device->name;
    seen += fmt::format("{}{} at {}{}", seen.empty() ? "" : ", ", name, text_of(socket),
                        active ? "" : " (its port is down)");
    if (active && (options.device.empty() || options.device == name)) return id;
  }
  return fail(
      Status::kNotFound,
      fmt::format("no RDMA device{}{} with an IP address whose port is up{}: ibv_devices and rdma link "
                  "list what is here",
                  options.device.empty() ? "" : " ", options.device,
                  seen.empty() ? "" : fmt::format(" (here: {})", seen)));
}

const char* transport_name(const Device& device) {
  if (device.is_iwarp()) return "iWARP";
  ibv_port_attr port{};
  const bool asked = ibv_query_port(device.listener->verbs, device.listener->port_num, &port) == 0;
  return asked && port.link_layer == IBV_LINK_LAYER_ETHERNET ? "RoCE" : "InfiniBand";
}

Result<void> read_properties(Device& device) {
  ibv_context* const context = device.listener->verbs;
  ibv_device_attr found{};
  ibv_port_attr port{};
  if (ibv_query_device(context, &found) != 0) return tl::unexpected(error_of("ibv_query_device", errno));
  if (ibv_query_port(context, device.listener->port_num, &port) != 0)
    return tl::unexpected(error_of("ibv_query_port", errno));
  const auto reads = [](int most) { return static_cast<std::uint8_t>(std::clamp(most, 1, 16)); };
  device.bounds.reads = std::min(reads(found.max_qp_rd_atom), reads(found.max_qp_init_rd_atom));
  PortTraits& traits = device.traits;
  traits.provider = kVerbsPort;
  traits.version = fmt::format("{}, {} device {}", kVersion, transport_name(device), device.name());
  traits.order_source = device.is_iwarp() ? "RFC 5040" : "RC of InfiniBand and RoCE";
  traits.message_after_write = true;
  traits.messages_in_order = true;
  traits.read_after_write = true;
  traits.delivery_complete = !device.is_iwarp();
  traits.atomics = found.atomic_cap != IBV_ATOMIC_NONE;
  traits.most_bytes = port.max_msg_sz;
  return {};
}

}  // namespace

Socket Device::socket() const { return socket_of(listener->route.addr.src_addr); }
Socket Device::socket_with_any_port() const { return with_any_port(socket()); }

Result<Device> open_device(const VerbsOptions& options) {
  GDX_TRY(load_library());
  Device device;
  device.channel.reset(library().create_event_channel());
  if (!device.channel) {
    return fail(Status::kNotFound,
                fmt::format("no connection manager for RDMA here ({}): load the kernel's module rdma_ucm",
                            std::strerror(errno)));
  }
  std::string seen;
  device.listener = GDX_TRY(bind_to_device(device.channel.get(), options, seen));
  if (device.listener->verbs->device->transport_type != IBV_TRANSPORT_IB && !device.is_iwarp()) {
    return fail(Status::kUnsupported,
                fmt::format("device {} has no reliable connections: use a provider of libfabric for it",
                            device.name()));
  }
  device.domain.reset(ibv_alloc_pd(device.listener->verbs));
  if (!device.domain) return tl::unexpected(error_of("ibv_alloc_pd", errno));
  GDX_TRY(read_properties(device));
  return device;
}

}  // namespace gdx::verbs
