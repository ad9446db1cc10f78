#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "host/programs/daemon/group.h"
#include "host/programs/daemon/id_owner.h"

namespace gdx::daemon {
namespace daemon_limits_test {

constexpr std::uint64_t kSecondNs = 1'000'000'000;

// A second's worth goes at once, then each waits for its turn. Idle time gives back no more than that.
TEST(DaemonRate, a_second_of_requests_goes_at_once_and_the_rest_waits) {
  Rate rate(1000, 20);
  std::uint64_t now_ns = 5 * kSecondNs;
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(rate.take(now_ns), 0u) << i;
  for (std::uint64_t i = 1; i <= 10; ++i) EXPECT_EQ(rate.take(now_ns), i * kSecondNs / 1000);
  now_ns += 10 * kSecondNs / 1000;
  EXPECT_EQ(rate.take(now_ns), kSecondNs / 1000);
  now_ns += 100 * kSecondNs;
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(rate.take(now_ns), 0u) << i;
  EXPECT_EQ(rate.take(now_ns), kSecondNs / 1000);
}

// Turns of connections that have gone are not waited for by all others.
TEST(DaemonRate, nobody_waits_for_longer_than_all_who_may_wait_at_once) {
  Rate rate(1000, 20);
  const std::uint64_t now_ns = 5 * kSecondNs;
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(rate.take(now_ns), 0u) << i;
  for (int i = 0; i < 100; ++i) ASSERT_LE(rate.take(now_ns), 20 * kSecondNs / 1000) << i;
  EXPECT_EQ(rate.take(now_ns), 20 * kSecondNs / 1000);
  EXPECT_EQ(rate.take(now_ns + 10 * kSecondNs / 1000), 11 * kSecondNs / 1000);
}

TEST(DaemonOwner, is_who_has_the_range_of_an_id) {
  const std::string folder = testing::TempDir() + "gdx-ids-" + std::to_string(getpid());
  std::filesystem::create_directory(folder);
  const IdFiles files{folder + "/subuid", folder + "/passwd"};
  std::ofstream(files.ranges) << "# ranges\nalice:1000:10\nalice:2000:5\n7:3000:1\nshort:6000\n";
  std::ofstream(files.users) << "root:x:0:0::/:/bin/sh\nalice:x:501:501::/:/bin/sh\n";
  const uid_t cases[][2] = {{999, 999}, {1000, 501},  {1009, 501}, {1010, 1010}, {2004, 501},
                            {3000, 7},  {3001, 3001}, {501, 501},  {6000, 6000}, {0, 0}};
  for (const auto& [user, owner] : cases) EXPECT_EQ(owner_of(user, files), owner) << user;
  std::ofstream(files.ranges) << "remote:4000:9\nremote:5000:2\n";
  EXPECT_EQ(owner_of(5001, files), 4000u) << "the first of its ranges";
  std::filesystem::remove_all(folder);
  EXPECT_EQ(owner_of(1000, files), 1000u);
}

// The rest of a group's quota may be another's of the same owner.
TEST(DaemonQuota, groups_of_one_owner_share_its_limits) {
  Limits limits;
  limits.group.max_endpoints = 3;
  limits.group.max_nic_pools = 1;
  const auto owner = std::make_shared<Owner>(1, limits.group);
  Group first(2, limits, owner);
  Group second(3, limits, owner);
  Group stranger(4, limits);
  auto two = first.endpoints.take(2);
  EXPECT_TRUE(two);
  EXPECT_EQ(second.endpoints.take(2).error().status, Status::kNoMemory);
  {
    const auto last = second.endpoints.take(1);
    EXPECT_TRUE(last);
    EXPECT_FALSE(first.endpoints.take(1));
    EXPECT_EQ(first.endpoints.used(), 2u);
    EXPECT_EQ(second.endpoints.used(), 1u);
  }
  EXPECT_TRUE(stranger.endpoints.take(3));
  *two = {};
  EXPECT_TRUE(second.endpoints.take(3));
  EXPECT_EQ(owner->endpoints.used(), 0u);
  const auto part = owner->nic_pools("a").take(1);
  EXPECT_FALSE(owner->nic_pools("a").take(1));
  EXPECT_TRUE(owner->nic_pools("b").take(1));
}

}  // namespace daemon_limits_test
}  // namespace gdx::daemon
