// Connections of a team: made by first use, asked for by the host, and with ranks that die.
#include <optional>

#include "base/clock.h"
#include "tests/e2e/team_of_ranks.h"

namespace gdx {
namespace team_connection_test {

using ::testing::AnyOf;

// Of calls that end by the deadline of a pair, 8/10 of it. What is to end in time has the rest.
constexpr std::uint64_t kDeadlinesNs = 20'000'000'000;

// Reason for which a call since then ended otherwise than by the deadline of a pair; empty: it had the time.
const char* lateness(std::uint64_t begun_ns) {
  return monotonic_ns() - begun_ns < kDeadlinesNs / 10 * 9 ? "" : "too slow";
}

// Records of a split team change with those of the first.
TEST_F(TeamOfRanks, connections_reach_split_teams_made_before_and_after) {
  Team team = made({.direct = DirectChoice::kOff});
  Team before = must(team.split(0, 0));
  ASSERT_TRUE(team.connect(team.rank()));
  Team after = must(team.split(0, 0));
  for (const Team* part : {&before, &after}) {
    EXPECT_EQ(part->connections(), 1u);
    EXPECT_EQ(part->way(team.rank()), PeerWay::kNative);
    EXPECT_EQ(part->handle().peers[team.rank()].endpoint.qpn, team.endpoint(0, team.rank()).qpn);
  }
  EXPECT_TRUE(before.close());
  EXPECT_TRUE(team.barrier());
}

TEST_F(TeamOfRanks, kernels_connect_the_ranks_and_lanes_that_they_use_and_no_other) {
  Team team = made({.lanes = 2, .direct = DirectChoice::kOff});
  const std::uint32_t next = (team.rank() + 1) % team.size();
  const std::uint32_t previous = (team.rank() + team.size() - 1) % team.size();
  const std::set<std::uint32_t> used = {next, previous};
  auto* const signals = must(team.allocate<std::uint64_t>(2));
  EXPECT_EQ(team.connections(), 0u);
  ASSERT_TRUE(team.barrier()) << "no rank connects before all have counted";
  for (const std::uint32_t lane : {1u, 0u}) {
    Status ends[2] = {Status::kPending, Status::kPending};
    launch(team, [&](const TeamHandle& all) {
      const TeamHandle handle = all.on_lane(lane);
      ends[0] = gdx_signal(handle, signals + lane, 1, SignalOp::kAdd, next);
      ends[1] = gdx_wait(handle, signals + lane, Compare::kEqual, 1, previous);
    });
    for (const Status end : ends) EXPECT_EQ(end, Status::kOk) << team.describe_fault();
    ASSERT_TRUE(team.barrier());
    EXPECT_EQ(team.connections(), (lane == 1 ? 1 : 2) * used.size());
    for (std::uint32_t rank = 0; rank < team.size(); ++rank) {
      const bool no_use = used.count(rank) == 0;
      EXPECT_TRUE(!no_use || team.way(rank, lane) == PeerWay::kNone);
      EXPECT_TRUE(lane == 0 || team.way(rank, 0) == PeerWay::kNone) << "lane 0 is not used yet";
    }
    EXPECT_EQ(team.way(next, lane), PeerWay::kNative);
    ASSERT_TRUE(team.barrier()) << "no rank uses the next lane before all have counted";
  }
}

TEST_F(TeamOfRanks, all_ranks_ask_all_at_once_and_every_signal_comes_once) {
  Team team = made({.direct = DirectChoice::kOff});
  const std::uint32_t size = team.size();
  auto* const signals = must(team.allocate<std::uint64_t>(size));
  std::vector<Status> ends(size, Status::kPending);
  launch(
      team,
      [&](const TeamHandle& handle) {
        const std::uint32_t rank = threadIdx.x;
        Status status = gdx_signal(handle, signals + handle.rank, 1, SignalOp::kAdd, rank);
        if (status == Status::kOk) status = gdx_wait(handle, signals + rank, Compare::kGreaterEqual, 1, rank);
        ends[rank] = status;
      },
      size);
  for (const Status end : ends) EXPECT_EQ(end, Status::kOk) << team.describe_fault();
  ASSERT_TRUE(team.barrier());
  for (std::uint32_t rank = 0; rank < size; ++rank) EXPECT_EQ(arrived(signals[rank]), 1u);
  EXPECT_EQ(team.connections(), size);
  ASSERT_TRUE(team.barrier());
}

// The sender signals only once the wait has made rank 0 ask for the connection.
TEST_F(TeamOfRanks, wait_for_a_silent_rank_connects_to_it) {
  if (world().size() < 2) GTEST_SKIP() << "needs two ranks";
  Team team = made({.endpoint = {.probe_after_ns = 1'000'000}, .direct = DirectChoice::kOff});
  auto* const signal = must(team.allocate<std::uint64_t>(1));
  Status end = Status::kOk;
  if (team.rank() == 0) {
    launch(team,
           [&](const TeamHandle& handle) { end = gdx_wait(handle, signal, Compare::kEqual, 1, last()); });
  } else if (team.rank() == last()) {
    while (team.connections() == 0 && all_here()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    launch(team, [&](const TeamHandle& handle) { end = gdx_signal(handle, signal, 1, SignalOp::kAdd, 0); });
  }
  EXPECT_EQ(end, Status::kOk) << team.describe_fault();
  ASSERT_TRUE(team.barrier());
  EXPECT_EQ(team.connections(), team.rank() == 0 || team.rank() == last() ? 1u : 0u);
  ASSERT_TRUE(team.barrier());
}

TEST_F(TeamOfRanks, mapped_ranks_need_no_connection_for_puts_and_processors_atomics) {
  Team team = made({.direct = DirectChoice::kOn});
  auto* const words = must(team.allocate<std::uint64_t>(2));
  const std::uint32_t next = (team.rank() + 1) % team.size();
  Status ends[2] = {Status::kPending, Status::kPending};
  launch(team, [&](const TeamHandle& handle) {
    ends[0] = gdx_put_value(handle, words, std::uint64_t{7}, next);
    ends[1] = gdx_signal(handle, words + 1, 1, SignalOp::kAdd, next);
  });
  for (const Status end : ends) EXPECT_EQ(end, Status::kOk) << team.describe_fault();
  ASSERT_TRUE(team.barrier());
  EXPECT_EQ(arrived(words[0]), 7u);
  EXPECT_EQ(arrived(words[1]), 1u);
  EXPECT_EQ(team.connections(), 0u);
  ASSERT_TRUE(team.barrier());
}

TEST_F(TeamOfRanks, host_connects_all_lanes_to_one_rank) {
  Team team = made({.lanes = 2, .direct = DirectChoice::kOff});
  for (int times = 0; times < 2; ++times) {
    const auto done = team.connect(0);
    EXPECT_TRUE(done) << done.error().message;
  }
  ASSERT_TRUE(team.barrier());
  EXPECT_EQ(team.connections(), team.rank() == 0 ? 2 * team.size() : 2);
  for (std::uint32_t lane = 0; lane < 2; ++lane) {
    EXPECT_EQ(team.way(0, lane), PeerWay::kNative);
    EXPECT_NE(team.endpoint(lane, 0).layout_version, 0u);
  }
  EXPECT_EQ(team.way(0, 2), PeerWay::kNone);
  EXPECT_EQ(team.connect(team.size()).error().status, Status::kInvalidArgument);
  ASSERT_TRUE(team.barrier());
}

// Slots of host memory for a few endpoints, each of which reserves one.
StagingOptions slots_for(std::uint64_t endpoints) {
  auto options = StagingOptions::in_host_memory();
  options.pool_bytes = options.slot_bytes * endpoints;
  return options;
}

// By the deadline of all pairs, in a program of its own.
TEST_F(TeamOfRanks, one_pair_that_fails_ends_create_at_all_ranks_and_leaves_the_world) {
  ASSERT_EQ(world().size(), 3u);
  StagingPool few = must(StagingPool::create(hca_of(), slots_for(2)));
  StagingPool enough = must(StagingPool::create(hca_of(), slots_for(8)));
  const bool differs = world().rank() == last();
  const std::uint64_t begun_ns = monotonic_ns();
  const auto team = Team::create(hca_of(), world(), {nullptr, differs ? &few : &enough},
                                 {.heap_bytes = kHeapBytes,
                                  .endpoint = {.bounce_slot_count = 1},
                                  .direct = DirectChoice::kOff,
                                  .timeout_ns = kDeadlinesNs,
                                  .connect_all = true});
  ASSERT_FALSE(team);
  ASSERT_EQ(team.error().status, Status::kTimeout) << lateness(begun_ns);
  ASSERT_THAT(team.error().message, HasSubstr("was not connected on lane 0")) << lateness(begun_ns);
  EXPECT_TRUE(world().barrier(kPatienceNs)) << "the world goes on";
}

// The last rank has no room for endpoints, so that no wait can probe it, or be probed by it.
TEST_F(TeamOfRanks, mapped_rank_stays_in_reach_when_no_endpoint_is_to_be_had) {
  if (world().size() < 2) GTEST_SKIP() << "needs two ranks";
  StagingPool pool = must(StagingPool::create(hca_of(), slots_for(world().rank() == last() ? 1 : 8)));
  const auto taken =
      must(Endpoint::create(hca_of(), {nullptr, &pool}, {.slot_count = 0, .bounce_slot_count = 1}));
  Team team = must(Team::create(hca_of(), world(), {nullptr, &pool},
                                {.heap_bytes = kHeapBytes,
                                 .endpoint = {.bounce_slot_count = 1,
                                              .timeout_ns = 2'000'000'000,
                                              .probe_after_ns = 100'000'000,
                                              .retry_count = 0,
                                              .may_time_out_before_retries = true},
                                 .direct = DirectChoice::kOn,
                                 .timeout_ns = kPatienceNs}));
  ASSERT_EQ(team.atomics(), TeamAtomics::kProcessor);
  auto* const words = must(team.allocate<std::uint64_t>(2));
  const std::uint32_t peer = team.rank() == last() ? 0 : last();
  const auto refused = team.connect(peer);
  ASSERT_FALSE(refused);
  // A rank that is slow to answer is none that answers that it has no room.
  if (team.rank() == last()) {
    EXPECT_EQ(refused.error().status, Status::kBusy) << refused.error().message;
  } else {
    EXPECT_THAT(refused.error().status, AnyOf(Status::kBusy, Status::kPeerUnreachable))
        << refused.error().message;
  }
  EXPECT_EQ(team.way(peer), PeerWay::kMapped);
  Status ends[2] = {Status::kPending, Status::kPending};
  launch(team, [&](const TeamHandle& handle) {
    ends[0] = gdx_put_value(handle, words, std::uint64_t{7}, peer);
    ends[1] = gdx_wait(handle, words + 1, Compare::kEqual, 1, peer);
  });
  EXPECT_EQ(ends[0], Status::kOk);
  EXPECT_EQ(ends[1], Status::kTimeout);
  EXPECT_THAT(
      team.describe_fault(),
      AllOf(HasSubstr("timed out"), HasSubstr("connection to rank " + std::to_string(peer) + ", lane 0")));
  ASSERT_TRUE(team.barrier());
  EXPECT_EQ(arrived(words[0]), team.rank() == 0 || team.rank() == last() ? 7u : 0u);
  ASSERT_TRUE(team.barrier());
}

// A program of their own runs the next tests, because the world ends with the rank.
TEST_F(TeamOfRanks, rank_that_died_before_it_is_asked_is_unreachable_by_name) {
  ASSERT_EQ(world().size(), 3u);
  Team team =
      made({.endpoint = {.timeout_ns = kDeadlinesNs, .retry_count = 2, .may_time_out_before_retries = true},
            .direct = DirectChoice::kOff});
  Team patient = made({.endpoint = {.timeout_ns = 600'000'000'000}, .direct = DirectChoice::kOff});
  Team mapped =
      made({.endpoint = {.timeout_ns = kDeadlinesNs, .retry_count = 2, .may_time_out_before_retries = true},
            .direct = DirectChoice::kOn});
  Team part = must(team.split(0, last() - team.rank()));
  auto* const signal = must(team.allocate<std::uint64_t>(1));
  if (team.rank() == last()) _exit(::testing::UnitTest::GetInstance()->Failed() ? 1 : 0);
  while (world().poll_peers()) std::this_thread::sleep_for(std::chrono::milliseconds(1));

  Status dead = Status::kPending;
  const std::uint32_t other = 1 - std::min(team.rank(), 1u);
  const std::uint64_t begun_ns = monotonic_ns();
  launch(team,
         [&](const TeamHandle& handle) { dead = gdx_signal(handle, signal, 1, SignalOp::kAdd, last()); });
  ASSERT_EQ(dead, Status::kPeerUnreachable) << lateness(begun_ns);
  const auto alive = patient.connect(other);
  EXPECT_TRUE(alive) << alive.error().message;
  EXPECT_EQ(team.way(last()), PeerWay::kGone);
  EXPECT_EQ(team.endpoint(0, last()).layout_version, 0u);
  const std::string name = "rank " + std::to_string(last());
  EXPECT_THAT(team.describe_fault(),
              AllOf(HasSubstr("peer unreachable"), HasSubstr(": " + name + ";"),
                    HasSubstr("connection to " + name + ", lane 0: " + name + " was not connected")));
  EXPECT_EQ(team.connect(last()).error().status, Status::kPeerUnreachable);
  EXPECT_EQ(mapped.connect(last()).error().status, Status::kPeerUnreachable);
  EXPECT_EQ(mapped.way(last()), PeerWay::kGone) << "though its memory is still mapped";
  const std::string in_part = "rank 0 (" + name + " of the first team)";
  EXPECT_THAT(part.describe_fault(), HasSubstr("connection to " + in_part + ", lane 0: " + name));
  EXPECT_THAT(part.connect(0).error().message, HasSubstr(in_part + ": " + name + " was not connected"));

  std::thread aborter([&] {
    while (patient.connections() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    patient.abort();
  });
  EXPECT_EQ(patient.connect(last()).error().status, Status::kAborted);
  aborter.join();
  Status aborted = Status::kPending;
  auto* const its_signal = reinterpret_cast<std::uint64_t*>(patient.heap().data());
  launch(patient, [&](const TeamHandle& handle) {
    aborted = gdx_signal(handle, its_signal, 1, SignalOp::kAdd, last());
  });
  EXPECT_EQ(aborted, Status::kAborted);
}

// Found by the connector if the last rank dies during the exchange, and by RC after it.
TEST_F(TeamOfRanks, rank_that_dies_while_it_is_asked_is_unreachable_by_name) {
  ASSERT_GE(world().size(), 2u);
  Team team = made({.direct = DirectChoice::kOff});
  auto* const signal = must(team.allocate<std::uint64_t>(1));
  if (team.rank() == last()) {
    // The others may give this rank up before, when it stands still.
    while (team.connections() == 0 && world().poll_peers()) std::this_thread::yield();
    _exit(::testing::UnitTest::GetInstance()->Failed() ? 1 : 0);
  }
  Status end = Status::kOk;
  launch(team, [&](const TeamHandle& handle) {
    while (end == Status::kOk) {
      end = gdx_signal(handle, signal, 1, SignalOp::kAdd, last());
      if (end == Status::kOk) end = gdx_flush(handle, last());
    }
  });
  EXPECT_EQ(end, Status::kPeerUnreachable);
  EXPECT_THAT(team.describe_fault(), HasSubstr("rank " + std::to_string(last())));
}

TEST_F(TeamOfRanks, lost_rank_is_named_by_close) {
  if (world().size() < 2) GTEST_SKIP() << "needs two ranks";
  std::optional<Team> unclosed(made());
  Team team = made();
  if (team.rank() == last()) _exit(::testing::UnitTest::GetInstance()->Failed() ? 1 : 0);
  const auto closed = team.close();
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.error().status, Status::kPeerGone);
  EXPECT_THAT(closed.error().message, HasSubstr("rank " + std::to_string(last())));
  EXPECT_EQ(team.handle().peers, nullptr);
  ::testing::internal::CaptureStderr();
  unclosed.reset();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::ContainsRegex("error: a team's end: .*rank " + std::to_string(last())));
}

}  // namespace team_connection_test
}  // namespace gdx
