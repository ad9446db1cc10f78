// Reads the RoCE v2 datagrams out of a classic pcap file with Ethernet link type.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace gdx::test {

struct CapturedPacket {
  bool ipv6 = false;
  std::uint32_t source_ipv4 = 0;
  std::uint32_t destination_ipv4 = 0;
  std::uint16_t ip_id = 0;
  std::uint32_t ecn = 0;  // the field's two bits
  bool dont_fragment = true;
  std::array<std::uint8_t, 16> source_ipv6{};
  std::array<std::uint8_t, 16> destination_ipv6{};
  std::uint16_t source_port = 0;
  std::vector<std::byte> datagram;  // BTH to padding
  std::uint32_t icrc = 0;           // as found on the wire
};

// Every packet to UDP port 4791, in file order; other traffic is passed over. Empty when the file
// cannot be read or is no such capture.
[[nodiscard]] std::vector<CapturedPacket> read_roce_pcap(const std::string& path);

}  // namespace gdx::test
