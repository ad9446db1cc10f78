#include "driver-shim/softhca/wire/interface.h"

#include <gtest/gtest.h>
#include <net/if.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>

namespace gdx::softhca::wire {
namespace interface_test {

TEST(Interface, every_loopback_address_is_the_loopback_interfaces) {
  std::uint32_t mtu_bytes = 0;
  std::ifstream("/sys/class/net/lo/mtu") >> mtu_bytes;
  ASSERT_NE(mtu_bytes, 0u);
  for (const std::uint32_t address : {0x7f000001u, 0x7f000509u}) {
    const Interface found = interface_of(Address::ipv4(address));
    EXPECT_EQ(found.mtu_bytes, mtu_bytes);
    EXPECT_EQ(found.index, if_nametoindex("lo"));
  }
}

TEST(Interface, address_that_no_interface_bears_tells_nothing) {
  const Interface found = interface_of(Address::ipv4(0xc0000201));  // 192.0.2.1, for documentation
  EXPECT_EQ(found.mtu_bytes, 0u);
  EXPECT_EQ(found.index, 0u);
  EXPECT_EQ(interface_of(*Address::parse("2001:db8::1")).mtu_bytes, 0u);
}

TEST(Interface, addresses_of_the_host_are_all_there_or_none) {
  const auto addresses = addresses_of_host();
  ASSERT_TRUE(addresses);
  EXPECT_NE(std::ranges::find(*addresses, Address::ipv4(0x7f000001)), addresses->end());
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto unread = addresses_of_host();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_FALSE(unread);
}

TEST(Interface, roce_mtu_leaves_room_for_every_header) {
  EXPECT_EQ(roce_mtu_within(1500), 1024u);
  EXPECT_EQ(roce_mtu_within(ip_mtu_for(4096)), 4096u);
  EXPECT_EQ(roce_mtu_within(ip_mtu_for(4096) - 1), 2048u);
  EXPECT_EQ(roce_mtu_within(65536), 4096u);
  EXPECT_EQ(roce_mtu_within(ip_mtu_for(256)), 256u);
  EXPECT_EQ(roce_mtu_within(ip_mtu_for(256) - 1), 0u);
}

}  // namespace interface_test
}  // namespace gdx::softhca::wire
