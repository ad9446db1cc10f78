#include "host/bootstrap/world.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>

#include <array>
#include <latch>
#include <optional>

#include "host/bootstrap/rendezvous.h"
#include "tests/unit/host/loopback.h"
#include "tests/unit/host/skipped_time.h"

namespace gdx {
namespace world_test {

using bootstrap::encode_failure;
using bootstrap::encode_frame;
using bootstrap::encode_hello;
using bootstrap::FrameHeader;
using bootstrap::FrameType;
using test::join_in_background;
using test::kLongNs;
using test::kShortNs;
using test::LoopbackRoot;
using test::RawPeer;
using test::run_ranks;
using ::testing::HasSubstr;

TEST(World, single_rank_gathers_its_own_value_without_a_network) {
  auto world = World::join({});
  ASSERT_TRUE(world);
  const auto values = world->allgather_value(42, kLongNs);
  ASSERT_TRUE(values);
  EXPECT_THAT(*values, ::testing::ElementsAre(42));
  EXPECT_TRUE(world->barrier(kLongNs));
  EXPECT_TRUE(world->poll_peers());
}

TEST(World, five_ranks_gather_many_rounds_in_rank_order) {
  constexpr std::uint32_t kSize = 5;
  const LoopbackRoot root;
  run_ranks(kSize, [&](std::uint32_t rank) {
    auto world = World::join(root.options(rank, kSize));
    ASSERT_TRUE(world) << world.error().message;
    for (std::uint32_t round = 0; round < 50; ++round) {
      const auto values = world->allgather_value(rank * 1000 + round, kLongNs);
      ASSERT_TRUE(values) << values.error().message;
      for (std::uint32_t other = 0; other < kSize; ++other) EXPECT_EQ((*values)[other], other * 1000 + round);
      ASSERT_TRUE(world->poll_peers());
    }
    EXPECT_TRUE(world->barrier(kLongNs));
  });
}

// Linux gives a connection to any loopback address the source 127.0.0.1.
TEST(World, address_is_the_own_end_of_the_connection_to_rank_0) {
  const auto alone = World::join({});
  ASSERT_TRUE(alone);
  EXPECT_EQ(alone->address(), "127.0.0.1");
  const LoopbackRoot root;
  run_ranks(3, [&](std::uint32_t rank) {
    auto options = root.options(rank, 3);
    options.root.replace(0, options.root.find(':'), "127.0.0.77");
    auto world = World::join(options);
    ASSERT_TRUE(world) << world.error().message;
    EXPECT_EQ(world->address(), rank == 0 ? "127.0.0.77" : "127.0.0.1");
    EXPECT_TRUE(world->barrier(kLongNs));
  });
}

// Address of an interface beyond loopback; empty without one.
std::string outer_address() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  std::string found;
  for (const ifaddrs* at = list; at != nullptr && found.empty(); at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET) continue;
    std::array<char, INET_ADDRSTRLEN> text{};
    const auto& address = reinterpret_cast<const sockaddr_in&>(*at->ifa_addr);
    if (ntohl(address.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET) continue;
    found = inet_ntop(AF_INET, &address.sin_addr, text.data(), text.size());
  }
  freeifaddrs(list);
  return found;
}

TEST(World, rank_0_names_the_address_that_reaches_it_from_other_machines) {
  const std::string outer = outer_address();
  if (outer.empty()) GTEST_SKIP() << "needs an interface beyond loopback";
  const LoopbackRoot root;
  run_ranks(3, [&](std::uint32_t rank) {
    auto options = root.options(rank, 3);
    const std::string host = rank == 0 ? "0.0.0.0" : rank == 1 ? outer : "127.0.0.1";
    options.root.replace(0, options.root.find(':'), host);
    auto world = World::join(options);
    ASSERT_TRUE(world) << world.error().message;
    EXPECT_TRUE(rank != 0 || world->address() == outer) << world->address();
    EXPECT_TRUE(world->barrier(kLongNs));
  });
}

TEST(World, contributions_of_a_mebibyte_arrive_whole) {
  constexpr std::uint32_t kSize = 3;
  const LoopbackRoot root;
  run_ranks(kSize, [&](std::uint32_t rank) {
    auto world = World::join(root.options(rank, kSize));
    ASSERT_TRUE(world) << world.error().message;
    const std::vector<std::byte> mine(bootstrap::kMaxContributionBytes, static_cast<std::byte>(rank + 1));
    const auto gathered = world->allgather(mine, kLongNs);
    ASSERT_TRUE(gathered) << gathered.error().message;
    ASSERT_EQ(gathered->size(), kSize * mine.size());
    for (std::size_t i = 0; i < gathered->size(); i += 4093) {
      ASSERT_EQ((*gathered)[i], static_cast<std::byte>(i / mine.size() + 1)) << i;
    }
  });
}

TEST(World, contribution_beyond_the_bound_is_refused_and_the_world_stays_usable) {
  auto world = World::join({});
  ASSERT_TRUE(world);
  const std::vector<std::byte> mine(bootstrap::kMaxContributionBytes + 1);
  EXPECT_EQ(world->allgather(mine, kLongNs).error().status, Status::kInvalidLength);
  const auto most = world->allgather(std::span(mine).first(bootstrap::kMaxContributionBytes), kLongNs);
  ASSERT_TRUE(most) << most.error().message;
  EXPECT_EQ(most->size(), bootstrap::kMaxContributionBytes);
  EXPECT_TRUE(world->barrier(kLongNs));
}

TEST(World, impossible_options_join_is_refused) {
  const auto refused = [](WorldOptions options) {
    const auto world = World::join(options);
    return !world && world.error().status == Status::kInvalidArgument ? world.error().message : "not refused";
  };
  EXPECT_THAT(refused({.rank = 0, .size = 0}), HasSubstr("1 to 16384"));
  EXPECT_THAT(refused({.rank = 0, .size = 16385, .root = "127.0.0.1:1"}), HasSubstr("1 to 16384"));
  EXPECT_EQ(refused({.rank = 2, .size = 2, .root = "127.0.0.1:1"}),
            "rank 2 is impossible: with 2 ranks it goes from 0 to 1");
  EXPECT_THAT(refused({.rank = 1, .size = 1}), HasSubstr("rank 1"));
  EXPECT_THAT(refused({.rank = 0, .size = 2, .root = "nonsense"}), HasSubstr("HOST:PORT"));
}

TEST(World, port_in_use_rank_0_is_busy_and_names_it) {
  const LoopbackRoot taken;
  taken.listen();
  const auto world = World::join(taken.options(0, 2));
  ASSERT_FALSE(world);
  EXPECT_EQ(world.error().status, Status::kBusy);
  EXPECT_THAT(world.error().message, HasSubstr(taken.root));
  EXPECT_THAT(world.error().message, HasSubstr("`ss -tanp 'sport = " + taken.root.substr(10) + "'`"));
}

TEST(World, peer_never_comes_all_time_out_and_name_it) {
  test::SkippedTime time;
  const LoopbackRoot root;
  auto joined = join_in_background(root.options(0, 4));
  const RawPeer rank_1 = RawPeer::connect(root);
  rank_1.send(encode_hello(1, 4));
  rank_1.wait_until_sent();
  time.skip(kLongNs);
  const auto world = joined.get();
  ASSERT_FALSE(world);
  EXPECT_EQ(world.error().status, Status::kTimeout);
  EXPECT_THAT(world.error().message, HasSubstr("ranks 2 and 3 of 4"));
  const auto told = encode_failure({Status::kTimeout, 0, world.error().message});
  EXPECT_EQ(rank_1.receive(told.size()), told);
}

TEST(World, rank_0_never_comes_others_time_out_and_name_the_address) {
  const LoopbackRoot free_port;
  const auto world = World::join(free_port.options(1, 2, kShortNs));
  ASSERT_FALSE(world);
  EXPECT_EQ(world.error().status, Status::kTimeout);
  EXPECT_THAT(world.error().message, HasSubstr("rank 0 did not answer at " + free_port.root));
}

TEST(World, rank_comes_before_rank_0_listens_join_retries_until_it_does) {
  const LoopbackRoot root;
  std::latch first_try(1);
  run_ranks(2, [&](std::uint32_t rank) {
    if (rank == 0) first_try.wait();
    if (rank == 1) first_try.count_down();
    const auto world = World::join(root.options(rank, 2));
    EXPECT_TRUE(world) << world.error().message;
  });
}

TEST(World, peer_leaves_before_a_barrier_everybody_learns_which) {
  constexpr std::uint32_t kSize = 3;
  const LoopbackRoot root;
  run_ranks(kSize, [&](std::uint32_t rank) {
    auto world = World::join(root.options(rank, kSize));
    ASSERT_TRUE(world) << world.error().message;
    if (rank == 2) return;
    const auto met = world->barrier(kLongNs);
    ASSERT_FALSE(met);
    EXPECT_EQ(met.error().status, Status::kPeerGone);
    EXPECT_THAT(met.error().message, HasSubstr("rank 2 closed its connection"));
    EXPECT_EQ(world->barrier(kLongNs).error().message, met.error().message) << "a broken world stays broken";
    EXPECT_EQ(world->poll_peers().error().status, Status::kPeerGone);
  });
}

TEST(World, rank_0_listens_until_the_first_collective_alone) {
  const LoopbackRoot root;
  run_ranks(2, [&](std::uint32_t rank) {
    auto world = World::join(root.options(rank, 2));
    ASSERT_TRUE(world) << world.error().message;
    ASSERT_TRUE(world->barrier(kLongNs));
    if (rank == 0) root.listen();
    ASSERT_TRUE(world->barrier(kLongNs));
  });
}

TEST(World, peer_leaves_between_collectives_polling_finds_out_which) {
  constexpr std::uint32_t kSize = 3;
  const LoopbackRoot root;
  run_ranks(kSize, [&](std::uint32_t rank) {
    auto world = World::join(root.options(rank, kSize));
    ASSERT_TRUE(world) << world.error().message;
    ASSERT_TRUE(world->barrier(kLongNs));
    if (rank == 1) return;
    // Ends because rank 1's socket closes; bounded by the test's own timeout.
    Result<void> all_here = world->poll_peers();
    while (all_here) {
      std::this_thread::yield();
      all_here = world->poll_peers();
    }
    EXPECT_EQ(all_here.error().status, Status::kPeerGone);
    EXPECT_THAT(all_here.error().message, HasSubstr("rank 1 closed its connection"));
  });
}

TEST(World, rank_0_leaves_others_learn_it) {
  const LoopbackRoot root;
  run_ranks(2, [&](std::uint32_t rank) {
    auto world = World::join(root.options(rank, 2));
    ASSERT_TRUE(world) << world.error().message;
    if (rank == 0) return;
    const auto met = world->barrier(kLongNs);
    ASSERT_FALSE(met);
    EXPECT_EQ(met.error().status, Status::kPeerGone);
    EXPECT_THAT(met.error().message, HasSubstr("rank 0"));
  });
}

// Rank 1 waits already when rank 0's short wait begins, however late that is.
TEST(World, peer_never_comes_to_a_collective_rank_0_times_out_and_names_it) {
  const LoopbackRoot root;
  auto joined = join_in_background(root.options(0, 3));
  const RawPeer rank_1 = RawPeer::connect(root);
  rank_1.send(encode_hello(1, 3));
  const RawPeer rank_2 = RawPeer::connect(root);
  rank_2.send(encode_hello(2, 3));
  EXPECT_EQ(rank_1.receive(sizeof(FrameHeader)), encode_frame(FrameType::kWelcome, 0, 0));
  rank_1.send(encode_frame(FrameType::kContribution, 1, 1));
  rank_1.wait_until_sent();
  auto world = joined.get();
  ASSERT_TRUE(world) << world.error().message;
  const auto met = world->barrier(kShortNs);
  ASSERT_FALSE(met);
  EXPECT_EQ(met.error().status, Status::kTimeout);
  EXPECT_EQ(
      met.error().message,
      "rank 2 at " + rank_2.own_text() +
          " did not come to collective 1 within 0.100 s, and its connection stands: it is slow, or stopped");
  const auto told = encode_failure({Status::kTimeout, 0, met.error().message});
  EXPECT_EQ(rank_1.receive(told.size()), told);
}

// Rank 2 of three joins, and never comes to the barrier.
TEST(World, rank_that_waited_in_vain_takes_no_blame_for_the_one_that_is_stuck) {
  constexpr std::uint32_t kSize = 3;
  const LoopbackRoot root;
  std::latch judged(2);
  run_ranks(kSize, [&](std::uint32_t rank) {
    auto world = World::join(root.options(rank, kSize));
    ASSERT_TRUE(world) << world.error().message;
    if (rank == 2) return judged.wait();
    const auto met = world->barrier(rank == 0 ? kLongNs : kShortNs);
    judged.count_down();
    ASSERT_FALSE(met);
    EXPECT_EQ(met.error().status, Status::kTimeout);
    const std::string& message = met.error().message;
    const char* const text = rank == 0
                                 ? "did not come to collective 1 before rank 1 gave up: collective 1 did"
                                 : "rank 0, or a rank that it waits for, has not come";
    EXPECT_THAT(message, HasSubstr(text));
    EXPECT_EQ(message.rfind("rank 2 at 127.0.0.1:", 0) == 0, rank == 0) << message;
  });
}

TEST(World, rank_0_that_comes_too_late_learns_who_gave_up) {
  const LoopbackRoot root;
  run_ranks(2, [&](std::uint32_t rank) {
    auto world = World::join(root.options(rank, 2));
    ASSERT_TRUE(world) << world.error().message;
    Result<void> here;
    if (rank == 1) here = world->barrier(kShortNs);
    while (here) here = world->poll_peers();
    EXPECT_EQ(here.error().status, Status::kTimeout);
    EXPECT_THAT(here.error().message, HasSubstr(rank == 0 ? "rank 1 gave up: collective 1" : "collective 1"));
  });
}

TEST(World, ranks_contribute_different_sizes_all_are_told) {
  const LoopbackRoot root;
  run_ranks(2, [&](std::uint32_t rank) {
    auto world = World::join(root.options(rank, 2));
    ASSERT_TRUE(world) << world.error().message;
    const std::vector<std::byte> mine(rank == 0 ? 8 : 16);
    const auto gathered = world->allgather(mine, kLongNs);
    ASSERT_FALSE(gathered);
    EXPECT_EQ(gathered.error().status, Status::kInvalidArgument);
    EXPECT_THAT(gathered.error().message, HasSubstr("rank 1"));
    EXPECT_THAT(gathered.error().message, HasSubstr("contributed 16 bytes where rank 0 contributed 8"));
  });
}

TEST(RankList, few_are_named_and_many_are_counted) {
  using bootstrap::rank_list;
  EXPECT_EQ(rank_list({2}), "rank 2");
  EXPECT_EQ(rank_list({1, 2}), "ranks 1 and 2");
  EXPECT_EQ(rank_list({1, 2, 5}), "ranks 1, 2 and 5");
  EXPECT_EQ(rank_list({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}), "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 2 more");
}

}  // namespace world_test
}  // namespace gdx
