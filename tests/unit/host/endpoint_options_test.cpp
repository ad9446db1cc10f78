#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "host/queue/endpoint.h"

namespace gdx {
namespace {

EndpointAddress plausible_address() {
  EndpointAddress address{};
  address.version = kEndpointAddressVersion;
  address.qpn = 0x1234;
  address.psn = 0xffffff;
  address.mtu_bytes = 4096;
  address.gid[15] = 1;
  return address;
}

struct OptionCase {
  const char* named;  // what the message must name
  void (*spoil)(EndpointOptions&);
};

TEST(EndpointOptions, impossible_value_is_refused_by_name) {
  const OptionCase cases[] = {
      {"send_queue_blocks", [](EndpointOptions& o) { o.send_queue_blocks = 0; }},
      {"send_queue_blocks", [](EndpointOptions& o) { o.send_queue_blocks = 100; }},
      {"send_queue_blocks", [](EndpointOptions& o) { o.send_queue_blocks = 65536; }},
      {"send_queue_blocks",
       [](EndpointOptions& o) {
         o.sharing = Sharing::kShared;
         o.send_queue_blocks = 32;
       }},
      {"slot_count",
       [](EndpointOptions& o) {
         o.sharing = Sharing::kShared;
         o.slot_count = 4;
       }},
      {"bounce_slot_count",
       [](EndpointOptions& o) {
         o.sharing = Sharing::kShared;
         o.send_queue_blocks = 64;
         o.bounce_slot_count = 4;
       }},
      {"timeout_ns", [](EndpointOptions& o) { o.timeout_ns = 0; }},
      {"probe_after_ns", [](EndpointOptions& o) { o.probe_after_ns = 0; }},
      {"timeout_ns = 3600000000001: use 1 to 3600000000000",
       [](EndpointOptions& o) { o.timeout_ns = kMaxWaitNs + 1; }},
      {"probe_after_ns = 18446744073709551615: use 1 to 3600000000000",
       [](EndpointOptions& o) { o.probe_after_ns = std::numeric_limits<std::uint64_t>::max(); }},
      {"ack_timeout", [](EndpointOptions& o) { o.ack_timeout = 0; }},
      {"ack_timeout", [](EndpointOptions& o) { o.ack_timeout = 32; }},
      {"retry_count", [](EndpointOptions& o) { o.retry_count = 8; }},
      {"rnr_retry", [](EndpointOptions& o) { o.rnr_retry = 8; }},
      {"min_rnr_timer", [](EndpointOptions& o) { o.min_rnr_timer = 32; }},
      {"hop_limit", [](EndpointOptions& o) { o.hop_limit = 0; }},
  };
  for (const OptionCase& spoiled : cases) {
    EndpointOptions options;
    ASSERT_TRUE(check_endpoint_options(options));
    spoiled.spoil(options);
    const auto checked = check_endpoint_options(options);
    ASSERT_FALSE(checked) << spoiled.named;
    EXPECT_EQ(checked.error().status, Status::kInvalidArgument);
    EXPECT_THAT(checked.error().message, ::testing::HasSubstr(spoiled.named));
  }
}

TEST(EndpointOptions, longest_wait_passes) {
  EXPECT_TRUE(check_endpoint_options({.timeout_ns = kMaxWaitNs, .probe_after_ns = kMaxWaitNs}));
}

TEST(EndpointOptions, gpu_placement_without_a_gpu_is_refused_with_advice) {
  EndpointOptions options;
  options.placement = Placement::kGpu;
  const auto checked = check_endpoint_options(options);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().status, Status::kInvalidArgument);
  EXPECT_THAT(checked.error().message, ::testing::HasSubstr("say with option gpu"));
}

TEST(EndpointAddress, plausible_address_passes) { EXPECT_TRUE(check_endpoint_address(plausible_address())); }

TEST(EndpointAddress, other_layout_version_is_a_version_mismatch) {
  auto address = plausible_address();
  address.version = kEndpointAddressVersion + 1;
  EXPECT_EQ(check_endpoint_address(address).error().status, Status::kVersionMismatch);
}

TEST(EndpointAddress, impossible_fields_are_refused) {
  std::vector<EndpointAddress> spoiled(7, plausible_address());
  spoiled[0].qpn = 0;
  spoiled[1].qpn = 1u << 24;
  spoiled[2].psn = 1u << 24;
  spoiled[3].mtu_bytes = 0;
  spoiled[4].mtu_bytes = 1500;
  spoiled[5].mtu_bytes = 8192;
  spoiled[6].gid[15] = 0;
  for (std::size_t i = 0; i < spoiled.size(); ++i) {
    const auto checked = check_endpoint_address(spoiled[i]);
    ASSERT_FALSE(checked) << i;
    EXPECT_EQ(checked.error().status, Status::kInvalidArgument) << i;
  }
}

TEST(EndpointFault, describe_names_status_and_syndrome) {
  EXPECT_EQ(Endpoint::describe({}), "ok");
  EXPECT_EQ(Endpoint::describe({Status::kTimeout, 0, 0, 0}), "timed out");
  EXPECT_EQ(Endpoint::describe({Status::kPeerUnreachable, 0x15, 0x81, 12}),
            "peer unreachable (transport retries exceeded), syndrome 0x15 (transport retry counter "
            "exceeded), vendor 0x81, WQE 12");
}

}  // namespace
}  // namespace gdx
