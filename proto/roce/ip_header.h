// The IP header beneath a RoCE v2 packet, and its 40 bytes in a UD receive.
// Source: RFC 791, RFC 8200; InfiniBand Architecture Specification 1.4, annex A17.4.5.1 (UD receive).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "proto/byte_order.h"

namespace gdx::roce {

inline constexpr std::size_t kIpv4Bytes = 20;
inline constexpr std::size_t kIpv6Bytes = 40;
inline constexpr std::size_t kUdpBytes = 8;
inline constexpr std::size_t kGrhBytes = 40;

using Gid = std::array<std::uint8_t, 16>;

// The last two bits of an IPv4 header's TOS and of an IPv6 header's traffic class. Source: RFC 3168,
// section 5.
enum class Ecn : std::uint8_t {
  kNotCapable = 0,
  kCapableOne = 1,
  kCapableZero = 2,
  kCongestionExperienced = 3
};
inline constexpr int kEcnMask = 3;

struct Ipv4Header {
  Be16 version_ihl_tos;
  Be16 total_bytes;
  Be16 id;
  Be16 flags_fragment;
  std::uint8_t ttl;
  std::uint8_t protocol;
  Be16 checksum;
  std::array<std::uint8_t, 4> source;
  std::array<std::uint8_t, 4> destination;
};

struct Ipv6Header {
  Be32 version_class_flow;
  Be16 payload_bytes;
  std::uint8_t next_header;
  std::uint8_t hop_limit;
  Gid source;
  Gid destination;
};

static_assert(sizeof(Ipv4Header) == kIpv4Bytes && sizeof(Ipv6Header) == kIpv6Bytes);

namespace detail {

inline constexpr std::uint8_t kTtl = 64;
inline constexpr std::uint8_t kProtocolUdp = 17;

inline std::array<std::uint8_t, 4> mapped_ipv4(const Gid& gid) {
  return {gid[12], gid[13], gid[14], gid[15]};
}

}  // namespace detail

// Computes the checksum of RFC 1071 over a whole number of 16-bit words.
[[nodiscard]] inline std::uint16_t ip_checksum(std::span<const std::byte> header) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i + 1 < header.size(); i += 2) {
    sum += std::to_integer<std::uint32_t>(header[i]) << 8 | std::to_integer<std::uint32_t>(header[i + 1]);
  }
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(~sum);
}

// Builds the header for two IPv4-mapped GIDs and `payload_bytes` behind the header. DF is set.
[[nodiscard]] inline Ipv4Header ipv4_header(const Gid& source, const Gid& destination, std::uint16_t ip_id,
                                            std::size_t payload_bytes, Ecn ecn = Ecn::kNotCapable) {
  Ipv4Header header{};
  header.version_ihl_tos = static_cast<std::uint16_t>(0x4500u | static_cast<unsigned>(ecn));
  header.total_bytes = static_cast<std::uint16_t>(kIpv4Bytes + payload_bytes);
  header.id = ip_id;
  header.flags_fragment = 0x4000;
  header.ttl = detail::kTtl;
  header.protocol = detail::kProtocolUdp;
  header.source = detail::mapped_ipv4(source);
  header.destination = detail::mapped_ipv4(destination);
  header.checksum = ip_checksum(std::as_bytes(std::span(&header, 1)));
  return header;
}

[[nodiscard]] inline Ipv6Header ipv6_header(const Gid& source, const Gid& destination,
                                            std::size_t payload_bytes, Ecn ecn = Ecn::kNotCapable) {
  Ipv6Header header{};
  header.version_class_flow = 0x60000000u | static_cast<std::uint32_t>(ecn) << 20;
  header.payload_bytes = static_cast<std::uint16_t>(payload_bytes);
  header.next_header = detail::kProtocolUdp;
  header.hop_limit = detail::kTtl;
  header.source = source;
  header.destination = destination;
  return header;
}

// Builds the bytes before a UD receive's payload: a whole IPv6 header, or an IPv4 one in the last 20 bytes.
[[nodiscard]] inline std::array<std::byte, kGrhBytes> grh(const Gid& source, const Gid& destination,
                                                          bool ipv4, std::size_t payload_bytes) {
  std::array<std::byte, kGrhBytes> bytes{};
  if (ipv4) {
    const Ipv4Header header = ipv4_header(source, destination, 0, payload_bytes);
    std::memcpy(bytes.data() + kGrhBytes - kIpv4Bytes, &header, sizeof header);
  } else {
    const Ipv6Header header = ipv6_header(source, destination, payload_bytes);
    std::memcpy(bytes.data(), &header, sizeof header);
  }
  return bytes;
}

// The same of InfiniBand, where a GRH precedes the BTH itself.
[[nodiscard]] inline std::array<std::byte, kGrhBytes> infiniband_grh(const Gid& source,
                                                                     const Gid& destination,
                                                                     std::size_t payload_bytes) {
  constexpr std::uint8_t kNextHeaderBth = 0x1b;  // IBA 8.3, NxtHdr
  Ipv6Header header = ipv6_header(source, destination, payload_bytes);
  header.next_header = kNextHeaderBth;
  std::array<std::byte, kGrhBytes> bytes{};
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

}  // namespace gdx::roce
