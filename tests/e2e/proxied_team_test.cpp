// Teams whose ranks are proxied over $GDX_PROVIDER, without any HCA: every rank of `gdx run --hardware` runs
// these tests in the same order. What is common to all ways is in the other tests of teams; the order of
// calls in team_litmus_test.cpp.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "device/team.h"
#include "host/gdx.h"
#include "proto/softhca.h"
#include "tests/e2e/must.h"

namespace gdx {
namespace proxied_team_test {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr std::uint64_t kPatienceNs = 200'000'000'000;

TeamOptions options_with(std::uint64_t timeout_ns) {
  TeamOptions options;
  options.heap_bytes = 1 << 20;
  options.lanes = 2;
  options.direct = DirectChoice::kOff;
  options.timeout_ns = kPatienceNs;
  options.endpoint.timeout_ns = timeout_ns;
  options.endpoint.probe_after_ns = 50'000'000;
  options.endpoint.may_time_out_before_retries = true;
  return options;
}
Team make_team(const TeamOptions& options = options_with(kPatienceNs)) { return must(Team::create(options)); }

template <typename Kernel>
void launch(const Team& team, Kernel kernel, unsigned threads = 1) {
  const exec::LaunchConfig config{.grid = {1}, .block = {threads}, .progress = progress};
  ASSERT_EQ(exec::launch(config, kernel, team.handle()), Status::kOk);
}

// Sets a variable at this rank until it ends.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    const char* const before = std::getenv(name);
    had_ = before != nullptr;
    if (had_) before_ = before;
    setenv(name, value, 1);
  }
  ~Variable() { had_ ? setenv(name_, before_.c_str(), 1) : unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  bool had_ = false;
  std::string before_;
};

TEST(ProxiedTeam, reaches_all_ranks_without_an_hca) {
  const Team team = make_team();
  EXPECT_EQ(team.atomics(), TeamAtomics::kAgent);
  for (std::uint32_t rank = 0; rank < team.size(); ++rank) {
    EXPECT_EQ(team.way(rank, 1), PeerWay::kProxied);
    EXPECT_EQ(team.endpoint(0, rank).layout_version, 0u);
    EXPECT_EQ(team.handle().peers[rank].command_rank, rank);
  }
  EXPECT_EQ(team.connections(), 0u);
  EXPECT_EQ(team.describe_fault(), "ok");
}

// Puts, values of both widths, gets and atomics between the heap and a window that came later, on each lane.
void expect_calls_between_windows(Team& team, std::uint64_t* heap, std::uint64_t* window) {
  const std::uint32_t next = (team.rank() + 1) % team.size();
  const std::uint32_t before = (team.rank() + team.size() - 1) % team.size();
  struct Wide {
    std::uint64_t low;
    std::uint64_t high;
  };
  for (std::uint32_t lane = 0; lane < 2; ++lane) {
    heap[1] = team.rank() + 100;
    std::vector<Status> ends;
    launch(team, [&](const TeamHandle& all) {
      const TeamHandle handle = all.on_lane(lane);
      ends = {gdx_put(handle, window, heap + 1, 8, next),
              gdx_put_value(handle, reinterpret_cast<Wide*>(window + 2), Wide{team.rank() + 1u, lane}, next),
              gdx_put_value(handle, reinterpret_cast<std::uint8_t*>(window + 4), std::uint8_t{9}, next),
              gdx_signal(handle, window + 5, lane + 1, SignalOp::kSet, next),
              gdx_get(handle, heap + 8, window + 2, 32, next),
              gdx_fetch_add(handle, heap + 4, window + 6, 5, next),
              gdx_compare_swap(handle, window + 8, window + 7, lane, lane + 1, next),
              gdx_flush(handle, next),
              gdx_wait(handle, window + 5, Compare::kEqual, lane + 1, before)};
    });
    EXPECT_EQ(ends, std::vector<Status>(9, Status::kOk)) << team.describe_fault();
    EXPECT_EQ(window[0], before + 100u);
    EXPECT_EQ(window[2], before + 1u);
    EXPECT_EQ(window[3], lane);
    EXPECT_EQ(window[4], 9u);
    EXPECT_EQ(heap[8], team.rank() + 1u) << "the get saw the value before it";
    EXPECT_EQ(heap[9], lane);
    EXPECT_EQ(heap[11], lane + 1) << "and the signal";
    EXPECT_EQ(heap[4], 5 * lane);
    EXPECT_EQ(window[8], lane);
    must(team.barrier());
    EXPECT_EQ(window[6], 5 * (lane + 1));
    EXPECT_EQ(window[7], lane + 1);
    must(team.barrier());
  }
}

TEST(ProxiedTeam, windows_that_come_later_are_reached_on_every_lane) {
  alignas(4096) static std::uint64_t memory[2][512];
  Team team = make_team();
  auto* const heap = must(team.allocate<std::uint64_t>(16));
  must(team.register_window(memory[0], sizeof memory[0]));
  const bool differs = team.rank() + 1 == team.size();
  EXPECT_FALSE(team.register_window(memory[1], differs ? 128 : 64)) << "refused at all ranks";
  must(team.register_window(memory[1], sizeof memory[1]));
  expect_calls_between_windows(team, heap, memory[0]);
  expect_calls_between_windows(team, heap, memory[1]);
  EXPECT_EQ(team.describe_fault(), "ok");
}

// Nothing in the kernels waits for the signals: the host's barrier does.
TEST(ProxiedTeam, barrier_completes_signals_that_finished_kernels_gave) {
  constexpr std::uint64_t kRounds = 100;
  Team team = make_team();
  auto* const word = must(team.allocate<std::uint64_t>(1));
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    Status status = Status::kOk;
    launch(team, [&](const TeamHandle& handle) {
      for (int i = 0; i < 4 && status == Status::kOk; ++i)
        status = gdx_signal(handle, word, 1, SignalOp::kAdd, (handle.rank + 1) % handle.size);
    });
    ASSERT_EQ(status, Status::kOk) << team.describe_fault();
    must(team.barrier());
    ASSERT_EQ(*word, 4 * round);
    must(team.barrier());
  }
}

