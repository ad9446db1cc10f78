#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <limits>

#include "host/queue/endpoint.h"
#include "host/queue/wqe_text.h"

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
  const char* named;  // required name in the message
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
      {"unsafe_push_without_credits = 1: use 0 where the endpoint is shared",
       [](EndpointOptions& o) {
         o.sharing = Sharing::kShared;
         o.unsafe_push_without_credits = true;
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
      {"service_level", [](EndpointOptions& o) { o.service_level = 8; }},
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

TEST(EndpointOptions, left_open_they_are_as_the_hca_is) {
  const auto hardware = resolve_endpoint_options({}, false);
  ASSERT_TRUE(hardware) << hardware.error().message;
  EXPECT_EQ(hardware->timeout_ns, 30'000'000'000u);
  EXPECT_EQ(hardware->ack_timeout, 18);
  EXPECT_EQ(hardware->retry_count, 7);
  const auto software = resolve_endpoint_options({}, true);
  ASSERT_TRUE(software) << software.error().message;
  EXPECT_EQ(software->timeout_ns, 5'000'000'000u);
  EXPECT_EQ(software->ack_timeout, 14);
  EXPECT_EQ(software->retry_count, 5);
  EXPECT_EQ(software->traffic_class, 0);
  EXPECT_EQ(software->service_level, 0);
  EXPECT_EQ(software->doorbell, DoorbellKind::kPlain);
  EXPECT_EQ(hardware->doorbell, DoorbellKind::kPlain);
}

struct VariableCase {
  const char* variable;
  const char* value;
  const char* beyond;
  std::uint64_t (*read)(const EndpointOptions&);
  std::uint64_t expected;
};

TEST(EndpointOptions, left_open_they_are_as_the_variable_says) {
  const VariableCase cases[] = {
      {kCallTimeoutVariable, "60", "3601", [](const EndpointOptions& o) { return *o.timeout_ns; },
       60'000'000'000},
      {kAckTimeoutVariable, "12", "32",
       [](const EndpointOptions& o) { return std::uint64_t{*o.ack_timeout}; }, 12},
      {kRetryCountVariable, "3", "8", [](const EndpointOptions& o) { return std::uint64_t{*o.retry_count}; },
       3},
      {kTrafficClassVariable, "106", "256",
       [](const EndpointOptions& o) { return std::uint64_t{*o.traffic_class}; }, 106},
      {kServiceLevelVariable, "5", "8",
       [](const EndpointOptions& o) { return std::uint64_t{*o.service_level}; }, 5},
      {kDoorbellVariable, "blueflame", "BlueFlame",
       [](const EndpointOptions& o) { return static_cast<std::uint64_t>(*o.doorbell); },
       static_cast<std::uint64_t>(DoorbellKind::kBlueFlame)},
  };
  for (const VariableCase& one : cases) {
    setenv(one.variable, one.value, 1);
    const auto resolved = resolve_endpoint_options({}, true);
    ASSERT_TRUE(resolved) << resolved.error().message;
    EXPECT_EQ(one.read(*resolved), one.expected) << one.variable;
    setenv(one.variable, one.beyond, 1);
    const auto refused = resolve_endpoint_options({}, true);
    ASSERT_FALSE(refused) << one.variable;
    EXPECT_THAT(refused.error().message, ::testing::StartsWith(one.variable));
    unsetenv(one.variable);
  }
  setenv(kRetryCountVariable, "3", 1);
  EXPECT_EQ(resolve_endpoint_options({.retry_count = 6}, true)->retry_count, 6) << "an option goes first";
  unsetenv(kRetryCountVariable);
}

// Ensures that a killed peer is reported as "peer unreachable", and never as a timeout.
TEST(EndpointOptions, timeout_must_be_above_the_time_of_all_retries) {
  constexpr std::uint64_t kRetriesNs = 27 * (4096ull << 14);  // 1 + 2 + 6 * 4
  constexpr std::uint64_t kProbeNs = 200'000'000;
  for (const bool software : {false, true}) {
    EXPECT_EQ(retry_time_ns(14, 7, software), kRetriesNs);
    EXPECT_EQ(retry_time_ns(14, 0, software), 4096ull << 14);
  }
  EXPECT_EQ(retry_time_ns(18, 7, false), 27 * (4096ull << 18));
  EXPECT_EQ(retry_time_ns(18, 7, true), 8 * (4096ull << 18)) << "waits above a second do not grow";
  EXPECT_EQ(retry_time_ns(17, 2, true), (4096ull << 17) + 2'000'000'000);
  EndpointOptions options{
      .timeout_ns = kProbeNs + kRetriesNs, .probe_after_ns = kProbeNs, .ack_timeout = 14, .retry_count = 7};
  const auto refused = resolve_endpoint_options(options, true);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, Status::kInvalidArgument);
  EXPECT_THAT(refused.error().message, ::testing::HasSubstr("GDX_CALL_TIMEOUT_S: 2.012 s"));
  options.timeout_ns = kProbeNs + kRetriesNs + 1;
  EXPECT_TRUE(resolve_endpoint_options(options, true));
  options.timeout_ns = 1;
  options.may_time_out_before_retries = true;
  EXPECT_TRUE(resolve_endpoint_options(options, true));
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
  std::vector<EndpointAddress> spoiled(8, plausible_address());
  spoiled[0].qpn = 0;
  spoiled[1].qpn = 1u << 24;
  spoiled[2].psn = 1u << 24;
  spoiled[3].mtu_bytes = 0;
  spoiled[4].mtu_bytes = 1500;
  spoiled[5].mtu_bytes = 8192;
  spoiled[6].gid[15] = 0;
  spoiled[7].lid = 0xc000;  // of a multicast group
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

TEST(EndpointFault, request_is_described_until_another_has_its_place) {
  mlx5::PutWqe probe{};  // of no bytes, and so without a data segment
  probe.control.opmod_index_opcode = 12u << 8 | static_cast<std::uint32_t>(mlx5::WqeOpcode::kRdmaWrite);
  probe.control.qpn_ds = 2;
  probe.remote.address = 0x7000;
  probe.remote.rkey = 0x18;
  mlx5::WqeBasicBlock block{};
  std::memcpy(&block, &probe, sizeof probe);
  EXPECT_EQ(describe_wqe(block, 12, "QP 0x45 at ::1"),
            "RDMA WRITE of 0 B at 0x7000 (rkey 0x18) of QP 0x45 at ::1");
  EXPECT_EQ(describe_wqe(block, 12 + 16, "QP 0x45 at ::1"), std::nullopt);
  probe.remote = {};
  std::memcpy(&block, &probe, sizeof probe);
  EXPECT_EQ(describe_wqe(block, 12, "QP 0x45 at ::1"), "a probe of QP 0x45 at ::1: look there for the cause");
}

}  // namespace
}  // namespace gdx
