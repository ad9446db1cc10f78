// Teams of some ranks: who makes them, whose memory they have, and lists that are wrong.
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "host/bootstrap/group_place.h"
#include "tests/unit/host/teams.h"

namespace gdx {
namespace team_test {

using ::testing::HasSubstr;

using Ranks = std::vector<std::uint32_t>;

bool is_in(const Ranks& ranks, std::uint32_t rank) { return std::ranges::find(ranks, rank) != ranks.end(); }

TEST_F(Teams, subteam_is_made_and_used_by_its_members_alone) {
  at_all_ranks([&](World& world) {
    Team team = make(world, {.lanes = 2});
    const Ranks ranks{3, 1, 2};
    if (is_in(ranks, world.rank())) {
      const std::uint64_t free_bytes = team.bytes_free();
      Team part = must(team.subteam(ranks));
      EXPECT_EQ(ranks[part.rank()], world.rank());
      EXPECT_EQ(part.size(), 3u);
      const TeamHandle handle = part.handle();
      EXPECT_GE(handle.area, part.heap().data());
      EXPECT_EQ(handle.area_bytes % 128, 0u);
      EXPECT_LE(handle.area + 2 * std::size_t{handle.area_bytes}, part.heap().data() + kHeapBytes);
      EXPECT_EQ(refusal(part.barrier()), "done");
      auto* const piece = must(part.allocate<std::uint64_t>(100));
      EXPECT_EQ(refusal(part.free(handle.area)).substr(0, 16), "invalid argument");
      EXPECT_EQ(refusal(part.free(piece)), "done");
      Team pair = must(part.split(part.rank() == 2 ? 1 : 0, 0));
      EXPECT_EQ(pair.size(), part.rank() == 2 ? 1u : 2u);
      EXPECT_EQ(refusal(pair.close()), "done");
      EXPECT_EQ(refusal(part.close()), "done");
      EXPECT_EQ(team.bytes_free(), free_bytes);
    }
    EXPECT_TRUE(team.barrier());
  });
}

// Every rank checks its own pieces, and all together that the ranks of a team have them at one place.
TEST_F(Teams, teams_that_overlap_have_places_of_their_own_that_are_equal_at_their_ranks) {
  const std::vector<Ranks> lists{{2, 3}, {0, 1}, {1, 2}, {0, 1, 2, 3}, {3, 0, 1}};
  std::mutex mutex;
  std::map<std::size_t, std::set<std::uint64_t>> places;  // by list
  at_all_ranks([&](World& world) {
    Team team = make(world);
    std::vector<Team> parts;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;
    const auto take = [&](Team& of, std::size_t list, std::uint64_t bytes) {
      const auto at = static_cast<std::uint64_t>(static_cast<std::byte*>(must(of.allocate_bytes(bytes))) -
                                                 team.heap().data());
      taken.emplace_back(at, at + bytes);
      const std::lock_guard lock(mutex);
      places[list].insert(at);
    };
    for (std::size_t i = 0; i < lists.size(); ++i) {
      if (!is_in(lists[i], world.rank())) continue;
      parts.push_back(must(team.subteam(lists[i])));
      const auto* const area = parts.back().handle().area;
      taken.emplace_back(area - team.heap().data(),
                         area - team.heap().data() + parts.back().handle().area_bytes);
      take(parts.back(), i, 256 * (i + 1));
    }
    take(team, lists.size(), 1024);
    std::ranges::sort(taken);
    for (std::size_t i = 1; i < taken.size(); ++i) EXPECT_LE(taken[i - 1].second, taken[i].first);
    EXPECT_TRUE(team.barrier());
    while (!parts.empty()) {
      EXPECT_EQ(refusal(parts.front().close()), "done");
      parts.erase(parts.begin());
    }
  });
  EXPECT_EQ(places.size(), lists.size() + 1);
  for (const auto& [list, at] : places) EXPECT_EQ(at.size(), 1u) << list;
}

// Two threads of each rank make their teams in opposite orders of the ranks' places, again and again.
TEST_F(Teams, threads_of_a_rank_make_teams_at_once) {
  const std::array<std::vector<Ranks>, 2> lists{std::vector<Ranks>{{0, 1, 2}, {1, 3}, {2, 3, 0}},
                                                std::vector<Ranks>{{3, 2, 1}, {0, 2}, {0, 1, 3}}};
  at_all_ranks([&](World& world) {
    Team team = make(world);
    const auto run = [&](std::uint32_t thread) {
      for (std::uint64_t round = 0; round < 5; ++round) {
        for (const Ranks& ranks : lists[thread]) {
          if (!is_in(ranks, world.rank())) continue;
          auto part = team.subteam(ranks, thread);
          ASSERT_TRUE(part) << part.error().message;
          EXPECT_EQ(refusal(part->barrier()), "done");
          EXPECT_EQ(refusal(part->close()), "done");
        }
      }
    };
    std::thread other(run, 1);
    run(0);
    other.join();
    EXPECT_TRUE(team.barrier());
  });
}

TEST_F(Teams, subteam_whose_ranks_have_different_lists_is_refused_at_those_that_came) {
  std::mutex mutex;
  std::vector<std::string> told(kRanks);
  at_all_ranks([&](World& world) {
    Team team = make(world);
    const Ranks mine = world.rank() == 0 ? Ranks{0, 1, 2} : Ranks{0, 1};
    const auto part = world.rank() < 2 ? refusal(team.subteam(mine, 7)) : std::string();
    if (world.rank() < 2) {
      EXPECT_EQ(refusal(team.subteam(Ranks{0, 1}, 7)), "done") << "the tag serves again";
    }
    const std::lock_guard lock(mutex);
    told[world.rank()] = part;
  });
  EXPECT_EQ(
      told[0],
      "invalid argument: rank 0 makes the team of ranks 0, 1 and 2 (tag 7), rank 1 with the same tag that "
      "of ranks 0 and 1: give all its ranks the same list");
  EXPECT_EQ(told[1], told[0]);
}

TEST_F(Teams, list_that_is_wrong_alone_is_refused_where_it_is_made) {
  at_all_ranks([&](World& world) {
    Team team = make(world);
    if (world.rank() != 2) return;
    const auto told = [&](const Ranks& ranks) { return refusal(team.subteam(ranks)); };
    EXPECT_EQ(told({2, 4}), "invalid argument: no subteam: rank 4: the team has 4 ranks");
    EXPECT_EQ(told({2, 1, 2}), "invalid argument: no subteam: rank 2 is there twice");
    for (const Ranks& ranks : {Ranks{}, Ranks{0, 1}}) {
      EXPECT_EQ(told(ranks),
                "invalid argument: no subteam: rank 2, which calls, is not in the list: let its "
                "members alone call");
    }
    Team alone = must(team.subteam(Ranks{2}));
    EXPECT_TRUE(alone.barrier());
  });
}

TEST_F(Teams, subteam_ends_with_its_team) {
  at_all_ranks([&](World& world) {
    Team team = make(world);
    Team part = must(team.subteam(Ranks{3, 2, 1, 0}));
    EXPECT_TRUE(team.close());
    EXPECT_EQ(refusal(team.subteam(Ranks{0})),
              "invalid argument: cannot make a subteam: the team is closed; make another");
    EXPECT_EQ(refusal(part.barrier()),
              "invalid argument: cannot wait for all its ranks: the team is closed; make another");
    EXPECT_TRUE(part.close());
  });
}

// The first rank of a group and another wait in vain; then that one comes again, whose first attempt lies in
// the other's backlog: with its hello, or, where there is a secret, before.
TEST(GroupPlaces, rank_that_does_not_come_is_named_within_the_bound_and_may_come_later) {
  const LoopbackRoot root;
  const std::string local = "unix:gdx-groups-" + std::to_string(getpid());
  for (const bool secret : {true, false}) {
    run_ranks(3, [&](std::uint32_t rank) {
      WorldOptions options = root.options(rank, 3);
      if (!secret) options = {.rank = rank, .size = 3, .root = local, .timeout_ns = kLongNs};
      World world = must(World::join(options));
      const auto place = must(bootstrap::GroupPlace::listen(world));
      place->start(must(world.allgather_value(place->address(), kLongNs)));
      const auto met = [&](const Ranks& ranks, std::uint64_t timeout_ns) {
        const auto made = place->meet({0, 5, 0}, ranks, timeout_ns);
        return made ? "done" : made.error().message;
      };
      if (rank == 0) {
        EXPECT_THAT(
            met({0, 2, 1}, test::kShortNs),
            HasSubstr("ranks 2 and 1 did not come to the team of ranks 0, 2 and 1 (tag 5) within 0.100 s"));
      }
      EXPECT_TRUE(world.barrier(kLongNs));
      if (rank == 1) {
        EXPECT_THAT(met({0, 1}, test::kShortNs), HasSubstr("rank 0, or one that it waits for, did not come"));
      }
      EXPECT_TRUE(world.barrier(kLongNs));
      if (rank != 2) {
        EXPECT_EQ(met({0, 1}, kLongNs), "done") << "secret " << secret;
      }
      EXPECT_TRUE(world.barrier(kLongNs));
    });
  }
}

// Without a secret the address is all that a rank of another job needs.
TEST(GroupPlaces, rank_of_another_team_is_no_member) {
  const std::string local = "unix:gdx-other-team-" + std::to_string(getpid());
  run_ranks(2, [&](std::uint32_t rank) {
    World world = must(World::join({.rank = rank, .size = 2, .root = local, .timeout_ns = kLongNs}));
    const auto place = must(bootstrap::GroupPlace::listen(world));
    auto all = must(world.allgather_value(place->address(), kLongNs));
    if (rank == 1) ++all.front().token;
    place->start(all);
    const auto made = place->meet({0, 5, 0}, {0, 1}, test::kShortNs);
    EXPECT_FALSE(made);
    EXPECT_TRUE(world.barrier(kLongNs));
  });
}

}  // namespace team_test
}  // namespace gdx