// Rank 0 maps nothing, so all atomics are the agents', also between ranks that put by stores.
TEST(ProxiedTeam, mapped_ranks_beside_proxied_ones_signal_by_agents) {
  TeamOptions options = options_with(kPatienceNs);
  const auto world = must(WorldOptions::from_environment());
  if (world.rank != 0) options.direct = DirectChoice::kAuto;
  Team team = make_team(options);
  EXPECT_EQ(team.atomics(), TeamAtomics::kAgent);
  const bool mapped = team.rank() != 0 && team.size() > 2;
  EXPECT_EQ(team.handle().peers[team.size() - 1].windows[0].mapped != nullptr, mapped || team.rank() != 0);
  auto* const memory = must(team.allocate<std::uint64_t>(32));
  expect_calls_between_windows(team, memory, memory + 16);
}

TEST(ProxiedTeam, split_teams_number_their_ranks_anew) {
  Team team = make_team();
  auto* const words = must(team.allocate<std::uint64_t>(2));
  const Team part = must(team.split(0, team.size() - team.rank()));
  const std::uint32_t next = (part.rank() + 1) % part.size();
  const std::uint32_t before = (part.rank() + part.size() - 1) % part.size();
  Status ends[2] = {Status::kPending, Status::kPending};
  launch(part, [&](const TeamHandle& handle) {
    ends[0] = gdx_signal(handle, words, 10 + handle.rank, SignalOp::kAdd, next);
    ends[1] = gdx_wait(handle, words, Compare::kEqual, 10 + before, before);
  });
  for (const Status end : ends) EXPECT_EQ(end, Status::kOk) << part.describe_fault();
  must(team.barrier());
}

// The waits name a rank that is alive and silent, so nothing but the abort ends them.
TEST(ProxiedTeam, abort_ends_waits_and_leaves_the_ranks) {
  Team team = make_team();
  auto* const word = must(team.allocate<std::uint64_t>(1));
  std::atomic<bool> waits{false};
  std::thread aborter([&] {
    while (!waits) std::this_thread::yield();
    team.abort();
  });
  Status end = Status::kPending;
  launch(team, [&](const TeamHandle& handle) {
    waits = true;
    end = gdx_wait(handle, word, Compare::kEqual, 1, (team.rank() + 1) % team.size());
  });
  aborter.join();
  EXPECT_EQ(end, Status::kAborted);
  EXPECT_TRUE(team.barrier());
}

