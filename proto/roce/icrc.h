// Input of the invariant CRC. The CRC is the Ethernet CRC-32 of masked outer headers, then from the BTH to
// the padding, and travels little-endian. The mask leaves what routers may not change. Only the masked copy
// is built here, because the CRC itself needs a CRC library.
// Source: InfiniBand Architecture Specification 1.4, section 7.8.1 and annex A17.9.3.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "proto/roce/headers.h"
#include "proto/roce/ip_header.h"

namespace gdx::roce {

inline constexpr std::size_t kIcrcPreambleBytes = 8;  // ones where InfiniBand has its LRH
inline constexpr std::size_t kIcrcPrefixIpv4Bytes = kIcrcPreambleBytes + kIpv4Bytes + kUdpBytes;
inline constexpr std::size_t kIcrcPrefixIpv6Bytes = kIcrcPreambleBytes + kIpv6Bytes + kUdpBytes;
// Place of the BTH's reserved byte (FECN and BECN), which counts as ones.
inline constexpr std::size_t kBthMaskedByte = 4;

namespace detail {

class PrefixWriter {
 public:
  constexpr explicit PrefixWriter(std::byte* at) : at_(at) {}
  constexpr void u8(std::uint32_t v) { *at_++ = static_cast<std::byte>(v); }
  constexpr void u16(std::uint32_t v) { u8(v >> 8), u8(v); }
  constexpr void u32(std::uint32_t v) { u16(v >> 16), u16(v); }
  constexpr void ones(std::size_t count) {
    while (count-- > 0) u8(0xff);
  }
  constexpr void udp(std::uint16_t source_port, std::size_t udp_bytes) {
    u16(source_port);
    u16(kUdpPort);
    u16(static_cast<std::uint32_t>(udp_bytes));
    ones(2);  // checksum
  }

 private:
  std::byte* at_;
};

constexpr std::size_t udp_bytes_of(std::size_t bth_to_padding_bytes) {
  return kUdpBytes + bth_to_padding_bytes + kIcrcBytes;
}

}  // namespace detail

// Builds the masked headers before the BTH of a datagram sent with DF set and without IP options. Addresses
// are in host byte order. TOS, TTL and the checksums are masked, so they are no parameters.
constexpr std::array<std::byte, kIcrcPrefixIpv4Bytes> icrc_prefix_ipv4(std::uint32_t source,
                                                                       std::uint32_t destination,
                                                                       std::uint16_t source_port,
                                                                       std::uint16_t ip_id,
                                                                       std::size_t bth_to_padding_bytes) {
  constexpr std::uint32_t kDontFragment = 0x4000;
  constexpr std::uint32_t kProtocolUdp = 17;
  const std::size_t udp_bytes = detail::udp_bytes_of(bth_to_padding_bytes);
  std::array<std::byte, kIcrcPrefixIpv4Bytes> prefix{};
  detail::PrefixWriter out(prefix.data());
  out.ones(kIcrcPreambleBytes);
  out.u8(0x45);  // version 4, five words
  out.ones(1);   // TOS
  out.u16(static_cast<std::uint32_t>(kIpv4Bytes + udp_bytes));
  out.u16(ip_id);
  out.u16(kDontFragment);
  out.ones(1);  // TTL
  out.u8(kProtocolUdp);
  out.ones(2);  // checksum
  out.u32(source);
  out.u32(destination);
  out.udp(source_port, udp_bytes);
  return prefix;
}

// Builds the masked headers for IPv6 without extension headers; traffic class, flow label and hop limit are
// masked.
constexpr std::array<std::byte, kIcrcPrefixIpv6Bytes> icrc_prefix_ipv6(
    const std::array<std::uint8_t, 16>& source, const std::array<std::uint8_t, 16>& destination,
    std::uint16_t source_port, std::size_t bth_to_padding_bytes) {
  constexpr std::uint32_t kNextHeaderUdp = 17;
  const std::size_t udp_bytes = detail::udp_bytes_of(bth_to_padding_bytes);
  std::array<std::byte, kIcrcPrefixIpv6Bytes> prefix{};
  detail::PrefixWriter out(prefix.data());
  out.ones(kIcrcPreambleBytes);
  out.u8(0x6f);  // version 6, upper half of the traffic class
  out.ones(3);   // rest of the traffic class, and the flow label
  out.u16(static_cast<std::uint32_t>(udp_bytes));
  out.u8(kNextHeaderUdp);
  out.ones(1);  // hop limit
  for (const std::uint8_t byte : source) out.u8(byte);
  for (const std::uint8_t byte : destination) out.u8(byte);
  out.udp(source_port, udp_bytes);
  return prefix;
}

}  // namespace gdx::roce
