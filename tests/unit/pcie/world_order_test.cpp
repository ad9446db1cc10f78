// Turns of endpoints that share a resource of the modelled world, and the transfers and times of each mode.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <string>
#include <vector>

#include "driver-shim/pcie/world/measure.h"

namespace gdx::pcie {
namespace world_order_test {

// Returns the bytes that have been delivered at each completion of one put of each endpoint.
std::vector<std::uint64_t> delivered_at_completions(const WorldConfig& config, Mode mode, std::uint64_t bytes,
                                                    std::uint32_t lanes) {
  World world(config, mode);
  std::uint64_t delivered = 0;
  std::vector<std::uint64_t> at;
  world.begin(bytes, lanes, lanes,
              {.delivered = [&](TimePs, std::uint64_t more) { delivered += more; },
               .completed = [&](TimePs) { at.push_back(delivered); }});
  while (world.step()) {
  }
  return at;
}

// Three puts of four slots each take turns on one slot, so none completes before the others' third slot.
TEST(WorldTurns, endpoints_get_slots_in_the_order_in_which_they_began_to_wait) {
  WorldConfig config;
  config.staging.pool_bytes = config.staging.slot_bytes;
  config.bounce = {4096, 4096};
  for (const Mode mode : {Mode::kPush, Mode::kPushFlags, Mode::kPushOrdered, Mode::kBounce, Mode::kProxy}) {
    const std::uint64_t slot = slot_payload_bytes(config, mode);
    EXPECT_EQ(delivered_at_completions(config, mode, 4 * slot, 3),
              (std::vector<std::uint64_t>{10 * slot, 11 * slot, 12 * slot}))
        << name(mode);
  }
}

// A packet takes 33 us, and the way back less. The second put comes in time to go behind the first's second
// packet.
TEST(WorldTurns, puts_share_the_wire_packet_by_packet) {
  WorldConfig config;
  config.wire.bits_per_s = 1e9;
  constexpr std::uint64_t kPacket = 4096;
  config.fetch_ahead_bytes = kPacket;
  for (const Mode mode : {Mode::kPull, Mode::kBounce, Mode::kProxy}) {
    EXPECT_EQ(delivered_at_completions(config, mode, 4 * kPacket, 2),
              (std::vector<std::uint64_t>{6 * kPacket, 8 * kPacket}))
        << name(mode);
  }
  // Reads 256 KiB ahead: 64 packets of the first put, and then one of each in turn.
  config.fetch_ahead_bytes = WorldConfig().fetch_ahead_bytes;
  EXPECT_EQ(delivered_at_completions(config, Mode::kPull, 128 * kPacket, 2),
            (std::vector<std::uint64_t>{191 * kPacket, 256 * kPacket}));
}

std::string text_of(const std::array<Traffic, kPurposes>& traffic) {
  std::string text;
  for (std::size_t i = 0; i < kPurposes; ++i) {
    if (traffic[i].transfers == 0) continue;
    text += fmt::format("{}{} {}/{}/{}", text.empty() ? "" : ", ", kPurposeNames[i], traffic[i].transfers,
                        traffic[i].packets, traffic[i].bytes);
  }
  return text;
}

// Transfers, packets and bytes of a put by purpose, and its times in ns.
std::string figures_of(const WorldConfig& config, Mode mode, std::uint64_t bytes) {
  EXPECT_TRUE(check(config, mode, bytes)) << name(mode);
  const Latency latency = measure_latency(config, mode, bytes);
  return fmt::format("{}; {}; {:.0f} {:.0f}", text_of(latency.counters.reads),
                     text_of(latency.counters.writes), latency.delivered_ns, latency.completed_ns);
}

struct Row {
  Mode mode;
  std::uint64_t bytes;
  std::string figures;
};

WorldConfig far_queues() {
  WorldConfig config;
  config.path = PathClass::kPxb;
  config.doorbell = DoorbellKind::kPlain;
  return config;
}

// Of the generic platform; a slot of a push holds 4096 B, a WQE of an inline put 220 B.
TEST(WorldFigures, of_queues_in_host_memory_and_plain_doorbells) {
  const Row rows[] = {
      {Mode::kPull, 5000,
       "payload 2/10/5000, WQE 1/1/64, record 1/1/4, CQE 1/1/64; WQE 1/1/64, record 1/1/4, doorbell 1/1/8, "
       "CQE 1/1/64; 7277 9345"},
      {Mode::kPush, 5000,
       "WQE 1/1/128, record 1/1/4, CQE 1/1/64; payload 1/20/5000, WQE 1/1/128, record 1/1/4, doorbell 1/1/8, "
       "CQE 1/1/64; 6189 8256"},
      {Mode::kPushFlags, 5000,
       "WQE 1/1/128, record 1/1/4, CQE 1/1/64; payload 1/21/5376, WQE 1/1/128, record 1/1/4, doorbell 1/1/8, "
       "CQE 1/1/64; 6189 8256"},
      {Mode::kPushOrdered, 5000,
       "WQE 1/1/128, record 1/1/4, CQE 1/1/64; payload 1/20/5000, WQE 1/1/128, record 1/1/4, doorbell 1/1/8, "
       "CQE 1/1/64; 6189 8256"},
      {Mode::kInline, 300,
       "WQE 1/1/384, record 1/1/4, CQE 1/1/64; WQE 1/2/384, record 1/1/4, doorbell 1/1/8, CQE 1/1/64; 6036 "
       "8166"},
      {Mode::kBounce, 5000,
       "payload 2/10/5000, WQE 1/1/64, record 1/1/4, CQE 1/1/64; payload 1/20/5000, WQE 1/1/64, record "
       "1/1/4, doorbell 1/1/8, CQE 1/1/64; 7035 9102"},
      {Mode::kProxy, 5000,
       "payload 2/10/5000, WQE 1/1/64, record 1/1/4; payload 1/20/5000, doorbell 1/1/8, CQE 1/1/64, proxy "
       "2/2/16; 7631 9104"},
  };
  for (const Row& row : rows)
    EXPECT_EQ(figures_of(far_queues(), row.mode, row.bytes), row.figures) << name(row.mode);
}

TEST(WorldFigures, of_queues_in_gpu_memory_and_blueflame) {
  WorldConfig config;
  config.path = PathClass::kSys;
  config.queues = QueuePlacement::kGpu;
  const Row rows[] = {
      {Mode::kPull, 5000, "payload 2/10/5000; doorbell 1/1/64, CQE 1/1/64; 4902 5743"},
      {Mode::kPush, 5000, "; payload 1/20/5000, doorbell 2/2/128, CQE 1/1/64; 4809 5650"},
      {Mode::kPushFlags, 5000, "; payload 1/21/5376, doorbell 2/2/128, CQE 1/1/64; 2889 3730"},
      {Mode::kPushOrdered, 5000, "; payload 1/20/5000, doorbell 2/2/128, CQE 1/1/64; 2319 3160"},
      {Mode::kInline, 300, "WQE 1/1/384, record 1/1/4; doorbell 1/1/8, CQE 1/1/64; 4938 5876"},
      {Mode::kBounce, 5000, "payload 2/10/5000; payload 1/20/5000, doorbell 1/1/64, CQE 1/1/64; 5324 6165"},
      {Mode::kProxy, 5000,
       "payload 2/10/5000; payload 1/20/5000, doorbell 1/1/64, CQE 1/1/64, proxy 2/2/16; 5402 6321"},
  };
  for (const Row& row : rows)
    EXPECT_EQ(figures_of(config, row.mode, row.bytes), row.figures) << name(row.mode);
}

}  // namespace world_order_test
}  // namespace gdx::pcie
