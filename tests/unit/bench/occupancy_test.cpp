// Occupancy of pools and send queues that stand still while they are sampled.
#include "host/programs/bench/occupancy.h"

#include <gtest/gtest.h>

#include <vector>

#include "proto/byte_order.h"

namespace gdx::bench {
namespace occupancy_test {

// The thread may begin to run when the sampling is over.
TEST(Occupancy, of_a_run_that_ends_at_once_has_a_point) {
  for (int i = 0; i < 200; ++i) EXPECT_FALSE(OccupancySampler({}, {}).stop().empty());
}

TEST(Occupancy, is_the_sum_of_all_pools_and_endpoints) {
  auto hca = Hca::open();
  ASSERT_TRUE(hca) << hca.error().message;
  auto nic = StagingPool::create(*hca);
  auto host = StagingPool::create(*hca, StagingOptions::in_host_memory());
  ASSERT_TRUE(nic && host);
  EndpointOptions options;
  options.slot_count = options.bounce_slot_count = 4;
  const auto first = Endpoint::create(*hca, {&*nic, &*host}, options);
  options.slot_count = 0;
  const auto second = Endpoint::create(*hca, {nullptr, &*host}, options);
  ASSERT_TRUE(first && second);
  const std::uint32_t leased[] = {nic->leased_slots(), host->leased_slots()};
  EXPECT_TRUE(0 < leased[0] && leased[0] < leased[1]);

  // Posted and completed blocks are cumulative, and the record has 16 bits of them.
  QueueState states[2] = {};
  states[0].completed = 0x2fffe;
  states[1].completed = 5;
  Be32 records[2] = {};
  records[0].raw = byte_swap(std::uint32_t{0x0003});
  records[1].raw = byte_swap(std::uint32_t{25});
  std::vector<EndpointHandle> handles(2);
  for (std::size_t i = 0; i < handles.size(); ++i) {
    handles[i].state = &states[i];
    handles[i].send_record = &records[i];
  }
  std::uint64_t before_ns = 0;
  const auto points = OccupancySampler({&*nic, &*host}, handles).stop();
  ASSERT_FALSE(points.empty());
  for (const Occupancy& point : points) {
    EXPECT_EQ(point.slots, leased[0] + leased[1]);
    EXPECT_EQ(point.in_flight, 5u + 20u);
    EXPECT_GE(point.at_ns, before_ns);
    before_ns = point.at_ns;
  }
}

TEST(Occupancy, that_is_thinned_out_keeps_its_first_point) {
  for (const std::uint32_t count : {127u, 128u}) {
    std::vector<Occupancy> points(count);
    for (std::uint32_t i = 0; i < count; ++i) points[i] = {10 * i, i, i + 1};
    keep_every_second(points);
    ASSERT_EQ(points.size(), 64u);
    for (std::uint32_t i = 0; i < points.size(); ++i) {
      EXPECT_EQ(points[i].at_ns, 20 * i);
      EXPECT_EQ(points[i].slots, 2 * i);
      EXPECT_EQ(points[i].in_flight, 2 * i + 1);
    }
  }
}

}  // namespace occupancy_test
}  // namespace gdx::bench
