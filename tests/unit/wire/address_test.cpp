#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "driver-shim/softhca/wire/wire.h"

namespace gdx::softhca::wire {
namespace address_test {

TEST(Address, ipv4_text_maps_into_a_gid) {
  const Result<Address> address = Address::parse("127.0.3.9");
  ASSERT_TRUE(address);
  EXPECT_TRUE(address->is_ipv4());
  EXPECT_EQ(address->ipv4_host_order(), 0x7f000309u);
  EXPECT_EQ(address->gid[10], 0xff);
  EXPECT_EQ(address->gid[15], 9);
  EXPECT_EQ(address->text(), "127.0.3.9");
  EXPECT_EQ(*address, Address::ipv4(0x7f000309));
}

TEST(Address, ipv6_text_round_trips) {
  const Result<Address> address = Address::parse("fe80::1:2");
  ASSERT_TRUE(address);
  EXPECT_FALSE(address->is_ipv4());
  EXPECT_EQ(address->text(), "fe80::1:2");
}

TEST(Address, each_byte_counts_in_comparison_and_before_the_last_four_in_the_family) {
  const Address address = Address::ipv4(0x01020304);
  EXPECT_EQ(address, *Address::parse("::ffff:1.2.3.4"));
  for (std::size_t i = 0; i < 16; ++i) {
    Address other = address;
    other.gid[i] ^= 1;
    EXPECT_NE(other, address) << i;
    EXPECT_EQ(other.is_ipv4(), i >= 12) << i;
  }
}

TEST(Address, nonsense_is_refused_by_name) {
  const Result<Address> address = Address::parse("no.such.host");
  ASSERT_FALSE(address);
  EXPECT_EQ(address.error().status, Status::kInvalidArgument);
  EXPECT_THAT(address.error().message, testing::HasSubstr("no.such.host"));
}

}  // namespace address_test
}  // namespace gdx::softhca::wire
