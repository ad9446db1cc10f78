// The modelled world: which PCIe transactions each way consists of, and the laws its figures must follow.
#include "driver-shim/pcie/world/world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "driver-shim/pcie/world/measure.h"

namespace gdx::pcie {
namespace world_test {

using testing::HasSubstr;

std::uint64_t transfers(const std::array<Traffic, kPurposes>& traffic, Purpose purpose) {
  return traffic[static_cast<std::size_t>(purpose)].transfers;
}

std::uint64_t all_transfers(const std::array<Traffic, kPurposes>& traffic) {
  std::uint64_t sum = 0;
  for (const Traffic& one : traffic) sum += one.transfers;
  return sum;
}

WorldConfig config(PathClass path, QueuePlacement queues) {
  WorldConfig config;
  config.path = path;
  config.queues = queues;
  return config;
}

TEST(World, push_with_blueflame_puts_no_read_on_any_path) {
  for (const PathClass path : kPathClasses) {
    for (const Mode mode : {Mode::kPush, Mode::kPushFlags, Mode::kPushOrdered}) {
      const WorldConfig world = config(path, QueuePlacement::kGpu);
      const Counters counters = measure_latency(world, mode, 3840).counters;
      EXPECT_EQ(all_transfers(counters.reads), 0u) << name(path) << ' ' << name(mode);
      EXPECT_EQ(transfers(counters.writes, Purpose::kPayload), 1u);
      EXPECT_EQ(transfers(counters.writes, Purpose::kDoorbell), 1u);
      EXPECT_EQ(transfers(counters.writes, Purpose::kCqe), 1u);
    }
  }
}

// 8 B of a line of 128 B are its flag.
TEST(World, payload_with_flags_is_stored_in_whole_lines) {
  const WorldConfig world = config(PathClass::kPix, QueuePlacement::kGpu);
  const auto writes = [&](std::uint64_t bytes) {
    return measure_latency(world, Mode::kPushFlags, bytes).counters.writes;
  };
  const auto stored = [&](std::uint64_t bytes) {
    return writes(bytes)[static_cast<std::size_t>(Purpose::kPayload)].bytes;
  };
  EXPECT_EQ(stored(1), 128u);
  EXPECT_EQ(stored(120), 128u);
  EXPECT_EQ(stored(121), 256u);
  EXPECT_EQ(stored(3840), 4096u);
  EXPECT_EQ(transfers(writes(3840), Purpose::kDoorbell), 1u);
  EXPECT_EQ(transfers(writes(3841), Purpose::kDoorbell), 2u) << "a slot has 32 lines";
}

TEST(World, payload_with_flags_is_released_as_far_as_the_queue_is_away) {
  for (const PathClass path : kPathClasses) {
    const auto saved_ns = [&](QueuePlacement queues) {
      const WorldConfig world = config(path, queues);
      return measure_latency(world, Mode::kPush, 8).delivered_ns -
             measure_latency(world, Mode::kPushFlags, 8).delivered_ns;
    };
    const Ordering fences;
    EXPECT_NEAR(saved_ns(QueuePlacement::kGpu), fences.system_scope_ns - fences.gpu_scope_ns, 0.01)
        << name(path);
    EXPECT_NEAR(saved_ns(QueuePlacement::kHost), 0, 0.01) << name(path);
  }
}

// A WQE in the doorbell comes through the channel too. One in the queue is ordered there.
TEST(World, stores_through_one_channel_need_a_release_only_for_what_is_fetched) {
  for (const QueuePlacement queues : {QueuePlacement::kGpu, QueuePlacement::kHost}) {
    WorldConfig world = config(PathClass::kSys, queues);
    const auto ordered_ns = [&] { return measure_latency(world, Mode::kPushOrdered, 4096).delivered_ns; };
    const auto push_ns = [&](std::uint32_t fence_ns) {
      WorldConfig fenced = world;
      fenced.ordering = {fence_ns, fence_ns};
      return measure_latency(fenced, Mode::kPush, 4096).delivered_ns;
    };
    EXPECT_NEAR(ordered_ns(), push_ns(0), 0.01);
    world.doorbell = DoorbellKind::kPlain;
    const Ordering& fences = world.ordering;
    EXPECT_NEAR(ordered_ns(),
                push_ns(queues == QueuePlacement::kGpu ? fences.gpu_scope_ns : fences.system_scope_ns), 0.01);
  }
}

TEST(World, batch_of_16_puts_has_one_release_and_one_plain_doorbell_on_every_path) {
  for (const PathClass path : kPathClasses) {
    WorldConfig world = config(path, QueuePlacement::kGpu);
    world.batch = 16;
    const Latency pushed = measure_latency(world, Mode::kPush, 4096);
    EXPECT_EQ(transfers(pushed.counters.writes, Purpose::kPayload), 16u) << name(path);
    EXPECT_EQ(transfers(pushed.counters.writes, Purpose::kDoorbell), 1u);
    EXPECT_EQ(transfers(pushed.counters.writes, Purpose::kCqe), 16u);
    EXPECT_EQ(transfers(pushed.counters.reads, Purpose::kRecord), 1u);
    EXPECT_EQ(transfers(pushed.counters.reads, Purpose::kWqe), 1u);
    EXPECT_EQ(all_transfers(pushed.counters.reads), 2u);
    const auto small_ns = [&] { return measure_latency(world, Mode::kPush, 8).delivered_ns; };
    const double before_ns = small_ns();
    world.ordering.system_scope_ns -= 1000;
    EXPECT_NEAR(before_ns - small_ns(), 1000, 0.01);
  }
}

// In host memory each CQE is a read of the poster, after the one before it.
TEST(World, batch_with_queues_in_host_memory_is_polled_put_by_put) {
  WorldConfig world = config(PathClass::kPix, QueuePlacement::kHost);
  const auto polled_ns = [&](std::uint32_t batch) {
    world.batch = batch;
    const Latency latency = measure_latency(world, Mode::kPush, 8);
    EXPECT_EQ(transfers(latency.counters.reads, Purpose::kCqe), batch);
    return latency.completed_ns;
  };
  EXPECT_GT(polled_ns(8), polled_ns(1) + 7 * world.platform.gpu_issue_ns);
}

// 16 endpoints on 16 slots have one each, so they ring for every put. Alone an endpoint has 8.
TEST(World, batch_takes_no_more_slots_than_the_lease_has) {
  WorldConfig world = config(PathClass::kSys, QueuePlacement::kGpu);
  world.doorbell = DoorbellKind::kPlain;
  world.staging.pool_bytes = 16 * world.staging.slot_bytes;
  const auto rate = [&](std::uint32_t lanes, std::uint32_t batch) {
    world.lanes = lanes;
    world.batch = batch;
    return measure_rate(world, Mode::kPush, 8).messages_per_s;
  };
  EXPECT_NEAR(rate(16, 8) / rate(16, 1), 1, 0.01);
  const double whole = rate(1, 8);
  EXPECT_GT(whole, 2 * rate(1, 1));
  EXPECT_NEAR(rate(1, 12) / whole, 1, 0.01);
}

TEST(World, push_with_blueflame_queues_in_host_memory_only_the_poster_reads_its_completion) {
  const WorldConfig world = config(PathClass::kSys, QueuePlacement::kHost);
  const Counters counters = measure_latency(world, Mode::kPush, 4096).counters;
  EXPECT_EQ(all_transfers(counters.reads), 1u);
  EXPECT_EQ(transfers(counters.reads, Purpose::kCqe), 1u);
}

struct Reads {
  std::uint64_t record = 0;
  std::uint64_t wqe = 0;
  std::uint64_t payload = 0;
  bool operator==(const Reads&) const = default;
};

Reads reads_of(DoorbellKind doorbell, Mode mode, std::uint64_t bytes) {
  WorldConfig world = config(PathClass::kPix, QueuePlacement::kGpu);
  world.doorbell = doorbell;
  const auto reads = measure_latency(world, mode, bytes).counters.reads;
  return {transfers(reads, Purpose::kRecord), transfers(reads, Purpose::kWqe),
          transfers(reads, Purpose::kPayload)};
}

TEST(World, plain_doorbell_record_and_wqe_are_fetched) {
  const auto reads = [](Mode mode, std::uint64_t bytes) {
    return reads_of(DoorbellKind::kPlain, mode, bytes);
  };
  EXPECT_EQ(reads(Mode::kPull, 4096), (Reads{1, 1, 1}));
  EXPECT_EQ(reads(Mode::kPush, 4096), (Reads{1, 1, 0}));
  EXPECT_EQ(reads(Mode::kInline, 8), (Reads{1, 1, 0}));
  EXPECT_EQ(reads(Mode::kBounce, 4096), (Reads{1, 1, 1}));
  EXPECT_EQ(reads(Mode::kProxy, 4096), (Reads{1, 1, 1}));
}

TEST(World, record_that_is_unread_is_fetched_by_no_mode) {
  for (const Mode mode : kModes) {
    WorldConfig world = config(PathClass::kSys, QueuePlacement::kGpu);
    world.doorbell = DoorbellKind::kPlain;
    const Latency read = measure_latency(world, mode, 8);
    world.record = RecordUse::kUnread;
    const Latency unread = measure_latency(world, mode, 8);
    EXPECT_EQ(transfers(read.counters.reads, Purpose::kRecord), 1u) << name(mode);
    EXPECT_EQ(transfers(unread.counters.reads, Purpose::kRecord), 0u) << name(mode);
    EXPECT_EQ(transfers(unread.counters.reads, Purpose::kWqe), 1u) << name(mode);
    EXPECT_LT(unread.delivered_ns, read.delivered_ns) << name(mode);
  }
}

TEST(World, blueflame_brings_every_wqe_of_one_block) {
  const auto reads = [](Mode mode, std::uint64_t bytes) {
    return reads_of(DoorbellKind::kBlueFlame, mode, bytes);
  };
  EXPECT_EQ(reads(Mode::kPull, 4096), (Reads{0, 0, 1}));
  EXPECT_EQ(reads(Mode::kPush, 4096), (Reads{0, 0, 0}));
  EXPECT_EQ(reads(Mode::kPush, 1 << 20), (Reads{0, 0, 0}));
  EXPECT_EQ(reads(Mode::kInline, 28), (Reads{0, 0, 0}));
  EXPECT_EQ(reads(Mode::kInline, 29), (Reads{1, 1, 0}));
  EXPECT_EQ(reads(Mode::kBounce, 4096), (Reads{0, 0, 1}));
  EXPECT_EQ(reads(Mode::kProxy, 4096), (Reads{0, 0, 1}));
}

// Grants a lone endpoint half of 32 slots. A quarter of these is ordered once, and each slot has a doorbell
// of its own.
TEST(World, push_of_many_slots_is_ordered_by_quarters) {
  const WorldConfig world = config(PathClass::kPix, QueuePlacement::kGpu);
  const auto push = [&](std::uint64_t slots) { return measure_latency(world, Mode::kPush, slots * 4096); };
  EXPECT_EQ(transfers(push(4).counters.writes, Purpose::kPayload), 1u);
  EXPECT_EQ(transfers(push(4).counters.writes, Purpose::kDoorbell), 4u);
  EXPECT_LT(push(4).delivered_ns, push(1).delivered_ns + world.ordering.system_scope_ns / 5.0);
  EXPECT_EQ(transfers(push(5).counters.writes, Purpose::kPayload), 2u);
  // The last slot is alone again, behind a second fence; what went before it is on the wire by then.
  EXPECT_NEAR(push(5).delivered_ns, push(1).delivered_ns + world.ordering.system_scope_ns, 0.01);
}

// 17 slots: the last one waits until the first quarter has been acknowledged.
TEST(World, push_beyond_the_lease_waits_for_its_own_slots) {
  WorldConfig world = config(PathClass::kPix, QueuePlacement::kGpu);
  world.ordering = {0, 0};
  const double lease_ns = measure_latency(world, Mode::kPush, 16 * 4096).delivered_ns;
  const double beyond_ns = measure_latency(world, Mode::kPush, 17 * 4096).delivered_ns;
  const double first_ns = measure_latency(world, Mode::kPush, 4 * 4096).completed_ns;
  const double one_ns = measure_latency(world, Mode::kPush, 4096).delivered_ns;
  EXPECT_GT(beyond_ns, lease_ns);
  EXPECT_NEAR(beyond_ns, first_ns + one_ns, 0.25 * one_ns);
}

TEST(World, latency_of_the_wire_beyond_32_bits_of_ns_adds_up) {
  WorldConfig world = config(PathClass::kPix, QueuePlacement::kGpu);
  const double near_ns = measure_latency(world, Mode::kPull, 8).delivered_ns - world.wire.latency_ns;
  world.wire.latency_ns = ~std::uint32_t{0};
  EXPECT_NEAR(measure_latency(world, Mode::kPull, 8).delivered_ns, near_ns + world.wire.latency_ns, 0.01);
}

TEST(World, every_mode_delivers_every_byte_and_completes) {
  constexpr std::uint64_t kPuts = 5;
  for (const Mode mode : kModes) {
    for (const std::uint64_t bytes : {1u, 219u, 221u, 4097u, 300001u}) {
      WorldConfig config;
      config.doorbell = bytes % 3 == 0 ? DoorbellKind::kPlain : DoorbellKind::kBlueFlame;
      config.batch = 3;  // of two endpoints with three and two puts
      if (!check(config, mode, bytes)) config.batch = 1;
      World world(config, mode);
      std::uint64_t delivered = 0;
      std::uint64_t completed = 0;
      world.begin(bytes, kPuts, 2,
                  {.delivered = [&](TimePs, std::uint64_t more) { delivered += more; },
                   .completed = [&](TimePs) { ++completed; }});
      while (world.step()) {
      }
      EXPECT_EQ(delivered, kPuts * bytes) << name(mode) << ' ' << bytes;
      EXPECT_EQ(completed, kPuts) << name(mode) << ' ' << bytes;
    }
  }
}

TEST(World, delivery_by_blueflame_takes_the_sum_of_its_parts) {
  const WorldConfig world = config(PathClass::kPix, QueuePlacement::kGpu);
  const Platform& platform = world.platform;
  const double rate = tlp_bytes_per_s(platform.link);
  // There: fences, the doorbell's 64 B behind the payload, both over two links. Then the NICs and the wire,
  // then the payload from the peer's NIC to its GPU.
  const double link_ns = 2.0 * platform.link_latency_ns + platform.switch_latency_ns;
  const double doorbell_ns = world.ordering.system_scope_ns + link_ns + 2 * (64 + 24) / rate * 1e9;
  const double wire_ns =
      2.0 * world.nic_ns + world.wire.latency_ns +
      (8 + world.wire.packet_overhead_bytes + world.wire.reth_bytes) * 8 / world.wire.bits_per_s * 1e9;
  const double landing_ns = link_ns + 2 * (8 + 24) / rate * 1e9;
  // Five transmissions, each rounded to a picosecond.
  EXPECT_NEAR(measure_latency(world, Mode::kPush, 8).delivered_ns, doorbell_ns + wire_ns + landing_ns,
              5 * 0.001);
}

TEST(World, one_slot_pushes_run_at_a_slot_per_round_trip) {
  WorldConfig world = config(PathClass::kSys, QueuePlacement::kGpu);
  world.staging.pool_bytes = world.staging.slot_bytes;
  world.lanes = 1;
  const double held_ns = measure_latency(world, Mode::kPush, 4096).completed_ns;
  const double law = 4096 / held_ns * 1e9;
  // The next push starts the instant a slot is back. So only the rounding of a time to a picosecond is left.
  EXPECT_NEAR(measure_rate(world, Mode::kPush, 4096).bytes_per_s, law, law * 1e-6);
}

// 128 KiB of slots, each held until an acknowledgement 4 us later: 262 Gb/s at most. 32 slots are a wave of
// 32 * 4194 B / 50 GB/s = 2.7 us, shorter than 4 us; the wave's packets wait for each other only where they
// meet. That is at most one packet time (84 ns of 4000) each on the GPU's link, wire and landing.
TEST(World, slots_of_128_kib_held_for_4_us_cap_at_262_gigabits) {
  WorldConfig world = config(PathClass::kPix, QueuePlacement::kGpu);
  world.ordering = {0, 0};
  const double rest_ns = measure_latency(world, Mode::kPush, 4096).completed_ns;
  world.wire.latency_ns += static_cast<std::uint32_t>((4000 - rest_ns) / 2);
  const double gbps = measure_rate(world, Mode::kPush, 4096).bytes_per_s * 8 / 1e9;
  EXPECT_LE(gbps, 262.2);
  EXPECT_GE(gbps, 262.1 * (1 - 3 * 84.0 / 4000));
}

TEST(World, pull_cannot_be_faster_than_the_root_complex_reads) {
  const WorldConfig world = [] {
    WorldConfig made = config(PathClass::kSys, QueuePlacement::kGpu);
    made.platform = kIvyBridge;
    return made;
  }();
  EXPECT_LT(measure_rate(world, Mode::kPull, 65536).bytes_per_s, 0.3e9);
  EXPECT_GT(measure_rate(world, Mode::kProxy, 65536).bytes_per_s, 10e9);
}

// A responder answers for a packet that it has accepted. Here its PCIe is slower than the way back.
TEST(World, acknowledgement_does_not_wait_for_the_pcie_of_the_peer) {
  WorldConfig world = config(PathClass::kSys, QueuePlacement::kGpu);
  world.platform.root.socket_bytes_per_s = 1e9;
  const Latency bounced = measure_latency(world, Mode::kBounce, 65536);
  EXPECT_GT(bounced.delivered_ns, bounced.completed_ns);
}

TEST(World, wire_slower_than_pcie_is_what_pull_runs_at) {
  WorldConfig world = config(PathClass::kPix, QueuePlacement::kGpu);
  world.wire.bits_per_s = 100e9;
  const double packet = 4096.0 / (4096 + world.wire.packet_overhead_bytes);
  const double rate = measure_rate(world, Mode::kPull, 1 << 20).bytes_per_s * 8;
  // One packet in 256 has a RETH; the interval is cut at packets, 1 of 1024.
  EXPECT_NEAR(rate, 100e9 * packet, 100e9 * (1.0 / 1024));
}

TEST(WorldConfig, peer_reads_refused_only_what_needs_them_is_not_possible) {
  WorldConfig world = config(PathClass::kPhb, QueuePlacement::kHost);
  world.platform = kIntelClient;
  world.doorbell = DoorbellKind::kPlain;
  EXPECT_THAT(check(world, Mode::kPull, 8).error().message, HasSubstr("intel-client"));
  for (const Mode mode : {Mode::kPush, Mode::kInline, Mode::kProxy, Mode::kBounce})
    EXPECT_TRUE(check(world, mode, 4096)) << name(mode);
  world.queues = QueuePlacement::kGpu;  // the WQE would have to be read from the GPU
  EXPECT_FALSE(check(world, Mode::kPush, 4096));
  EXPECT_FALSE(check(world, Mode::kInline, 28));
  EXPECT_FALSE(check(world, Mode::kBounce, 4096));
  EXPECT_TRUE(check(world, Mode::kProxy, 4096));
  world.doorbell = DoorbellKind::kBlueFlame;
  EXPECT_FALSE(check(world, Mode::kPull, 8));
  EXPECT_TRUE(check(world, Mode::kPush, 4096));
  EXPECT_TRUE(check(world, Mode::kBounce, 4096));
  EXPECT_TRUE(check(world, Mode::kInline, 28));
  EXPECT_FALSE(check(world, Mode::kInline, 29));
  world.batch = 2;  // is fetched
  EXPECT_THAT(check(world, Mode::kPush, 4096).error().message, HasSubstr("intel-client"));
}

TEST(WorldConfig, batch_of_what_rings_for_itself_is_not_possible) {
  WorldConfig world;
  world.batch = 2;
  const auto message = [&](Mode mode, std::uint64_t bytes) {
    const auto checked = check(world, mode, bytes);
    return checked ? std::string("accepted") : checked.error().message;
  };
  EXPECT_EQ(message(Mode::kPull, 1 << 20), "accepted");
  EXPECT_EQ(message(Mode::kPush, 4096), "accepted");
  EXPECT_THAT(message(Mode::kPush, 4097), HasSubstr("of up to 4096 B"));
  EXPECT_THAT(message(Mode::kPushFlags, 3841), HasSubstr("of up to 3840 B"));
  EXPECT_THAT(message(Mode::kBounce, 65537), HasSubstr("of up to 65536 B"));
  EXPECT_THAT(message(Mode::kInline, 221), HasSubstr("of up to 220 B"));
  EXPECT_THAT(message(Mode::kProxy, 8), HasSubstr("proxy"));
  world.batch = 1;
  world.staging.slot_bytes = 64;
  EXPECT_THAT(message(Mode::kPushFlags, 8), HasSubstr("hold no line"));
  EXPECT_EQ(message(Mode::kPush, 8), "accepted");
}

// As the library's credit scheduler admits them.
TEST(WorldConfig, endpoints_beyond_the_slots_only_what_stages_is_not_possible) {
  WorldConfig world;
  world.lanes = 32;
  EXPECT_TRUE(check(world, Mode::kPush, 8));
  world.lanes = 33;
  EXPECT_THAT(check(world, Mode::kPush, 8).error().message, HasSubstr("33 endpoints on 32 slots"));
  world.lanes = 65;
  EXPECT_THAT(check(world, Mode::kBounce, 8).error().message, HasSubstr("65 endpoints on 64 slots"));
  for (const Mode mode : {Mode::kPull, Mode::kInline, Mode::kProxy})
    EXPECT_TRUE(check(world, mode, 8)) << name(mode);
}

TEST(WorldConfig, one_root_complex_paths_between_two_are_refused) {
  WorldConfig world;
  world.platform = kIntelClient;
  for (const PathClass path : kPathClasses) {
    world.path = path;
    const bool possible = path != PathClass::kNode && path != PathClass::kSys;
    EXPECT_EQ(check(world).has_value(), possible) << name(path);
  }
}

TEST(WorldConfig, value_impossible_is_refused_by_name) {
  const auto message = [](auto change) {
    WorldConfig world;
    change(world);
    const auto checked = check(world);
    return checked ? std::string("accepted") : checked.error().message;
  };
  EXPECT_THAT(message([](WorldConfig& w) { w.wire.bits_per_s = 0; }), HasSubstr("wire"));
  EXPECT_THAT(message([](WorldConfig& w) { w.wire.mtu_bytes = 1500; }), HasSubstr("MTU 1500"));
  EXPECT_THAT(message([](WorldConfig& w) { w.staging.slot_bytes = 100; }), HasSubstr("slots of 100"));
  EXPECT_THAT(message([](WorldConfig& w) { w.staging.pool_bytes = 64; }), HasSubstr("holds no slot"));
  EXPECT_THAT(message([](WorldConfig& w) { w.staging.pool_bytes = 131073; }), HasSubstr("pool of 131073 B"));
  EXPECT_THAT(message([](WorldConfig& w) { w.lanes = 0; }), HasSubstr("endpoint"));
  EXPECT_THAT(message([](WorldConfig& w) { w.batch = 0; }), HasSubstr("batch"));
  EXPECT_THAT(message([](WorldConfig& w) { w.window = 0; }), HasSubstr("window"));
  EXPECT_THAT(message([](WorldConfig& w) { w.bounce.chunk_bytes = 3; }), HasSubstr("bounce"));
  EXPECT_THAT(message([](WorldConfig& w) { w.bounce.pool_bytes = 65535; }),
              HasSubstr("bounce chunks of 65536 B"));
  EXPECT_THAT(message([](WorldConfig& w) { w.platform.nic.tags = 0; }), HasSubstr("tags of the NIC"));
  EXPECT_EQ(message([](WorldConfig&) {}), "accepted");
}

TEST(WorldConfig, value_at_an_edge_is_accepted_and_beyond_it_refused) {
  const auto accepts = [](auto change) {
    WorldConfig world;
    change(world);
    return check(world).has_value();
  };
  for (const double bits_per_s : {1e9, 10e12})
    EXPECT_TRUE(accepts([&](WorldConfig& w) { w.wire.bits_per_s = bits_per_s; }));
  for (const double bits_per_s : {0.999e9, 10.001e12})
    EXPECT_FALSE(accepts([&](WorldConfig& w) { w.wire.bits_per_s = bits_per_s; }));
  for (const std::uint32_t mtu : {256u, 512u, 1024u, 2048u, 4096u})
    EXPECT_TRUE(accepts([&](WorldConfig& w) { w.wire.mtu_bytes = mtu; }));
  for (const std::uint32_t mtu : {128u, 8192u})
    EXPECT_FALSE(accepts([&](WorldConfig& w) { w.wire.mtu_bytes = mtu; }));
  EXPECT_TRUE(accepts([&](WorldConfig& w) { w.staging = {64, 64}; }));
  EXPECT_FALSE(accepts([&](WorldConfig& w) { w.staging = {64, 32}; }));
  EXPECT_TRUE(accepts([&](WorldConfig& w) { w.bounce = {65536, 65536}; }));
  EXPECT_TRUE(accepts([&](WorldConfig& w) { w.lanes = w.window = w.batch = 1; }));
}

TEST(WorldConfig, message_of_exactly_a_work_request_is_batched) {
  WorldConfig world;
  world.batch = 2;
  const std::pair<Mode, std::uint64_t> longest[] = {{Mode::kPull, 1 << 30},    {Mode::kPush, 4096},
                                                    {Mode::kPushFlags, 3840},  {Mode::kPushOrdered, 4096},
                                                    {Mode::kBounce, 64 << 10}, {Mode::kInline, 220}};
  for (const auto& [mode, bytes] : longest) EXPECT_TRUE(check(world, mode, bytes)) << name(mode);
  EXPECT_THAT(check(world, Mode::kPushOrdered, 4097).error().message, HasSubstr("of up to 4096 B"));
  world.batch = 1;
  world.lanes = 64;
  EXPECT_TRUE(check(world, Mode::kBounce, 8));
  world.lanes = 33;
  for (const Mode mode : {Mode::kPush, Mode::kPushFlags, Mode::kPushOrdered})
    EXPECT_THAT(check(world, mode, 8).error().message, HasSubstr("use fewer, or a larger pool"));
  world.lanes = 65;
  EXPECT_THAT(check(world, Mode::kBounce, 8).error().message, testing::EndsWith("each keeps one: use fewer"));
}

}  // namespace world_test
}  // namespace gdx::pcie
