#include <arpa/inet.h>

#include <algorithm>

#include "driver-shim/softhca/wire/wire.h"

namespace gdx::softhca::wire {
namespace {

constexpr std::array<std::uint8_t, 12> kMappedPrefix{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

}  // namespace

Address Address::ipv4(std::uint32_t host_order) {
  Address made;
  std::copy(kMappedPrefix.begin(), kMappedPrefix.end(), made.gid.begin());
  for (std::size_t i = 0; i < 4; ++i)
    made.gid[12 + i] = static_cast<std::uint8_t>(host_order >> (24 - 8 * i));
  return made;
}

Result<Address> Address::parse(const std::string& text) {
  in_addr v4{};
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return ipv4(ntohl(v4.s_addr));
  Address made;
  if (inet_pton(AF_INET6, text.c_str(), made.gid.data()) == 1) return made;
  return fail(Status::kInvalidArgument, "'" + text + "' is no IPv4 or IPv6 address: write it in digits");
}

std::uint32_t Address::ipv4_host_order() const {
  std::uint32_t value = 0;
  for (std::size_t i = 12; i < 16; ++i) value = value << 8 | gid[i];
  return value;
}

bool Address::is_loopback() const {
  constexpr std::uint32_t kLoopback8 = 127;
  return is_ipv4() && ipv4_host_order() >> 24 == kLoopback8;
}

std::string Address::text() const {
  std::array<char, INET6_ADDRSTRLEN> buffer{};
  const bool v4 = is_ipv4();
  inet_ntop(v4 ? AF_INET : AF_INET6, gid.data() + (v4 ? 12 : 0), buffer.data(), buffer.size());
  return buffer.data();
}

}  // namespace gdx::softhca::wire