TEST(ProxiedTeam, rank_that_is_silent_and_answers_times_out) {
  Team team = make_team(options_with(1'000'000'000));
  auto* const word = must(team.allocate<std::uint64_t>(1));
  Status end = Status::kPending;
  launch(team, [&](const TeamHandle& handle) {
    end = gdx_wait(handle, word, Compare::kEqual, 1, (team.rank() + 1) % team.size());
  });
  // A machine that stands still lets the echo come late.
  EXPECT_THAT(end, ::testing::AnyOf(Status::kTimeout, Status::kPeerUnreachable)) << team.describe_fault();
  EXPECT_THAT(team.describe_fault(), HasSubstr("waited"));
}

TEST(ProxiedTeam, what_would_be_emulated_is_refused_by_name_where_asked_for) {
  const Variable refuse("GDX_EMULATION", "refuse");
  Team team = make_team();
  auto* const words = must(team.allocate<std::uint64_t>(2));
  Status ends[3] = {};
  launch(team, [&](const TeamHandle& handle) {
    ends[0] = gdx_put(handle, words, words + 1, 8, 0);
    ends[1] = gdx_flush(handle, 0);
    ends[2] = gdx_put_signal(handle, words, words + 1, 8, words, 1, SignalOp::kAdd, 0);
  });
  EXPECT_EQ(ends[0], Status::kOk);
  EXPECT_EQ(ends[1], Status::kOk);
  EXPECT_EQ(ends[2], Status::kUnsupported);
  EXPECT_THAT(team.describe_fault(),
              AllOf(HasSubstr("a put with signal to rank 0 on lane 0"), HasSubstr("GDX_EMULATION=refuse")));
  team.clear_fault();
  EXPECT_EQ(team.describe_fault(), "ok");
}

void expect_refusal(const TeamOptions& options, Status status, const std::string& words) {
  const auto team = Team::create(options);
  ASSERT_FALSE(team);
  EXPECT_EQ(team.error().status, status) << team.error().message;
  EXPECT_THAT(team.error().message, HasSubstr(words));
}

TEST(ProxiedTeam, what_cannot_be_proxied_is_refused_by_one_clear_line) {
  const auto world = must(WorldOptions::from_environment());
  TeamOptions options = options_with(kPatienceNs);
  options.provider = world.rank == 0 ? "udp" : "tcp";
  expect_refusal(options, Status::kInvalidArgument,
                 "was given provider 'tcp', rank 0 provider 'udp': give all");
  options.provider = "nothing";
  expect_refusal(options, Status::kNotFound, "libfabric has no provider 'nothing'");
  options.provider = std::string(40, 'x');
  expect_refusal(options, Status::kInvalidArgument, "is longer than 31 bytes");
  options = options_with(kPatienceNs);
  const Variable daemon("GDX_DAEMON", "unix:/nowhere");
  expect_refusal(options, Status::kUnsupported, "set GDX_DAEMON=off");
}

// The last rank opens none, so the others close theirs.
TEST(ProxiedTeam, auto_team_outlives_the_hca_that_it_leaves) {
  TeamOptions options = options_with(kPatienceNs);
  const auto world = must(WorldOptions::from_environment());
  if (world.rank + 1 == world.size) options.hca.name = "none";
  Team team = make_team(options);
  ASSERT_EQ(team.atomics(), TeamAtomics::kAgent);
  auto* const word = must(team.allocate<std::uint64_t>(1));
  const auto raise = reinterpret_cast<SofthcaRaise>(dlsym(RTLD_DEFAULT, kSofthcaRaiseSymbol));
  ASSERT_NE(raise, nullptr) << "needs the software HCA";
  raise(IBV_EVENT_DEVICE_FATAL);
  Status ends[2] = {Status::kPending, Status::kPending};
  launch(team, [&](const TeamHandle& handle) {
    ends[0] = gdx_signal(handle, word, 1, SignalOp::kAdd, (handle.rank + 1) % handle.size);
    ends[1] = gdx_wait(handle, word, Compare::kEqual, 1, (handle.rank + handle.size - 1) % handle.size);
  });
  for (const Status end : ends) EXPECT_EQ(end, Status::kOk) << team.describe_fault();
  must(team.barrier());
}

// One thread waits for it, on one lane, while another puts to it, on the other.
TEST(ProxiedTeam, rank_that_dies_is_unreachable_by_name) {
  Team team = make_team(options_with(4'000'000'000));
  auto* const words = must(team.allocate<std::uint64_t>(2));
  ASSERT_GE(team.size(), 2u);
  const std::uint32_t dead = team.size() - 1;
  if (team.rank() == dead) _exit(::testing::UnitTest::GetInstance()->Failed() ? 1 : 0);
  Status waited = Status::kPending;
  Status put = Status::kPending;
  Status flushed = Status::kPending;
  launch(
      team,
      [&](const TeamHandle& all) {
        if (threadIdx.x == 0) {
          waited = gdx_wait(all.on_lane(0), words, Compare::kEqual, 1, dead);
          return;
        }
        const TeamHandle handle = all.on_lane(1);
        do {
          put = gdx_put_signal(handle, words, words + 1, 8, words, 1, SignalOp::kAdd, dead);
          flushed = gdx_flush(handle, dead);
        } while (put == Status::kOk && flushed == Status::kOk);
        put = gdx_put(handle, words, words + 1, 8, dead);
      },
      2);
  EXPECT_EQ(waited, Status::kPeerUnreachable);
  EXPECT_EQ(flushed, Status::kPeerUnreachable);
  EXPECT_EQ(put, Status::kPeerUnreachable) << "later calls are told, too";
  const std::string name = "rank " + std::to_string(dead);
  // A NIC's own retries may run out before the bound of silence, in the message or write that is due; and the
  // put may be complete before the rank dies, and the flush behind it due.
  const std::string fault = team.describe_fault();
  EXPECT_THAT(fault, ContainsRegex("proxied " + name + ", lane 0: (an echo|message of 64 B) to " + name));
  EXPECT_THAT(fault,
              ContainsRegex("proxied " + name +
                            ", lane 1: (put with signal|flush|message of 64 B|write of 8 B) to " + name));
  EXPECT_EQ(team.connect(dead).error().status, Status::kPeerUnreachable);
  const auto met = team.barrier();
  ASSERT_FALSE(met);
  EXPECT_THAT(met.error().message, HasSubstr(name));
}

// All ranks are mapped, so no provider is opened, and no echo is asked for: the process's end is the sign.
TEST(ProxiedTeam, mapped_rank_that_dies_is_unreachable_by_name) {
  TeamOptions options = options_with(kPatienceNs);
  options.direct = DirectChoice::kOn;
  Team team = make_team(options);
  ASSERT_EQ(team.atomics(), TeamAtomics::kProcessor);
  auto* const words = must(team.allocate<std::uint64_t>(2));
  const std::uint32_t dead = team.size() - 1;
  if (team.rank() == dead) _exit(::testing::UnitTest::GetInstance()->Failed() ? 1 : 0);
  Status ends[2] = {Status::kPending, Status::kPending};
  launch(team, [&](const TeamHandle& handle) {
    ends[0] = gdx_wait(handle, words, Compare::kEqual, 1, dead);
    ends[1] = gdx_put(handle, words, words + 1, 8, dead);
  });
  for (const Status end : ends) EXPECT_EQ(end, Status::kPeerUnreachable) << team.describe_fault();
  const std::string name = "rank " + std::to_string(dead);
  EXPECT_THAT(team.describe_fault(), HasSubstr("connection to " + name + ", lane 1: its process has ended"));
  EXPECT_EQ(team.connect(dead).error().status, Status::kPeerUnreachable);
  EXPECT_EQ(team.way(1 - team.rank()), PeerWay::kMapped) << "which lives";
}

}  // namespace proxied_team_test
}  // namespace gdx
