#include "driver-shim/softhca/wire/addressing.h"

#include <algorithm>
#include <atomic>

#include "base/log.h"

namespace gdx::softhca::wire {
namespace {

constexpr std::uint32_t kLoopback16 = 0x7f00;  // 127.0/16
constexpr std::uint8_t kMacFirst = 0x02;       // unicast, locally administered
constexpr std::uint8_t kMacSecond = 0x67;
constexpr std::uint8_t kUniversalBit = 0x02;

bool is_own_link_local(const Gid& gid) {
  return gid[0] == 0xfe && gid[1] == 0x80 &&
         std::all_of(gid.begin() + 2, gid.begin() + 8, [](auto b) { return b == 0; }) &&
         gid[8] == (kMacFirst ^ kUniversalBit) && gid[9] == kMacSecond && gid[11] == 0xff && gid[12] == 0xfe;
}

}  // namespace

Mac mac_of(const Address& address) {
  const Gid& gid = address.gid;
  return {kMacFirst, kMacSecond, gid[12], gid[13], gid[14], gid[15]};
}

std::uint64_t guid_of(const Address& address) {
  const Mac mac = mac_of(address);
  const std::array<std::uint8_t, 8> bytes = {
      static_cast<std::uint8_t>(mac[0] ^ kUniversalBit), mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]};
  std::uint64_t guid = 0;
  for (const std::uint8_t byte : bytes) guid = guid << 8 | byte;
  return guid;
}

Gid gid_of(const Address& address, std::uint8_t index) {
  if (index == 1) return address.gid;
  if (index != 0) return {};
  Gid gid{0xfe, 0x80};
  const std::uint64_t guid = guid_of(address);
  for (std::size_t i = 0; i < 8; ++i) gid[8 + i] = static_cast<std::uint8_t>(guid >> (56 - 8 * i));
  return gid;
}

Address address_of(const Gid& gid) {
  if (!is_own_link_local(gid)) return Address{gid};
  return Address::ipv4(std::uint32_t{gid[10]} << 24 | std::uint32_t{gid[13]} << 16 |
                       std::uint32_t{gid[14]} << 8 | gid[15]);
}

void warn_of_mixed_gids(const Address& local, std::uint8_t source_index, const Gid& destination) {
  static std::atomic<bool> warned{false};
  const bool from_ipv4 = Address{gid_of(local, source_index)}.is_ipv4();
  if (from_ipv4 == Address{destination}.is_ipv4() || warned.exchange(true)) return;
  log::warn(
      "a peer's {} GID was given with a source GID (index {}) of the other kind; RoCE v2 would not connect "
      "them: use the same GID index at both ends",
      from_ipv4 ? "IPv6" : "IPv4", source_index);
}

std::uint16_t lid_of(const Address& address) {
  if (!address.is_ipv4()) return 0;
  const std::uint32_t ip = address.ipv4_host_order();
  return ip >> 16 == kLoopback16 ? static_cast<std::uint16_t>(ip) : std::uint16_t{0};
}

Address address_of_lid(std::uint16_t lid) { return Address::ipv4(kLoopback16 << 16 | lid); }

}  // namespace gdx::softhca::wire
