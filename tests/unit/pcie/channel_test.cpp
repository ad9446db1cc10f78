#include "driver-shim/pcie/channel.h"

#include <gtest/gtest.h>

namespace gdx::pcie {
namespace channel_test {

constexpr double kBytePerPs = 1e12;  // so that times are byte counts

ChannelConfig config(Credits each = {4, 4096}) {
  return {.from = 0,
          .to = 1,
          .bytes_per_s = kBytePerPs,
          .buffers = {each, each, each},
          .framing = Generation::kGen5};
}

Packet packet(TlpKind kind, std::uint32_t payload_bytes) {
  return {.kind = kind, .payload_bytes = payload_bytes};
}

TEST(Channel, idle_packet_takes_header_and_payload) {
  Channel channel(config());
  channel.enqueue(7, packet(TlpKind::kWrite, 256));
  const auto sent = channel.send_next(1000);
  ASSERT_TRUE(sent);
  EXPECT_EQ(sent->id, 7u);
  EXPECT_EQ(sent->left_at, 1280u);
}

TEST(Channel, busy_second_packet_waits) {
  Channel channel(config());
  channel.enqueue(1, packet(TlpKind::kWrite, 256));
  channel.enqueue(2, packet(TlpKind::kWrite, 256));
  ASSERT_TRUE(channel.send_next(0));
  EXPECT_FALSE(channel.send_next(279));
  EXPECT_EQ(channel.send_next(280)->left_at, 560u);
}

TEST(Channel, header_credits_spent_packet_waits_for_their_return) {
  Channel channel(config({1, 4096}));
  channel.enqueue(1, packet(TlpKind::kWrite, 16));
  channel.enqueue(2, packet(TlpKind::kWrite, 16));
  ASSERT_TRUE(channel.send_next(0));
  EXPECT_FALSE(channel.send_next(1000));
  channel.return_credits(packet(TlpKind::kWrite, 16));
  EXPECT_EQ(channel.send_next(1000)->id, 2u);
}

TEST(Channel, data_credits_are_counted_in_units_of_16_bytes) {
  Channel channel(config({4, 32}));
  channel.enqueue(1, packet(TlpKind::kWrite, 17));
  channel.enqueue(2, packet(TlpKind::kWrite, 1));
  channel.enqueue(3, packet(TlpKind::kWrite, 32));
  ASSERT_TRUE(channel.send_next(0));
  EXPECT_FALSE(channel.send_next(1000));
  channel.return_credits(packet(TlpKind::kWrite, 17));
  EXPECT_TRUE(channel.send_next(2000));
  channel.return_credits(packet(TlpKind::kWrite, 1));
  EXPECT_TRUE(channel.send_next(3000)) << "not all came back";
}

TEST(Channel, reads_blocked_a_later_write_passes) {
  Channel channel(config({1, 4096}));
  channel.enqueue(1, packet(TlpKind::kReadRequest, 0));
  channel.enqueue(2, packet(TlpKind::kReadRequest, 0));
  channel.enqueue(3, packet(TlpKind::kWrite, 64));
  EXPECT_EQ(channel.send_next(0)->id, 1u);
  EXPECT_EQ(channel.send_next(1000)->id, 3u);
}

TEST(Channel, write_blocked_nothing_behind_it_passes) {
  Channel channel(config({1, 4096}));
  channel.enqueue(1, packet(TlpKind::kWrite, 64));
  channel.enqueue(2, packet(TlpKind::kWrite, 64));
  channel.enqueue(3, packet(TlpKind::kReadRequest, 0));
  channel.enqueue(4, packet(TlpKind::kCompletion, 64));
  EXPECT_EQ(channel.send_next(0)->id, 1u);
  EXPECT_FALSE(channel.send_next(1000));
}

// A lone packet of credit in one class leaves the others' as they are.
TEST(Channel, each_kind_has_headers_and_data_of_its_own) {
  for (const TlpKind kind : {TlpKind::kWrite, TlpKind::kReadRequest, TlpKind::kCompletion}) {
    for (const Credits few : {Credits{1, 4096}, Credits{4, 32}}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(kind) << ' ' << few.headers);
      ChannelConfig config_of_few = config();
      config_of_few.buffers[static_cast<std::size_t>(kind)] = few;
      Channel channel(config_of_few);
      const std::uint32_t bytes = few.headers == 1 ? 16 : 17;
      for (const PacketId id : {1u, 2u, 3u}) channel.enqueue(id, packet(kind, bytes));
      EXPECT_EQ(channel.send_next(0)->id, 1u);
      EXPECT_FALSE(channel.send_next(1000));
      channel.return_credits(packet(kind, bytes));
      EXPECT_EQ(channel.send_next(1000)->id, 2u);
      EXPECT_FALSE(channel.send_next(2000));
      for (const TlpKind other : {TlpKind::kCompletion, TlpKind::kReadRequest}) {
        if (other == kind || kind == TlpKind::kWrite) continue;
        channel.enqueue(9, packet(other, bytes));
        EXPECT_EQ(channel.send_next(2000)->id, 9u) << "behind reads or completions that are blocked";
      }
    }
  }
}

TEST(Channel, packets_that_may_go_leave_in_the_order_in_which_they_came) {
  Channel channel(config());
  const TlpKind kinds[] = {TlpKind::kCompletion, TlpKind::kReadRequest, TlpKind::kReadRequest,
                           TlpKind::kWrite,      TlpKind::kCompletion,  TlpKind::kWrite};
  for (PacketId id = 0; id < std::size(kinds); ++id) channel.enqueue(id, packet(kinds[id], 16));
  for (PacketId id = 0; id < std::size(kinds); ++id) EXPECT_EQ(channel.send_next(1000 * id)->id, id);
  EXPECT_FALSE(channel.send_next(10'000));
  EXPECT_EQ(channel.bytes_sent(), 4u * 40 + 2 * 36);
}

TEST(Channel, inside_a_processor_only_the_payload_counts) {
  ChannelConfig inside = config();
  inside.framing.reset();
  Channel channel(inside);
  channel.enqueue(1, packet(TlpKind::kWrite, 17));
  EXPECT_EQ(channel.send_next(5)->left_at, 22u);
  EXPECT_EQ(channel.bytes_sent(), 17u);
}

TEST(Channel, owed_link_packets_delay_the_next_packet) {
  Channel channel(config());
  channel.owe_bytes(60);
  channel.owe_bytes(40);
  channel.enqueue(1, packet(TlpKind::kWrite, 256));
  EXPECT_EQ(channel.send_next(0)->left_at, 380u);
  channel.enqueue(2, packet(TlpKind::kWrite, 256));
  EXPECT_EQ(channel.send_next(380)->left_at, 660u) << "owed once";
  EXPECT_EQ(channel.bytes_sent(), 560u) << "of packets of the transaction layer";
}

TEST(Channel, owed_link_packets_leave_while_the_wire_is_idle) {
  Channel channel(config());
  channel.owe_bytes(100);
  channel.enqueue(1, packet(TlpKind::kWrite, 256));
  EXPECT_EQ(channel.send_next(60)->left_at, 60u + 280 + 40);
  channel.enqueue(2, packet(TlpKind::kWrite, 256));
  EXPECT_EQ(channel.send_next(1000)->left_at, 1280u);
}

}  // namespace channel_test
}  // namespace gdx::pcie
