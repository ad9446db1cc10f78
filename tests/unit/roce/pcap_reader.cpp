#include "tests/unit/roce/pcap_reader.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>

#include "proto/roce/headers.h"

namespace gdx::test {
namespace {

constexpr std::uint32_t kPcapMagic = 0xa1b2c3d4;
constexpr std::uint32_t kPcapMagicNanoseconds = 0xa1b23c4d;
constexpr std::size_t kFileHeaderBytes = 24;
constexpr std::size_t kRecordHeaderBytes = 16;
constexpr std::size_t kEthernetBytes = 14;

std::uint32_t little32(const std::uint8_t* at) {
  std::uint32_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

std::uint32_t big(std::span<const std::uint8_t> bytes, std::size_t offset, std::size_t count) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < count; ++i) value = value << 8 | bytes[offset + i];
  return value;
}

// Returns the UDP header and what follows, or an empty span when the frame carries no UDP.
std::span<const std::uint8_t> parse_ip(std::span<const std::uint8_t> frame, CapturedPacket& packet) {
  if (frame.size() < kEthernetBytes + 40) return {};
  const std::uint32_t ether_type = big(frame, 12, 2);
  const auto ip = frame.subspan(kEthernetBytes);
  if (ether_type == 0x0800 && ip[0] == 0x45 && ip[9] == 17) {
    packet.ecn = ip[1] & 3u;
    packet.ip_id = static_cast<std::uint16_t>(big(ip, 4, 2));
    packet.dont_fragment = big(ip, 6, 2) == 0x4000;
    packet.source_ipv4 = big(ip, 12, 4);
    packet.destination_ipv4 = big(ip, 16, 4);
    return ip.subspan(20);
  }
  if (ether_type == 0x86dd && ip[6] == 17) {
    packet.ipv6 = true;
    packet.ecn = (big(ip, 0, 4) >> 20) & 3u;
    std::copy_n(ip.begin() + 8, 16, packet.source_ipv6.begin());
    std::copy_n(ip.begin() + 24, 16, packet.destination_ipv6.begin());
    return ip.subspan(40);
  }
  return {};
}

std::optional<CapturedPacket> parse_frame(std::span<const std::uint8_t> frame) {
  CapturedPacket packet;
  const auto udp = parse_ip(frame, packet);
  if (udp.size() < 8 || big(udp, 2, 2) != roce::kUdpPort) return std::nullopt;
  const std::size_t udp_bytes = big(udp, 4, 2);
  if (udp_bytes < 8 + roce::kBthBytes + roce::kIcrcBytes || udp_bytes > udp.size()) return std::nullopt;
  packet.source_port = static_cast<std::uint16_t>(big(udp, 0, 2));
  const auto datagram = udp.subspan(8, udp_bytes - 8 - roce::kIcrcBytes);
  packet.icrc = little32(datagram.data() + datagram.size());
  const auto bytes = std::as_bytes(datagram);
  packet.datagram.assign(bytes.begin(), bytes.end());
  return packet;
}

}  // namespace

std::vector<CapturedPacket> read_roce_pcap(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::vector<std::uint8_t> file{std::istreambuf_iterator<char>(stream), {}};
  std::vector<CapturedPacket> packets;
  if (file.size() < kFileHeaderBytes) return packets;
  const std::uint32_t magic = little32(file.data());
  if (magic != kPcapMagic && magic != kPcapMagicNanoseconds) return packets;
  std::span<const std::uint8_t> rest(file);
  rest = rest.subspan(kFileHeaderBytes);
  while (rest.size() >= kRecordHeaderBytes) {
    const std::size_t captured_bytes = little32(rest.data() + 8);
    rest = rest.subspan(kRecordHeaderBytes);
    if (captured_bytes > rest.size()) break;
    if (auto packet = parse_frame(rest.first(captured_bytes))) packets.push_back(std::move(*packet));
    rest = rest.subspan(captured_bytes);
  }
  return packets;
}

}  // namespace gdx::test
