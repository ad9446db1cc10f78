// Settings from the environment, and refusals of them.
#include "driver-shim/softhca/uverbs/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace gdx::softhca::uverbs {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Result<Configuration> configure(const std::map<std::string, std::string>& variables) {
  return config_from(
      [&](const char* name) {
        const auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
      },
      42);
}

TEST(Config, nothing_said_is_dcqcn_on_a_link_without_a_rate) {
  const auto config = configure({});
  ASSERT_TRUE(config);
  EXPECT_EQ(config->hcas, 1u);
  EXPECT_EQ(config->first.congestion_control, CongestionControl::kDcqcn);
  EXPECT_EQ(config->first.carrier, wire::Carrier::kUdp);
  EXPECT_EQ(config->first.rate_gbps, 0);
  EXPECT_FALSE(config->first.strict);
  EXPECT_EQ(config->first.spoiled_copies, 0);
}

TEST(Config, strict_spoils_copies_unless_told_otherwise) {
  EXPECT_TRUE(configure({{"GDX_STRICT", "1"}})->first.strict);
  EXPECT_GT(configure({{"GDX_STRICT", "1"}})->first.spoiled_copies, 0);
  EXPECT_EQ(configure({{"GDX_STRICT", "1"}, {"GDX_SOFTHCA_SPOILED_COPIES", "0"}})->first.spoiled_copies, 0);
  EXPECT_EQ(configure({{"GDX_SOFTHCA_SPOILED_COPIES", "0.5"}})->first.spoiled_copies, 0.5);
  EXPECT_FALSE(configure({{"GDX_SOFTHCA_SPOILED_COPIES", "2"}}));
}

TEST(Config, named_choices_are_taken) {
  const auto config = configure({{"GDX_SOFTHCA_CONGESTION_CONTROL", "none"},
                                 {"GDX_SOFTHCA_WIRE", "shm"},
                                 {"GDX_SOFTHCA_RATE_GBPS", "0.5"}});
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->first.congestion_control, CongestionControl::kNone);
  EXPECT_EQ(config->first.carrier, wire::Carrier::kSharedMemory);
  EXPECT_EQ(config->first.rate_gbps, 0.5);
  EXPECT_EQ(configure({{"GDX_SOFTHCA_CONGESTION_CONTROL", "dcqcn"}})->first.congestion_control,
            CongestionControl::kDcqcn);
}

TEST(Config, link_layer_goes_by_name) {
  EXPECT_FALSE(configure({})->first.infiniband);
  EXPECT_TRUE(configure({{"GDX_SOFTHCA_LINK_LAYER", "infiniband"}})->first.infiniband);
  EXPECT_FALSE(configure({{"GDX_SOFTHCA_LINK_LAYER", "ib"}}));
}

TEST(Config, planted_faults_go_by_name) {
  EXPECT_EQ(configure({})->fault, PlantedFault::kNone);
  EXPECT_EQ(configure({{"GDX_SOFTHCA_FAULT", "lost_add"}})->fault, PlantedFault::kLostAdd);
  EXPECT_THAT(configure({{"GDX_SOFTHCA_FAULT", "lost"}}).error().message,
              AllOf(HasSubstr("GDX_SOFTHCA_FAULT=lost: must be one of no_device, port_down, "),
                    HasSubstr("lost_add")));
}

TEST(Config, further_hcas_have_names_addresses_seeds_and_captures_of_their_own) {
  const auto config = configure({{"GDX_SOFTHCA_SEED", "7"}, {"GDX_SOFTHCA_PCAP", "out/run.pcap"}});
  ASSERT_TRUE(config) << config.error().message;
  const wire::Address first = *wire::Address::parse("127.0.0.255");
  EXPECT_EQ(sibling_config(config->first, first, 0).udp.faults.seed, 7u);
  EXPECT_EQ(sibling_config(config->first, first, 0).udp.pcap_path, "out/run.pcap");
  const HcaConfig third = sibling_config(config->first, first, 2);
  EXPECT_EQ(third.name, "gdx2");
  EXPECT_EQ(third.udp.address, "127.0.1.1");
  EXPECT_EQ(third.udp.pcap_path, "out/run.gdx2.pcap");
  EXPECT_NE(third.udp.faults.seed, sibling_config(config->first, first, 1).udp.faults.seed);
  EXPECT_GT(third.udp.faults.seed, 7u + 1024) << "ranks count up from the first one's";
}

TEST(Config, other_names_are_refused_with_those_that_there_are) {
  const auto refused = configure({{"GDX_SOFTHCA_CONGESTION_CONTROL", "DCQCN"}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, Status::kInvalidArgument);
  EXPECT_EQ(refused.error().message, "GDX_SOFTHCA_CONGESTION_CONTROL=DCQCN: must be dcqcn or none");
  EXPECT_THAT(configure({{"GDX_SOFTHCA_WIRE", "tcp"}}).error().message,
              AllOf(HasSubstr("GDX_SOFTHCA_WIRE=tcp"), HasSubstr("udp, shm or auto")));
}

}  // namespace
}  // namespace gdx::softhca::uverbs
