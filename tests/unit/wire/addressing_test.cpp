#include "driver-shim/softhca/wire/addressing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace gdx::softhca::wire {
namespace addressing_test {

const Address port_address = Address::ipv4(0x7f00c307);  // 127.0.195.7

TEST(Addressing, both_gids_lead_back_to_the_address) {
  EXPECT_EQ(address_of(gid_of(port_address, 0)), port_address);
  EXPECT_EQ(address_of(gid_of(port_address, 1)), port_address);
  EXPECT_NE(gid_of(port_address, 0), gid_of(port_address, 1));
}

TEST(Addressing, link_local_gid_is_the_modified_eui_64_of_the_mac) {
  EXPECT_EQ(mac_of(port_address), (Mac{0x02, 0x67, 127, 0, 195, 7}));
  EXPECT_EQ(gid_of(port_address, 0),
            (Gid{0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x00, 0x67, 127, 0xff, 0xfe, 0, 195, 7}));
  EXPECT_EQ(guid_of(port_address), 0x00677ffffe00c307u);
}

TEST(Addressing, foreign_link_local_gid_stays_as_it_is) {
  const Gid foreign{0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x52, 0x54, 0x00, 0xff, 0xfe, 1, 2, 3};
  EXPECT_EQ(address_of(foreign).gid, foreign);
}

TEST(Addressing, each_bit_of_a_link_local_gid_counts) {
  constexpr std::array kOfAddress{10, 13, 14, 15};
  for (std::size_t bit = 0; bit < 128; ++bit) {
    Gid gid = gid_of(port_address, 0);
    gid[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
    const auto place = std::ranges::find(kOfAddress, static_cast<int>(bit / 8));
    Address expected{gid};
    if (place != kOfAddress.end()) {
      expected = port_address;
      expected.gid[static_cast<std::size_t>(12 + (place - kOfAddress.begin()))] ^=
          static_cast<std::uint8_t>(1u << bit % 8);
    }
    EXPECT_EQ(address_of(gid), expected) << bit;
  }
}

TEST(Addressing, gids_of_two_kinds_are_warned_of_once) {
  static bool repeated = false;  // in this process
  const Gid v6 = Address::parse("fd67::1")->gid;
  testing::internal::CaptureStderr();
  warn_of_mixed_gids(port_address, 1, port_address.gid);
  warn_of_mixed_gids(port_address, 0, v6);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  testing::internal::CaptureStderr();
  warn_of_mixed_gids(port_address, 1, v6);
  warn_of_mixed_gids(port_address, 0, port_address.gid);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::ranges::count(said, '\n'), repeated ? 0 : 1) << said;
  EXPECT_EQ(said.find("a peer's IPv6 GID was given with a source GID (index 1)") == std::string::npos,
            repeated);
  repeated = true;
}

TEST(Addressing, lid_exists_on_loopback_only_and_leads_back) {
  EXPECT_EQ(lid_of(port_address), 0xc307);
  EXPECT_EQ(address_of_lid(0xc307), port_address);
  EXPECT_EQ(lid_of(Address::ipv4(0x7f01c307)), 0);
  EXPECT_EQ(lid_of(Address::ipv4(0x0a00c307)), 0);
}

TEST(Addressing, index_beyond_the_table_gives_the_zero_gid) { EXPECT_EQ(gid_of(port_address, 2), Gid{}); }

}  // namespace addressing_test
}  // namespace gdx::softhca::wire
