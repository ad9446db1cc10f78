#include "proto/roce/ip_header.h"

#include <gtest/gtest.h>

namespace gdx::roce {
namespace {

constexpr Gid kSource{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 168, 0, 1};
constexpr Gid kDestination{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 168, 0, 199};

TEST(IpHeader, ipv4_checksum_covers_the_header) {
  const Ipv4Header header = ipv4_header(kSource, kDestination, 0, 95);
  // The header with its checksum in place sums to zero.
  EXPECT_EQ(ip_checksum(std::as_bytes(std::span(&header, 1))), 0);
  // 4500 0073 0000 4000 4011 b861 c0a8 0001 c0a8 00c7, the usual worked example.
  EXPECT_EQ(header.checksum, 0xb861);
}

TEST(IpHeader, ecn_is_the_last_two_bits_of_tos_and_of_the_traffic_class) {
  const Ipv4Header v4 = ipv4_header(kSource, kDestination, 0, 95, Ecn::kCongestionExperienced);
  EXPECT_EQ(v4.version_ihl_tos, 0x4503);
  EXPECT_EQ(ip_checksum(std::as_bytes(std::span(&v4, 1))), 0);
  EXPECT_EQ(ipv6_header(kSource, kDestination, 95, Ecn::kCapableZero).version_class_flow, 0x60200000u);
}

TEST(IpHeader, grh_of_ipv4_stands_in_the_last_twenty_bytes) {
  const auto bytes = grh(kSource, kDestination, true, 95);
  for (std::size_t i = 0; i < kGrhBytes - kIpv4Bytes; ++i) EXPECT_EQ(bytes[i], std::byte{0}) << i;
  EXPECT_EQ(bytes[20], std::byte{0x45});
  EXPECT_EQ(bytes[35], std::byte{1});
  EXPECT_EQ(bytes[39], std::byte{199});
}

TEST(IpHeader, grh_of_ipv6_is_the_whole_header) {
  const Gid source{0xfd, 1};
  const Gid destination{0xfd, 2};
  const auto bytes = grh(source, destination, false, 0x0123);
  EXPECT_EQ(bytes[0], std::byte{0x60});
  EXPECT_EQ(bytes[4], std::byte{0x01});
  EXPECT_EQ(bytes[5], std::byte{0x23});
  EXPECT_EQ(bytes[6], std::byte{17});
  EXPECT_EQ(bytes[9], std::byte{1});
  EXPECT_EQ(bytes[25], std::byte{2});
}

}  // namespace
}  // namespace gdx::roce
