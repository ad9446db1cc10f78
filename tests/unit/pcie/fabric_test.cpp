#include "driver-shim/pcie/fabric.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/pcie/rates.h"

namespace gdx::pcie {
namespace fabric_test {

constexpr std::uint64_t kMany = std::uint64_t{1} << 20;

TEST(Fabric, every_path_carries_writes_and_reads_between_all_ends) {
  for (const PathClass path : kPathClasses) {
    for (const NodeId from : {kGpuNode, kNicNode, kHostNode}) {
      for (const NodeId to : {kGpuNode, kNicNode, kHostNode}) {
        if (from == to) continue;
        EventQueue events;
        Fabric fabric(events, kGeneric, path);
        std::string happened;
        fabric.write(from, to, 40, 1000, Purpose::kPayload, [&](TimePs) { happened += 'w'; });
        fabric.read(from, to, 40, 5000, Purpose::kPayload, [&](TimePs) { happened += 'r'; });
        events.run();
        EXPECT_EQ(happened, "wr") << name(path) << ' ' << int{from} << "->" << int{to};
      }
    }
  }
}

TEST(Fabric, transfer_of_no_bytes_happens_at_once_and_moves_nothing) {
  EventQueue events;
  Fabric fabric(events, kGeneric, PathClass::kSys);
  std::string happened;
  fabric.write(kNicNode, kGpuNode, 64, 0, Purpose::kPayload, [&](TimePs) { happened += 'w'; });
  fabric.read(kNicNode, kGpuNode, 64, 0, Purpose::kPayload, [&](TimePs) { happened += 'r'; });
  fabric.write(kNicNode, kGpuNode, 64, 0, Purpose::kPayload, nullptr);
  events.run();
  EXPECT_EQ(happened, "wr");
  EXPECT_EQ(events.now(), 0u);
  EXPECT_EQ(fabric.bytes_sent(kNicNode), 0u);
}

// Each direction carries its own writes and the link layer's packets for the other's: 0.6 % of an x16 link.
TEST(Fabric, writes_both_ways_cost_each_other_the_link_layer_s_packets_only) {
  const Platform platform = test::without_limits(kGeneric);
  const double alone = test::write_bytes_per_s(platform, PathClass::kPix, {kGpuNode, kNicNode, 4096});
  EventQueue events;
  Fabric fabric(events, platform, PathClass::kPix);
  constexpr std::uint64_t kTransfers = 4096;
  constexpr std::uint64_t kBytes = 4096;
  TimePs first = 0;
  TimePs last = 0;
  for (std::uint64_t i = 0; i < kTransfers; ++i) {
    fabric.write(kGpuNode, kNicNode, i * kBytes, kBytes, Purpose::kPayload, [&](TimePs now) {
      if (first == 0) first = now;
      last = now;
    });
    fabric.write(kNicNode, kGpuNode, i * kBytes, kBytes, Purpose::kPayload, nullptr);
  }
  events.run();
  const double both = (kTransfers - 1) * kBytes * kPsPerSecond / static_cast<double>(last - first);
  const double expected = alone / (1 + dllp_share(platform.link));
  EXPECT_NEAR(both, expected, expected * 0.001);
}

TEST(Fabric, counters_tell_transfers_packets_and_bytes_by_purpose) {
  EventQueue events;
  Fabric fabric(events, kGeneric, PathClass::kSys);
  fabric.write(kGpuNode, kNicNode, 0, 1000, Purpose::kPayload, nullptr);
  fabric.write(kGpuNode, kNicNode, 0, 8, Purpose::kDoorbell, nullptr);
  fabric.read(kNicNode, kHostNode, 256, 1024, Purpose::kWqe, nullptr);
  events.run();
  const auto of = [](const std::array<Traffic, kPurposes>& traffic, Purpose purpose) {
    const Traffic& one = traffic[static_cast<std::size_t>(purpose)];
    return std::vector<std::uint64_t>{one.transfers, one.packets, one.bytes};
  };
  EXPECT_EQ(of(fabric.counters().writes, Purpose::kPayload), (std::vector<std::uint64_t>{1, 4, 1000}));
  EXPECT_EQ(of(fabric.counters().writes, Purpose::kDoorbell), (std::vector<std::uint64_t>{1, 1, 8}));
  EXPECT_EQ(of(fabric.counters().reads, Purpose::kWqe), (std::vector<std::uint64_t>{1, 3, 1024}));
  EXPECT_EQ(of(fabric.counters().reads, Purpose::kPayload), (std::vector<std::uint64_t>{0, 0, 0}));
}

TEST(Fabric, completions_are_cut_to_the_maximum_payload) {
  const auto read_time = [](std::uint32_t completion_bytes) {
    Platform platform = kGeneric;
    platform.link.mps_bytes = 128;
    platform.host_memory.completion_bytes = completion_bytes;
    EventQueue events;
    Fabric fabric(events, platform, PathClass::kPix);
    fabric.read(kNicNode, kHostNode, 0, 4096, Purpose::kPayload, nullptr);
    events.run();
    return events.now();
  };
  EXPECT_EQ(read_time(256), read_time(128));
  EXPECT_GT(read_time(64), read_time(128));
}

TEST(Fabric, doorbell_after_payload_arrives_after_it) {
  for (const PathClass path : kPathClasses) {
    EventQueue events;
    Fabric fabric(events, kGeneric, path);
    std::string order;
    fabric.write(kGpuNode, kNicNode, 0, 65536, Purpose::kPayload, [&](TimePs) { order += 'p'; });
    fabric.write(kGpuNode, kNicNode, 0, 8, Purpose::kDoorbell, [&](TimePs) { order += 'd'; });
    events.run();
    EXPECT_EQ(order, "pd") << name(path);
  }
}

TEST(Fabric, completion_does_not_overtake_the_write_before_it) {
  EventQueue events;
  Fabric fabric(events, kGeneric, PathClass::kPix);
  std::string order;
  // The writes fill the GPU's link; the read's completion is queued behind them.
  fabric.write(kGpuNode, kNicNode, 0, kMany, Purpose::kPayload, [&](TimePs) { order += 'w'; });
  fabric.read(kNicNode, kGpuNode, 0, 64, Purpose::kWqe, [&](TimePs) { order += 'r'; });
  events.run();
  EXPECT_EQ(order, "wr");
}

// One tag, or one line of the root complex: of two reads neither overtakes the other.
TEST(Fabric, reads_that_wait_are_served_in_their_order) {
  const auto order_of = [](const Platform& platform) {
    EventQueue events;
    Fabric fabric(events, platform, PathClass::kPhb);
    std::string order;
    for (const char read : {'a', 'b', 'c'})
      fabric.read(kNicNode, kGpuNode, 64, 1500, Purpose::kPayload, [&order, read](TimePs) { order += read; });
    events.run();
    return order;
  };
  Platform platform = kGeneric;
  platform.nic.tags = 1;
  EXPECT_EQ(order_of(platform), "abc");
  platform = kGeneric;
  platform.root.peer_read_lines = 1;
  EXPECT_EQ(order_of(platform), "abc");
}

TEST(Fabric, longer_paths_take_longer) {
  double before_ns = 0;
  for (const PathClass path : {PathClass::kPix, PathClass::kPxb}) {
    const double ns = test::read_latency_ns(kGeneric, path, kNicNode, kGpuNode, 64);
    EXPECT_GT(ns, before_ns) << name(path);
    before_ns = ns;
  }
  before_ns = 0;
  for (const PathClass path : {PathClass::kPhb, PathClass::kNode, PathClass::kSys}) {
    const double ns = test::read_latency_ns(kGeneric, path, kNicNode, kGpuNode, 64);
    EXPECT_GT(ns, before_ns) << name(path);
    before_ns = ns;
  }
}

TEST(Fabric, read_of_an_idle_path_takes_the_sum_of_its_parts) {
  // PIX, 64 B: request 24 B, completion 84 B, each sent on two links; two links and a switch each way.
  const double rate = tlp_bytes_per_s(kGeneric.link);
  const double parts_ns = 4.0 * kGeneric.link_latency_ns + 2.0 * kGeneric.switch_latency_ns +
                          kGeneric.gpu_memory.latency_ns + 2 * (24 + 84) / rate * 1e9;
  // Four transmissions, each rounded to a picosecond.
  EXPECT_NEAR(test::read_latency_ns(kGeneric, PathClass::kPix, kNicNode, kGpuNode, 64), parts_ns, 4 * 0.001);
}

TEST(Fabric, tags_few_reads_run_at_tags_times_size_per_round_trip) {
  Platform platform = test::without_limits(kGeneric);
  platform.nic.tags = 8;
  platform.nic.mrrs_bytes = 512;
  const double round_trip_ns = test::read_latency_ns(platform, PathClass::kPix, kNicNode, kGpuNode, 512);
  const double law = 8 * 512 / round_trip_ns * 1e9;
  // A wave of 8 completions is far shorter than the round trip: the law is exact but for where the measured
  // interval starts and ends, at most one wave in a thousand.
  EXPECT_NEAR(test::read_bytes_per_s(platform, PathClass::kPix, {kNicNode, kGpuNode, 512}), law, law * 0.001);
}

TEST(Fabric, header_credits_few_writes_run_at_credits_per_credit_loop) {
  Platform platform = test::without_limits(kGeneric);
  platform.buffers.posted = {4, 1 << 20};
  // A credit's way: sent (both links), there, through the switch, back.
  const double packet_ns = 280 / tlp_bytes_per_s(platform.link) * 1e9;
  const double loop_ns = 2 * packet_ns + 2.0 * platform.link_latency_ns + platform.switch_latency_ns;
  const double law = 4 * 256 / loop_ns * 1e9;
  EXPECT_NEAR(test::write_bytes_per_s(platform, PathClass::kPix, {kGpuNode, kNicNode, 256}), law,
              law * 0.001);
}

TEST(Fabric, data_credits_few_writes_run_at_credits_per_credit_loop) {
  Platform platform = test::without_limits(kGeneric);
  platform.buffers.posted = {1 << 10, 1024};
  const double packet_ns = 280 / tlp_bytes_per_s(platform.link) * 1e9;
  const double loop_ns = 2 * packet_ns + 2.0 * platform.link_latency_ns + platform.switch_latency_ns;
  const double law = 1024 / loop_ns * 1e9;
  EXPECT_NEAR(test::write_bytes_per_s(platform, PathClass::kPix, {kGpuNode, kNicNode, 256}), law,
              law * 0.001);
}

TEST(Fabric, root_complex_lines_few_peer_reads_run_at_lines_per_round_trip) {
  Platform platform = test::without_limits(kGeneric);
  platform.root.peer_read_lines = 4;
  // A line is held from the root complex to the GPU and back through the root complex.
  const double rate = tlp_bytes_per_s(platform.link);
  const double held_ns = 2.0 * platform.link_latency_ns + platform.gpu_memory.latency_ns +
                         platform.root.peer_hop_ns + (24 + 84) / rate * 1e9;
  const double law = 4 * 64 / held_ns * 1e9;
  EXPECT_NEAR(test::read_bytes_per_s(platform, PathClass::kPhb, {kNicNode, kGpuNode, 512, 2048}), law,
              law * 0.002);
}

TEST(Fabric, root_complex_that_refuses_peer_reads_still_serves_host_memory) {
  EventQueue events;
  const Fabric across(events, kIntelClient, PathClass::kPhb);
  EXPECT_FALSE(across.can_read(kNicNode, kGpuNode));
  EXPECT_TRUE(across.can_read(kNicNode, kHostNode));
  EXPECT_TRUE(across.can_read(kHostNode, kGpuNode));
  EXPECT_FALSE(across.can_read(kGpuNode, kNicNode));
  for (const PathClass path : {PathClass::kPix, PathClass::kPxb}) {
    const Fabric beside(events, kIntelClient, path);
    EXPECT_TRUE(beside.can_read(kNicNode, kGpuNode));
    EXPECT_TRUE(beside.can_read(kGpuNode, kNicNode));
  }
  for (const PathClass path : kPathClasses) {
    EXPECT_TRUE(Fabric(events, kGeneric, path).can_read(kNicNode, kGpuNode)) << name(path);
  }
}

TEST(Fabric, store_size_halved_adds_headers) {
  Platform platform = test::without_limits(kGeneric);
  const double large = test::write_bytes_per_s(platform, PathClass::kPix, {kGpuNode, kNicNode, 4096});
  platform.gpu_store_bytes = 64;
  const double small = test::write_bytes_per_s(platform, PathClass::kPix, {kGpuNode, kNicNode, 4096});
  const double expected = (64.0 / 88) / (256.0 / 280);
  EXPECT_NEAR(small / large, expected, expected * 0.001);
}

TEST(Fabric, run_repeated_is_the_same_to_the_picosecond) {
  const auto run = [] {
    EventQueue events;
    Fabric fabric(events, kGeneric, PathClass::kSys);
    for (int i = 0; i < 100; ++i) {
      fabric.read(kNicNode, kGpuNode, 64 * i, 3000, Purpose::kPayload, nullptr);
      fabric.write(kGpuNode, kNicNode, 32 * i, 2000, Purpose::kPayload, nullptr);
    }
    events.run();
    return std::pair(events.now(), events.events_run());
  };
  EXPECT_EQ(run(), run());
}

}  // namespace fabric_test
}  // namespace gdx::pcie
