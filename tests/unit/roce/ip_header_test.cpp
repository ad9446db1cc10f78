#include "proto/roce/ip_header.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace gdx::roce {
namespace ip_header_test {

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

template <typename Bytes>
std::vector<int> numbers(const Bytes& bytes) {
  std::vector<int> made;
  for (const std::byte byte : std::as_bytes(std::span(bytes))) made.push_back(std::to_integer<int>(byte));
  return made;
}

TEST(IpHeader, checksum_carries_as_often_as_a_carry_comes) {
  EXPECT_EQ(ip_checksum(std::as_bytes(std::span("\xff\xff\xff\xff\x00\x01", 6))), 0xfffe);
  EXPECT_EQ(ip_checksum(std::as_bytes(std::span("\x12\x34\x00\x01", 4))), 0xffff - 0x1235);
}

TEST(IpHeader, ipv4_has_its_id_and_the_addresses_last_bytes) {
  const Ipv4Header header = ipv4_header(kSource, kDestination, 0x1234, 95, Ecn::kCapableOne);
  EXPECT_EQ(numbers(std::span(&header, 1)),
            (std::vector<int>{0x45, 1,    0,   0x73, 0x12, 0x34, 0x40, 0,   64, 17,
                              0xa6, 0x2c, 192, 168,  0,    1,    192,  168, 0,  199}));
}

TEST(IpHeader, grh_of_ipv4_stands_in_the_last_twenty_bytes) {
  std::vector<int> expected(20);
  for (const int byte :
       {0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 64, 17, 0xb8, 0x61, 192, 168, 0, 1, 192, 168, 0, 199})
    expected.push_back(byte);
  EXPECT_EQ(numbers(grh(kSource, kDestination, true, 95)), expected);
}

TEST(IpHeader, grh_of_ipv6_is_the_whole_header) {
  Gid source{0xfd, 1};
  Gid destination{0xfd, 2};
  source[15] = 3;
  destination[15] = 4;
  std::vector<int> expected(40);
  expected[0] = 0x60;
  expected[4] = 0x01;
  expected[5] = 0x23;
  expected[6] = 17;
  expected[7] = 64;
  std::ranges::copy(source, expected.begin() + 8);
  std::ranges::copy(destination, expected.begin() + 24);
  EXPECT_EQ(numbers(grh(source, destination, false, 0x0123)), expected);
  expected[6] = 0x1b;
  EXPECT_EQ(numbers(infiniband_grh(source, destination, 0x0123)), expected);
}

}  // namespace ip_header_test
}  // namespace gdx::roce
