// The network between two ports, if it joins them: partitions, subnets, GRHs, FLIDs.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "host/hca/hca.h"
#include "host/queue/network.h"

namespace gdx {
namespace network_test {

using ::testing::HasSubstr;

EndpointAddress port(const char* gid, std::uint16_t lid, std::uint16_t pkey = 0xffff) {
  EndpointAddress address{};
  address.lid = lid;
  address.pkey = pkey;
  EXPECT_EQ(inet_pton(AF_INET6, gid, address.gid), 1);
  return address;
}

TEST(Network, joins_ports_of_one_partition_of_which_one_is_a_full_member) {
  struct Case {
    std::uint16_t own;
    std::uint16_t peer;
    bool joined;
  };
  const Case cases[] = {{0xffff, 0xffff, true},  {0xffff, 0x7fff, true},  {0x7fff, 0xffff, true},
                        {0x7fff, 0x7fff, false}, {0x8001, 0x8001, true},  {0x0001, 0x8001, true},
                        {0x8001, 0xffff, false}, {0x8001, 0x8002, false}, {0x8001, 0x0003, false}};
  for (const Case& one : cases) {
    SCOPED_TRACE(testing::Message() << std::hex << one.own << " to " << one.peer);
    const auto joined = check_one_network(port("fe80::1", 1, one.own), port("fe80::2", 2, one.peer));
    EXPECT_EQ(joined.has_value(), one.joined);
    if (joined) continue;
    EXPECT_EQ(joined.error().status, Status::kInvalidArgument);
    EXPECT_THAT(joined.error().message, HasSubstr("GDX_PKEY"));
  }
  EXPECT_THAT(check_one_network(port("fe80::1", 1, 0x8001), port("fe80::2", 2)).error().message,
              HasSubstr("the peer's P_Key is 0xffff, and this endpoint's is 0x8001"));
}

TEST(Network, joins_no_ports_of_two_link_layers) {
  const auto refused = check_one_network(port("fe80::1", 1), port("::ffff:10.0.0.1", 0));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message,
              HasSubstr("the peer's port is Ethernet, and the HCA's port here is InfiniBand"));
}

TEST(Network, joins_loopback_addresses_of_one_node_alone) {
  const auto refusal = [](const char* own, std::uint32_t own_node, const char* other,
                          std::uint32_t other_node) {
    EndpointAddress here = port(own, 0);
    EndpointAddress there = port(other, 0);
    here.node = own_node;
    there.node = other_node;
    const auto joined = check_one_network(here, there);
    return joined ? "" : joined.error().message;
  };
  const char* const ethernet = "::ffff:10.0.0.1";
  for (const char* const loop : {"::1", "::ffff:127.0.67.67"}) {
    EXPECT_EQ(refusal(ethernet, 7, loop, 7), "");
    EXPECT_EQ(refusal(ethernet, 7, loop, 0), "") << "of gdxd";
    EXPECT_EQ(refusal(loop, 0, ethernet, 8), "");
    EXPECT_THAT(refusal(ethernet, 7, loop, 8), HasSubstr("the peer's HCA has the loopback address "));
    EXPECT_THAT(refusal(loop, 7, ethernet, 8), HasSubstr("this HCA has the loopback address "));
  }
  EXPECT_EQ(refusal(ethernet, 7, "::ffff:126.0.0.1", 8), "");
  EXPECT_THAT(refusal("::ffff:127.0.0.9", 7, "::ffff:127.0.67.67", 8), HasSubstr("address 127.0.67.67, and"));
}

TEST(Network, path_within_a_subnet_has_a_grh_where_either_port_requires_it) {
  for (const bool own : {false, true}) {
    for (const bool other : {false, true}) {
      EndpointAddress peer = port("fe80::2", 0x123);
      peer.grh_required = other ? 1 : 0;
      const auto path = infiniband_path(port("fe80::1", 1).gid, own, peer);
      ASSERT_TRUE(path) << path.error().message;
      EXPECT_EQ(*path, (LidPath{0x123, own || other}));
    }
  }
}

TEST(Network, path_to_another_subnet_leads_by_flid_with_a_grh) {
  struct Case {
    const char* own;
    const char* peer;
    std::optional<LidPath> path;
  };
  const Case cases[] = {{"fec0:0:101:7::1", "fec0:0:202:9::2", LidPath{0x202, true}},
                        {"fec0:0:101:7::1", "fec0:0:202:7::2", LidPath{0x123, false}},  // of one subnet
                        {"fec0:0:101:7::1", "fec0:0:0:9::2", std::nullopt},
                        {"fec0:0:0:7::1", "fec0:0:202:9::2", std::nullopt},
                        {"fe80::1", "fec0:0:202:9::2", std::nullopt},
                        {"fe80::1", "fe80:0:202:9::2", std::nullopt},  // those bytes mean a FLID after fec0:0
                        {"2001:db8:1::1", "2001:db8:2::2", std::nullopt},
                        {"2001:db8:1::1", "2001:db8:1::2", LidPath{0x123, false}}};
  for (const Case& one : cases) {
    SCOPED_TRACE(testing::Message() << one.own << " to " << one.peer);
    const auto path = infiniband_path(port(one.own, 1).gid, false, port(one.peer, 0x123));
    ASSERT_EQ(path.has_value(), one.path.has_value());
    if (path) {
      EXPECT_EQ(*path, *one.path);
      continue;
    }
    EXPECT_EQ(path.error().status, Status::kUnsupported);
    EXPECT_THAT(path.error().message, HasSubstr(one.peer));
  }
}

TEST(Network, partition_is_the_wanted_one_and_rather_as_a_full_member) {
  const std::vector<std::uint16_t> table = {0x7fff, 0, 0x0001, 0x8001, 0x8002, 0x0003};
  using Index = std::optional<std::uint16_t>;
  EXPECT_EQ(choose_pkey(table, {}), Index(3)) << "the first full member";
  EXPECT_EQ(choose_pkey(table, 0x0001), Index(3));
  EXPECT_EQ(choose_pkey(table, 0x8001), Index(3));
  EXPECT_EQ(choose_pkey(table, 0x0002), Index(4));
  EXPECT_EQ(choose_pkey(table, 0x8003), Index(5)) << "limited, where there is no other";
  EXPECT_EQ(choose_pkey(table, 0xffff), Index(0));
  EXPECT_EQ(choose_pkey(table, 0x8004), std::nullopt);
  const std::vector<std::uint16_t> limited = {0, 0x7fff};
  EXPECT_EQ(choose_pkey(limited, {}), Index(1));
  EXPECT_EQ(choose_pkey({}, {}), std::nullopt);
}

}  // namespace network_test
}  // namespace gdx
