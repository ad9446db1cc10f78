#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <limits>

#include "host/queue/endpoint.h"
#include "host/queue/wqe_text.h"

namespace gdx {
namespace endpoint_options_test {

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
  const char* named;  // the message behind its first words
  void (*spoil)(EndpointOptions&);
};

TEST(EndpointOptions, impossible_value_is_refused_by_name) {
  const OptionCase cases[] = {
      {"send_queue_blocks = 0: use a power of two, 16 to 32768",
       [](EndpointOptions& o) { o.send_queue_blocks = 0; }},
      {"send_queue_blocks = 8: use a power of two, 16 to 32768",
       [](EndpointOptions& o) { o.send_queue_blocks = 8; }},
      {"send_queue_blocks = 100: use a power of two, 16 to 32768",
       [](EndpointOptions& o) { o.send_queue_blocks = 100; }},
      {"send_queue_blocks = 65536: use a power of two, 16 to 32768",
       [](EndpointOptions& o) { o.send_queue_blocks = 65536; }},
      {"send_queue_blocks = 32: use at least 64 where the endpoint is shared: a warp posts 32 at once",
       [](EndpointOptions& o) {
         o.sharing = Sharing::kShared;
         o.send_queue_blocks = 32;
       }},
      {"unsafe_push_without_credits = 1: use 0 where the endpoint is shared",
       [](EndpointOptions& o) {
         o.sharing = Sharing::kShared;
         o.unsafe_push_without_credits = true;
       }},
      {"placement = 7: use host (0) or gpu (1)",
       [](EndpointOptions& o) { o.placement = static_cast<Placement>(7); }},
      {"timeout_ns = 0: use 1 to 3600000000000 (an hour)", [](EndpointOptions& o) { o.timeout_ns = 0; }},
      {"probe_after_ns = 0: use 1 to 3600000000000 (an hour)",
       [](EndpointOptions& o) { o.probe_after_ns = 0; }},
      {"timeout_ns = 3600000000001: use 1 to 3600000000000 (an hour)",
       [](EndpointOptions& o) { o.timeout_ns = kMaxWaitNs + 1; }},
      {"probe_after_ns = 18446744073709551615: use 1 to 3600000000000 (an hour)",
       [](EndpointOptions& o) { o.probe_after_ns = std::numeric_limits<std::uint64_t>::max(); }},
      {"ack_timeout = 0: use 1 to 31 (4.096 us * 2^n)", [](EndpointOptions& o) { o.ack_timeout = 0; }},
      {"ack_timeout = 32: use 1 to 31 (4.096 us * 2^n)", [](EndpointOptions& o) { o.ack_timeout = 32; }},
      {"retry_count = 8: use 0 to 7", [](EndpointOptions& o) { o.retry_count = 8; }},
      {"service_level = 16: use 0 to 15, on Ethernet to 7", [](EndpointOptions& o) { o.service_level = 16; }},
      {"pkey = 0: use a P_Key of the port's table, such as 32769 (0x8001)",
       [](EndpointOptions& o) { o.pkey = 0; }},
      {"pkey = 32768: use a P_Key of the port's table, such as 32769 (0x8001)",
       [](EndpointOptions& o) { o.pkey = 0x8000; }},
      {"rnr_retry = 8: use 0 to 7", [](EndpointOptions& o) { o.rnr_retry = 8; }},
      {"min_rnr_timer = 32: use 0 to 31", [](EndpointOptions& o) { o.min_rnr_timer = 32; }},
      {"hop_limit = 0: use 1 to 255", [](EndpointOptions& o) { o.hop_limit = 0; }},
  };
  for (const OptionCase& spoiled : cases) {
    EndpointOptions options;
    ASSERT_TRUE(check_endpoint_options(options));
    spoiled.spoil(options);
    const auto checked = check_endpoint_options(options);
    ASSERT_FALSE(checked) << spoiled.named;
    EXPECT_EQ(checked.error().status, Status::kInvalidArgument);
    EXPECT_EQ(checked.error().message, std::string("endpoint option ") + spoiled.named);
  }
}

TEST(EndpointOptions, first_and_last_values_of_the_ranges_pass) {
  EXPECT_TRUE(check_endpoint_options({.send_queue_blocks = kMaxSendQueueBlocks,
                                      .timeout_ns = kMaxWaitNs,
                                      .probe_after_ns = kMaxWaitNs,
                                      .ack_timeout = 31,
                                      .retry_count = 7,
                                      .rnr_retry = 7,
                                      .min_rnr_timer = 31,
                                      .hop_limit = 255,
                                      .service_level = 15,
                                      .pkey = 0xffff}));
  EXPECT_TRUE(check_endpoint_options({.send_queue_blocks = 16,
                                      .timeout_ns = 1,
                                      .probe_after_ns = 1,
                                      .ack_timeout = 1,
                                      .retry_count = 0,
                                      .rnr_retry = 0,
                                      .min_rnr_timer = 0,
                                      .hop_limit = 1,
                                      .service_level = 0,
                                      .pkey = 1,
                                      .unsafe_push_without_credits = true}));
  EXPECT_TRUE(check_endpoint_options({.send_queue_blocks = 64, .sharing = Sharing::kShared}));
}

TEST(EndpointOptions, left_open_they_are_as_the_hca_is) {
  const EndpointOptions own;
  EXPECT_EQ(own.send_queue_blocks, 128u);
  EXPECT_EQ(own.probe_after_ns, 500'000'000u);
  EXPECT_EQ(own.rnr_retry, 7);
  EXPECT_EQ(own.min_rnr_timer, 12);
  EXPECT_EQ(own.hop_limit, 64);
  const auto hardware = resolve_endpoint_options({}, false, LinkLayer::kEthernet);
  ASSERT_TRUE(hardware) << hardware.error().message;
  EXPECT_EQ(hardware->timeout_ns, 40'000'000'000u);
  EXPECT_EQ(hardware->ack_timeout, 18);
  EXPECT_EQ(hardware->retry_count, 7);
  const auto software = resolve_endpoint_options({}, true, LinkLayer::kEthernet);
  ASSERT_TRUE(software) << software.error().message;
  EXPECT_EQ(software->timeout_ns, 5'000'000'000u);
  EXPECT_EQ(software->ack_timeout, 14);
  EXPECT_EQ(software->retry_count, 5);
  EXPECT_EQ(software->traffic_class, 0);
  EXPECT_EQ(software->service_level, 0);
  EXPECT_EQ(software->doorbell, DoorbellKind::kPlain);
  EXPECT_EQ(hardware->doorbell, DoorbellKind::kPlain);
  EXPECT_FALSE(*hardware->adaptive_routing);
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
      {kPkeyVariable, "0x80aF", "0x10000", [](const EndpointOptions& o) { return std::uint64_t{*o.pkey}; },
       0x80af},
      {kDoorbellVariable, "blueflame", "BlueFlame",
       [](const EndpointOptions& o) { return static_cast<std::uint64_t>(*o.doorbell); },
       static_cast<std::uint64_t>(DoorbellKind::kBlueFlame)},
      {kAdaptiveRoutingVariable, "1", "2",
       [](const EndpointOptions& o) { return std::uint64_t{*o.adaptive_routing}; }, 1},
  };
  for (const VariableCase& one : cases) {
    setenv(one.variable, one.value, 1);
    const auto resolved = resolve_endpoint_options({}, true, LinkLayer::kEthernet);
    ASSERT_TRUE(resolved) << resolved.error().message;
    EXPECT_EQ(one.read(*resolved), one.expected) << one.variable;
    setenv(one.variable, one.beyond, 1);
    const auto refused = resolve_endpoint_options({}, true, LinkLayer::kEthernet);
    ASSERT_FALSE(refused) << one.variable;
    EXPECT_THAT(refused.error().message, ::testing::StartsWith(one.variable));
    unsetenv(one.variable);
  }
  setenv(kRetryCountVariable, "3", 1);
  EXPECT_EQ(resolve_endpoint_options({.retry_count = 6}, true, LinkLayer::kEthernet)->retry_count, 6)
      << "an option goes first";
  unsetenv(kRetryCountVariable);
}

TEST(EndpointOptions, service_levels_above_7_are_for_infiniband) {
  EXPECT_EQ(resolve_endpoint_options({.service_level = 15}, true, LinkLayer::kInfiniBand)->service_level, 15);
  const auto by_option = resolve_endpoint_options({.service_level = 8}, true, LinkLayer::kEthernet);
  ASSERT_FALSE(by_option);
  EXPECT_EQ(
      by_option.error().message,
      "endpoint option service_level = 8: use 0 to 7, the priorities of a VLAN, because the HCA's port is "
      "Ethernet");
  setenv(kServiceLevelVariable, "8", 1);
  EXPECT_EQ(resolve_endpoint_options({}, true, LinkLayer::kInfiniBand)->service_level, 8);
  const auto by_variable = resolve_endpoint_options({}, true, LinkLayer::kEthernet);
  unsetenv(kServiceLevelVariable);
  ASSERT_FALSE(by_variable);
  EXPECT_EQ(
      by_variable.error().message,
      "GDX_SERVICE_LEVEL = 8: use 0 to 7, the priorities of a VLAN, because the HCA's port is Ethernet");
}

TEST(EndpointOptions, partition_is_written_in_hexadecimal) {
  for (const char* const wrong : {"", "8001", "0x", "0x0", "0x8000", "0x8001 ", "x8001", "0x-1"}) {
    setenv(kPkeyVariable, wrong, 1);
    EXPECT_FALSE(resolve_endpoint_options({}, true, LinkLayer::kEthernet)) << wrong;
  }
  unsetenv(kPkeyVariable);
  EXPECT_EQ(resolve_endpoint_options({}, true, LinkLayer::kEthernet)->pkey, std::nullopt);
}

// Ensures that a killed peer is reported as "peer unreachable", and never as a timeout.
TEST(EndpointOptions, timeout_must_be_above_the_time_of_all_retries) {
  constexpr std::uint64_t kRetriesNs = 27 * (4096ull << 14);  // 1 + 2 + 6 * 4
  constexpr std::uint64_t kProbeNs = 200'000'000;
  EXPECT_EQ(retry_time_ns(14, 7, true), kRetriesNs);
  EXPECT_EQ(retry_time_ns(14, 0, true), 4096ull << 14);
  EXPECT_EQ(retry_time_ns(18, 7, true), 8 * (4096ull << 18)) << "waits above a second do not grow";
  EXPECT_EQ(retry_time_ns(17, 2, true), (4096ull << 17) + 2'000'000'000);
  EndpointOptions options{
      .timeout_ns = kProbeNs + kRetriesNs, .probe_after_ns = kProbeNs, .ack_timeout = 14, .retry_count = 7};
  const auto refused = resolve_endpoint_options(options, true, LinkLayer::kEthernet);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, Status::kInvalidArgument);
  EXPECT_THAT(refused.error().message, ::testing::HasSubstr("GDX_CALL_TIMEOUT_S: 2.012 s"));
  options.timeout_ns = kProbeNs + kRetriesNs + 1;
  EXPECT_TRUE(resolve_endpoint_options(options, true, LinkLayer::kEthernet));
  options.timeout_ns = 1;
  options.may_time_out_before_retries = true;
  EXPECT_TRUE(resolve_endpoint_options(options, true, LinkLayer::kEthernet));
}

// Hardware may let each try last 4 ACK timeouts.
TEST(EndpointOptions, hardware_defaults_name_a_dead_peer_even_by_the_slowest_tries_of_iba) {
  EXPECT_EQ(retry_time_ns(18, 7, false), 8 * 4 * (4096ull << 18));
  EXPECT_EQ(retry_time_ns(14, 0, false), 4 * (4096ull << 14));
  const auto usual = resolve_endpoint_options({}, false, LinkLayer::kEthernet);
  ASSERT_TRUE(usual) << usual.error().message;
  const std::uint64_t tries = *usual->retry_count + 1u;
  EXPECT_LT(usual->probe_after_ns + tries * 4 * (4096ull << *usual->ack_timeout), *usual->timeout_ns);
  const auto refused = resolve_endpoint_options({.timeout_ns = 34'000'000'000}, false, LinkLayer::kEthernet);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message,
              ::testing::HasSubstr("34.000 s) before a dead peer is found, in 34.860 s"));
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
  address.qpn = 0;
  const auto refused = check_endpoint_address(address);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, Status::kVersionMismatch);
  EXPECT_EQ(refused.error().message,
            fmt::format("the peer's endpoint address has layout version {}, this side has {}: run the same "
                        "gdx on both",
                        4, 3));
}

// Each field at its ends, and beyond them.
TEST(EndpointAddress, impossible_fields_are_refused) {
  struct Case {
    void (*spoil)(EndpointAddress&);
    const char* refusal;  // empty: it passes
  };
  const Case cases[] = {
      {[](EndpointAddress& a) { a.qpn = 0; }, "the impossible QPN 0x0"},
      {[](EndpointAddress& a) { a.qpn = 1; }, ""},
      {[](EndpointAddress& a) { a.qpn = 0xffffff; }, ""},
      {[](EndpointAddress& a) { a.qpn = 1u << 24; }, "the impossible QPN 0x1000000"},
      {[](EndpointAddress& a) { a.psn = 0; }, ""},
      {[](EndpointAddress& a) { a.psn = 1u << 24; }, "the impossible PSN 0x1000000"},
      {[](EndpointAddress& a) { a.mtu_bytes = 0; }, "the impossible MTU 0"},
      {[](EndpointAddress& a) { a.mtu_bytes = 128; }, "the impossible MTU 128"},
      {[](EndpointAddress& a) { a.mtu_bytes = 256; }, ""},
      {[](EndpointAddress& a) { a.mtu_bytes = 1500; }, "the impossible MTU 1500"},
      {[](EndpointAddress& a) { a.mtu_bytes = 8192; }, "the impossible MTU 8192"},
      {[](EndpointAddress& a) { a.data_order = DataOrder::kKept; }, ""},
      {[](EndpointAddress& a) { a.data_order = static_cast<DataOrder>(2); }, "the impossible data order 2"},
      {[](EndpointAddress& a) { a.lid = 0xbfff; }, ""},
      {[](EndpointAddress& a) { a.lid = 0xc000; }, "the impossible LID 0xc000"},  // of a multicast group
      {[](EndpointAddress& a) { a.gid[15] = 0; }, "no GID"},
      {[](EndpointAddress& a) { a.pkey = 0x0001; }, ""},
      {[](EndpointAddress& a) { a.pkey = 0x8000; }, "the impossible P_Key 0x8000"},
  };
  for (const Case& one : cases) {
    EndpointAddress address = plausible_address();
    one.spoil(address);
    const auto checked = check_endpoint_address(address);
    EXPECT_EQ(checked ? "" : checked.error().message,
              *one.refusal == '\0' ? "" : std::string("the peer's endpoint address has ") + one.refusal);
    EXPECT_TRUE(checked || checked.error().status == Status::kInvalidArgument);
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

TEST(EndpointFault, request_names_its_kind_its_bytes_and_both_memories) {
  using mlx5::WqeOpcode;
  const std::pair<WqeOpcode, const char*> kinds[] = {
      {WqeOpcode::kNop, "NOP"},
      {WqeOpcode::kRdmaWrite, "RDMA WRITE"},
      {WqeOpcode::kRdmaRead, "RDMA READ"},
      {WqeOpcode::kAtomicCompareSwap, "atomic compare-and-swap"},
      {WqeOpcode::kAtomicFetchAdd, "atomic fetch-and-add"},
      {static_cast<WqeOpcode>(0x0a), "opcode 0x0a"}};
  for (const auto& [opcode, text] : kinds) {
    mlx5::PutWqe put{};
    put.control.opmod_index_opcode = 7u << 8 | static_cast<std::uint32_t>(opcode);
    put.control.qpn_ds = mlx5::kPutSegments;
    put.remote.address = 0x7000;
    put.remote.rkey = 0x18;
    put.data = {0x123, 0x2a, 0x9000};
    mlx5::WqeBasicBlock block{};
    std::memcpy(&block, &put, sizeof put);
    std::string bytes = "291 B";
    if (opcode == WqeOpcode::kAtomicCompareSwap || opcode == WqeOpcode::kAtomicFetchAdd) {
      const mlx5::DataSegment result{8, 0x2a, 0x9000};  // behind the operands
      std::memcpy(block.bytes + sizeof put, &result, sizeof result);
      bytes = "8 B";
    }
    EXPECT_EQ(describe_wqe(block, 7, "P"),
              fmt::format("{} of {} at 0x7000 (rkey 0x18) of P, local 0x9000 (lkey 0x2a)", text, bytes));
    put.data.byte_count = mlx5::kInlineFlag | 5;
    if (opcode != WqeOpcode::kRdmaWrite) continue;
    std::memcpy(&block, &put, sizeof put);
    EXPECT_EQ(describe_wqe(block, 7, "P"), "RDMA WRITE of 5 B at 0x7000 (rkey 0x18) of P");
  }
}

}  // namespace endpoint_options_test
}  // namespace gdx
