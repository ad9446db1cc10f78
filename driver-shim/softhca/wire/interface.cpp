#include "driver-shim/softhca/wire/interface.h"

#include <fmt/format.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/descriptor.h"

namespace gdx::softhca::wire {
namespace {

constexpr std::uint32_t kLoopbackNetwork = 127;
constexpr std::uint32_t kMaxRoceMtuBytes = 4096;
constexpr std::uint32_t kMinRoceMtuBytes = 256;
constexpr std::uint32_t kHeaderBytes = 96;  // GRH, UDP, BTH, XRC and atomic headers, ICRC

// An address may bear a label, such as "eth0:1": the interface is what stands before the colon.
void set_name(ifreq& request, const char* name) {
  const std::string_view all(name, strnlen(name, IFNAMSIZ - 1));
  std::memcpy(request.ifr_name, all.data(), std::min(all.size(), all.find(':')));
}

Interface describe(const Descriptor& socket, const char* name) {
  Interface found;
  static_assert(found.name.size() == IFNAMSIZ);
  ifreq request{};
  set_name(request, name);
  std::memcpy(found.name.data(), request.ifr_name, found.name.size());
  if (ioctl(socket.value(), SIOCGIFINDEX, &request) == 0)
    found.index = static_cast<std::uint32_t>(request.ifr_ifindex);
  if (ioctl(socket.value(), SIOCGIFMTU, &request) == 0)
    found.mtu_bytes = static_cast<std::uint32_t>(request.ifr_mtu);
  return found;
}

struct Ipv4Entry {
  std::uint32_t address = 0;
  ifreq request{};
};

// Reads again into a larger table while one comes back full, because the kernel leaves out what has no room.
std::optional<std::vector<Ipv4Entry>> read_ipv4(const Descriptor& socket) {
  std::vector<ifreq> table(32);
  std::size_t count = table.size();
  while (count == table.size()) {
    table.resize(2 * table.size());
    ifconf all{};
    all.ifc_len = static_cast<int>(table.size() * sizeof(ifreq));
    all.ifc_req = table.data();
    if (ioctl(socket.value(), SIOCGIFCONF, &all) != 0) return std::nullopt;
    count = static_cast<std::size_t>(all.ifc_len) / sizeof(ifreq);
  }
  std::vector<Ipv4Entry> entries;
  for (std::size_t i = 0; i < count; ++i) {
    sockaddr_in bears{};
    std::memcpy(&bears, &table[i].ifr_addr, sizeof bears);
    entries.push_back({ntohl(bears.sin_addr.s_addr), table[i]});
  }
  return entries;
}

// Every address of 127.0.0.0/8 is the loopback interface's, though it bears but one.
Interface find_ipv4(const Descriptor& socket, std::uint32_t address) {
  const bool loopback = address >> 24 == kLoopbackNetwork;
  const std::optional<std::vector<Ipv4Entry>> entries = read_ipv4(socket);
  if (!entries) return {};
  for (const auto& [its, request] : *entries) {
    if (its == address || (loopback && its >> 24 == kLoopbackNetwork))
      return describe(socket, request.ifr_name);
  }
  return {};
}

// Avoids getifaddrs(), as addresses_of_host() does: the shim answers it from the HCA that is being opened
// here.
Interface find_ipv6(const Descriptor& socket, const Address& address) {
  std::string digits;
  for (const std::uint8_t byte : address.gid) digits += fmt::format("{:02x}", byte);
  std::ifstream table("/proc/net/if_inet6");  // the address, then the index, both in hexadecimal digits
  for (std::string line; std::getline(table, line);) {
    if (!line.starts_with(digits)) continue;
    const auto index = static_cast<std::uint32_t>(std::strtoul(line.c_str() + digits.size(), nullptr, 16));
    std::array<char, IFNAMSIZ> name{};
    if (if_indextoname(index, name.data()) == nullptr) return {.index = index};
    return describe(socket, name.data());
  }
  return {};
}

}  // namespace

Interface interface_of(const Address& address) {
  const Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (socket.value() < 0) return {};
  return address.is_ipv4() ? find_ipv4(socket, address.ipv4_host_order()) : find_ipv6(socket, address);
}

std::optional<std::vector<Address>> addresses_of_host() {
  const Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const std::optional<std::vector<Ipv4Entry>> ipv4 = read_ipv4(socket);
  if (!ipv4) return std::nullopt;
  std::vector<Address> addresses;
  for (const auto& [address, request] : *ipv4) addresses.push_back(Address::ipv4(address));
  std::ifstream table("/proc/net/if_inet6");
  if (!table && errno != ENOENT) return std::nullopt;  // ENOENT: a kernel without IPv6
  for (std::string line; std::getline(table, line);) {
    Address address;
    for (std::size_t i = 0; i < address.gid.size() && line.size() >= 2 * address.gid.size(); ++i)
      address.gid[i] = static_cast<std::uint8_t>(std::strtoul(line.substr(2 * i, 2).c_str(), nullptr, 16));
    addresses.push_back(address);
  }
  return addresses;
}

std::uint32_t roce_mtu_within(std::uint32_t ip_mtu_bytes) {
  if (ip_mtu_bytes < kMinRoceMtuBytes + kHeaderBytes) return 0;
  return std::min(kMaxRoceMtuBytes, std::bit_floor(ip_mtu_bytes - kHeaderBytes));
}

std::uint32_t ip_mtu_for(std::uint32_t roce_mtu_bytes) { return roce_mtu_bytes + kHeaderBytes; }

}  // namespace gdx::softhca::wire
