// Teams whose ranks are threads of this process, and of one rank: numbers, split teams, heaps, windows,
// faults.
#include "host/team/team.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "host/memory/memory_limits.h"
#include "host/staging/progress.h"
#include "proto/mlx5/wqe.h"
#include "tests/unit/host/teams.h"

namespace gdx {
namespace team_test {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

// All threads count their teams together here, so no two ranks have the same count.
TEST_F(Teams, number_is_rank_0s_at_every_rank) {
  std::mutex mutex;
  std::vector<std::string> told(kRanks);
  at_all_ranks([&](World& world) {
    Team first = make(world);
    Team second = make(world);
    EXPECT_TRUE(first.barrier());
    EXPECT_TRUE(second.barrier());
    const auto met = (world.rank() == 2 ? second : first).barrier();
    const std::lock_guard lock(mutex);
    told[world.rank()] = refusal(met);
  });
  EXPECT_THAT(told[0], HasSubstr("team call of rank 2: barrier (team "));
  EXPECT_THAT(told[0], HasSubstr("; of rank 0: barrier (team "));
  for (const std::string& one : told) EXPECT_EQ(one, told[0]);
}

void expect_handle_of_part(const TeamHandle& some, const TeamHandle& all,
                           const std::vector<std::uint32_t>& members) {
  EXPECT_EQ(some.layout, all.layout);
  EXPECT_EQ(some.size, members.size());
  EXPECT_EQ(some.lanes, all.lanes);
  EXPECT_EQ(some.atomics, all.atomics);
  EXPECT_EQ(some.window_count, all.window_count);
  EXPECT_EQ(some.most_bytes, kHeapBytes);
  EXPECT_NE(some.fault, all.fault);
  EXPECT_EQ(some.abort, all.abort);
  EXPECT_EQ(some.timeout_ns, all.timeout_ns);
  EXPECT_EQ(some.probe_after_ns, all.probe_after_ns);
  EXPECT_EQ(some.progress, &progress);
  EXPECT_EQ(some.pool_peers, all.peers);
  EXPECT_EQ(some.pool_peer_count, kRanks * all.lanes);
  EXPECT_NE(some.copy, all.copy);
  for (const TeamHandle* const one : {&some, &all}) {
    EXPECT_EQ(one->copy->copy, one->copy);
    EXPECT_EQ(one->copy->rank, one->rank);
    EXPECT_EQ(one->copy->peers, one->peers);
  }
  for (std::uint32_t lane = 0; lane < all.lanes; ++lane) {
    for (std::uint32_t i = 0; i < members.size(); ++i) {
      const TeamPeer& copy = some.peers[lane * some.size + i];
      const TeamPeer& record = all.peers[lane * all.size + members[i]];
      EXPECT_TRUE(
          std::ranges::equal(std::as_bytes(std::span(&copy, 1)), std::as_bytes(std::span(&record, 1))))
          << lane << " " << i;
    }
  }
}

// Ranks 3, 2 and 0 in this order, and rank 1 alone.
TEST_F(Teams, split_team_has_the_ranks_of_its_colour_by_key_and_shares_the_rest) {
  at_all_ranks([&](World& world) {
    const std::uint32_t rank = world.rank();
    Team team = make(world, {.lanes = 2, .endpoint = {.timeout_ns = 170'000'000'000, .probe_after_ns = 9}});
    for (const std::uint32_t peer : {1u, 3u}) {
      const bool asks = rank == 0 || rank == peer;
      EXPECT_TRUE(!asks || team.connect(peer - rank));
    }
    EXPECT_TRUE(team.barrier());
    Team part = must(team.split(rank == 1 ? 8 : 5, 40 - rank));
    const std::vector<std::uint32_t> members =
        rank == 1 ? std::vector<std::uint32_t>{1} : std::vector<std::uint32_t>{3, 2, 0};
    const TeamHandle all = team.handle();
    const TeamHandle some = part.handle();
    EXPECT_EQ(all.rank, rank);
    EXPECT_EQ(team.rank(), rank);
    EXPECT_EQ(all.timeout_ns, 170'000'000'000u);
    EXPECT_EQ(all.probe_after_ns, 9u);
    EXPECT_EQ(part.rank(), (std::array{2u, 0u, 1u, 0u})[rank]);
    EXPECT_EQ(some.rank, part.rank());
    EXPECT_EQ(part.size(), members.size());
    expect_handle_of_part(some, all, members);
    std::set<const std::uint32_t*> words{all.abort};
    for (std::uint32_t i = 0; i < 2 * kRanks; ++i) words.insert(all.peers[i].asked);
    EXPECT_EQ(words.size(), 1 + 2 * kRanks) << "a word of its own for each rank and lane";
    EXPECT_EQ(team.connections(), (std::array{4u, 2u, 0u, 2u})[rank]);
    EXPECT_EQ(part.connections(), rank % 3 == 0 ? 2u : 0u);
    for (std::uint32_t i = 0; i < members.size(); ++i) {
      const bool connected = rank + members[i] == 3 && rank % 3 == 0;
      for (const std::uint32_t lane : {0u, 1u}) {
        EXPECT_EQ(part.way(i, lane), connected ? PeerWay::kNative : PeerWay::kNone);
        EXPECT_EQ(part.endpoint(lane, i).qpn, team.endpoint(lane, members[i]).qpn);
        EXPECT_EQ(part.endpoint(lane, i).qpn != 0, connected);
      }
    }
    EXPECT_EQ(part.way(0, 2), PeerWay::kNone);
    EXPECT_EQ(part.way(part.size(), 0), PeerWay::kNone);
    EXPECT_EQ(part.endpoint(2, 0).qpn, 0u);
    EXPECT_EQ(part.endpoint(0, part.size()).qpn, 0u);
    *part.handle().fault = {Status::kTimeout, 0, 0, 0, 1, 0};
    EXPECT_THAT(part.describe_fault(),
                StartsWith(fmt::format("timed out: rank 0 (rank {} of the first team)", members.front())));
    EXPECT_EQ(team.describe_fault(), "ok");
    EXPECT_EQ(
        refusal(part.connect(part.size())),
        fmt::format("invalid argument: no connection to rank {0}: the team has {0} ranks", part.size()));
    EXPECT_TRUE(team.barrier()) << "no further rank connects before all have counted";
    if (rank == 2) {
      EXPECT_TRUE(part.connect(0)) << "rank 3 of the first team";
      EXPECT_EQ(team.way(3), PeerWay::kNative);
      EXPECT_EQ(team.way(0), PeerWay::kNone);
    }
    EXPECT_TRUE(team.barrier());
    EXPECT_TRUE(part.close());
    EXPECT_EQ(part.barrier().error().status, Status::kInvalidArgument) << "its team lives";
    EXPECT_TRUE(team.close());
  });
}

// No file of this process grows beyond 1 MiB, so that a heap which nobody refuses ends no other program.
class SmallFiles {
 public:
  SmallFiles() : was_(signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &limit_), 0);
    set({1 << 20, limit_.rlim_max});
  }
  ~SmallFiles() {
    set(limit_);
    signal(SIGXFSZ, was_);
  }
  SmallFiles(const SmallFiles&) = delete;
  SmallFiles& operator=(const SmallFiles&) = delete;

 private:
  static void set(const rlimit& limit) { EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0); }
  rlimit limit_{};
  void (*was_)(int);
};

TEST_F(Teams, heaps_that_fit_alone_and_not_together_are_refused_at_all_ranks) {
  const auto limits = memory_limits();
  if (limits.empty()) GTEST_SKIP() << "no limit of memory can be read here: mount /proc";
  const SmallFiles small;
  const std::uint64_t half = std::ranges::min(limits, {}, &MemoryLimit::left_bytes).left_bytes / 2;
  at_all_ranks([&](World& world) {
    const auto team = Team::create(hca(), world, {}, {.heap_bytes = half, .timeout_ns = kLongNs});
    EXPECT_THAT(refusal(team),
                HasSubstr(fmt::format("out of memory: team option heap_bytes = {}: 4 processes of this host "
                                      "would take ",
                                      half)));
  });
}

// A team of one rank needs no network.
class LoneTeam : public Teams {
 protected:
  LoneTeam() : world_(must(World::join({}))) {}
  Team made(const TeamOptions& options = {}) { return make(world_, options); }

  World world_;
};

TEST_F(LoneTeam, call_that_a_part_or_closed_team_cannot_do_is_named) {
  Team team = made();
  Team part = must(team.split(3, 3));
  std::array<std::byte, 64> memory{};
  const auto refusals = [&](Team& of) {
    return std::vector<std::string>{
        refusal(of.allocate<int>(1)), refusal(of.free(of.heap().data())), refusal(of.barrier()),
        refusal(of.register_window(memory.data(), memory.size())), refusal(of.split(0, 0))};
  };
  const auto all_of = [](const std::string& begin, const std::string& end) {
    std::vector<std::string> texts;
    for (const char* const call :
         {"allocate", "free", "wait for all its ranks", "register a window", "be split"}) {
      texts.push_back(begin);
      texts.back().append(call).append(end);
    }
    return texts;
  };
  EXPECT_EQ(refusal(part.register_window(memory.data(), memory.size())),
            "unsupported: a team of some ranks cannot register a window: let all ranks do so on the first "
            "team, whose windows it has");
  EXPECT_EQ(team.handle().window_count, 1u);
  EXPECT_TRUE(team.close());
  const std::string closed = ": the team is closed; make another";
  EXPECT_EQ(refusals(team), all_of("invalid argument: cannot ", closed));
  EXPECT_EQ(refusals(part), all_of("invalid argument: cannot ", closed));
  EXPECT_EQ(team.size() + team.bytes_free() + team.heap().size() + team.connections(), 0u);
  EXPECT_EQ(team.atomics(), TeamAtomics::kNic);
  EXPECT_EQ(team.way(0), PeerWay::kNone);
  EXPECT_EQ(team.endpoint(0, 0).qpn, 0u);
  EXPECT_EQ(refusal(team.connect(0)), "invalid argument: cannot connect" + closed);
}

// NOLINTBEGIN(bugprone-use-after-move): what is left then is the subject
TEST_F(LoneTeam, team_that_was_moved_away_is_a_closed_one) {
  Team team = made();
  Team other = std::move(team);
  const std::string closed = ": the team is closed; make another";
  EXPECT_EQ(refusal(team.barrier()), "invalid argument: cannot wait for all its ranks" + closed);
  EXPECT_EQ(refusal(team.connect(0)), "invalid argument: cannot connect" + closed);
  EXPECT_EQ(team.rank() + team.size() + team.heap().size(), 0u);
  EXPECT_EQ(team.describe_fault(), "the team is closed");
  EXPECT_TRUE(team.close());
  team = std::move(other);
  EXPECT_TRUE(team.barrier());
  EXPECT_EQ(other.describe_fault(), "the team is closed");
}
// NOLINTEND(bugprone-use-after-move)

// Returns the text of `body` in a forked child.
template <typename Body>
std::string told_by_child(Body body) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::string text = body();
    _exit(write(ends[1], text.data(), text.size()) < 0 ? 1 : 0);
  }
  close(ends[1]);
  std::string told;
  char part[4096];
  for (ssize_t got = 0; (got = read(ends[0], part, sizeof part)) > 0;)
    told.append(part, static_cast<std::size_t>(got));
  close(ends[0]);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  return told;
}

TEST_F(Teams, forked_child_makes_no_call_and_ends_nothing_of_the_ranks) {
  at_all_ranks([&](World& world) {
    auto team = std::make_unique<Team>(make(world));
    const auto child = [&] {
      const std::string why = fmt::format(
          "invalid argument: process {} was forked from process {}, which is the rank: make the call there, "
          "or "
          "begin with another program by exec",
          getpid(), getppid());
      std::string others;
      for (const std::string& text :
           {refusal(team->barrier()), refusal(team->allocate<int>(1)), refusal(team->connect(0)),
            refusal(team->close()), refusal(world.barrier(kLongNs)), refusal(world.poll_peers())})
        others += text == why ? "" : text + "; ";
      team->abort();
      team.reset();
      return others + "ended";
    };
    if (world.rank() == 1) {
      EXPECT_EQ(told_by_child(child), "ended");
    }
    EXPECT_TRUE(team->barrier());
    EXPECT_TRUE(team->connect(0));
    EXPECT_TRUE(team->close());
  });
}

TEST_F(Teams, forked_child_lets_go_of_its_copies_of_a_programs_own_parts) {
  auto pool = std::make_unique<StagingPool>(must(StagingPool::create(hca())));
  auto watch = must(hca().on_loss([] {}));
  const auto child = [&] {
    pool.reset();
    watch.reset();
    return std::string("ended");
  };
  EXPECT_EQ(told_by_child(child), "ended");
  EXPECT_EQ(pool->bad_returns(), 0u);
}

// The other ranks come once a call of one of rank 1's two threads is refused, so that the other waits in its
// own.
template <typename Call>
void call_twice_at_rank_1(std::uint32_t rank, std::atomic<bool>& refused, Call call) {
  if (rank != 1) {
    while (!refused) std::this_thread::yield();
    EXPECT_EQ(refusal(call()), "done");
    return;
  }
  std::array<std::string, 2> told;
  const auto in_thread = [&](std::string& text) {
    text = refusal(call());
    if (text != "done") refused = true;
  };
  std::thread other([&] { in_thread(told[0]); });
  in_thread(told[1]);
  other.join();
  EXPECT_THAT(told, UnorderedElementsAre(
                        "done", HasSubstr("busy: another thread of this process is in a collective")));
}

TEST_F(Teams, second_thread_in_a_collective_call_is_refused_and_the_first_goes_on) {
  std::atomic<bool> of_team = false;
  std::atomic<bool> of_world = false;
  at_all_ranks([&](World& world) {
    Team team = make(world);
    call_twice_at_rank_1(world.rank(), of_team, [&] { return team.barrier(); });
    call_twice_at_rank_1(world.rank(), of_world, [&] { return world.barrier(kLongNs); });
    EXPECT_TRUE(team.barrier());
  });
}

// Each piece is marked, and freeing one zeroes that one alone.
TEST_F(LoneTeam, free_takes_what_allocate_returned_and_zeroes_it_alone) {
  Team team = made();
  const std::span<std::byte> heap = team.heap();
  std::ranges::fill(heap, std::byte{7});
  ASSERT_EQ(must(team.allocate_bytes(100)), heap.data());
  ASSERT_EQ(must(team.allocate_bytes(200, 1024)), heap.data() + 1024);
  ASSERT_EQ(must(team.allocate_bytes(1)), heap.data() + 128);
  for (std::byte* const wrong : {heap.data() + 1, heap.data() + 256, heap.data() + heap.size(),
                                 heap.data() - 128, static_cast<std::byte*>(nullptr)})
    EXPECT_THAT(refusal(team.free(wrong)), HasSubstr("allocate has not returned it, or it is free"));
  EXPECT_TRUE(team.free(heap.data() + 1024));
  EXPECT_EQ(std::ranges::count(heap, std::byte{0}), 256);
  EXPECT_EQ(std::ranges::count(heap.subspan(1024, 256), std::byte{0}), 256);
  EXPECT_EQ(refusal(team.free(heap.data() + 1024)).substr(0, 29), "invalid argument: cannot free");
  EXPECT_EQ(team.bytes_free(), kHeapBytes - 256);
  EXPECT_EQ(team.allocate<std::uint64_t>(~std::size_t{0} / 8 + 1).error().status, Status::kNoMemory);
}

TEST_F(LoneTeam, window_lies_beside_every_other_and_is_shown_with_its_keys) {
  alignas(64) static std::array<std::byte, 4096> memory{};
  std::byte* const at = memory.data();
  Team team = made();
  EXPECT_TRUE(team.register_window(at + 1024, 1024));
  const struct {
    std::size_t first, bytes;
  } overlapping[] = {{1024, 1024}, {0, 1025}, {2047, 64}, {1100, 8}, {512, 2048}};
  for (const auto& [first, bytes] : overlapping) {
    EXPECT_THAT(refusal(team.register_window(at + first, bytes)),
                HasSubstr(std::to_string(bytes) + " bytes at"))
        << first;
  }
  EXPECT_TRUE(team.register_window(at, 1024)) << "up to another";
  EXPECT_TRUE(team.register_window(at + 2048, 1024)) << "from another's end";
  const TeamHandle handle = team.handle();
  ASSERT_EQ(handle.window_count, 4u);
  std::byte* const places[] = {nullptr, at + 1024, at, at + 2048};
  std::set<std::uint32_t> keys;
  for (std::uint32_t w = 0; w < 4; ++w) {
    const TeamWindow& own = handle.windows[w];
    EXPECT_EQ(own.address, w == 0 ? handle.area : places[w]);
    EXPECT_EQ(own.address + own.bytes, w == 0 ? team.heap().data() + kHeapBytes : places[w] + 1024);
    const TeamPeerWindow& shown = handle.peers[0].windows[w];
    EXPECT_EQ(shown.address, reinterpret_cast<std::uintptr_t>(own.address));
    EXPECT_EQ(shown.mapped, nullptr);
    keys.insert(own.lkey.raw);
    keys.insert(shown.rkey.raw);
  }
  EXPECT_GE(keys.size(), 4u) << "keys of each";
  EXPECT_EQ(handle.peers[0].heap_rkey, handle.peers[0].windows[0].rkey);
  EXPECT_EQ(handle.peers[0].heap_distance, 0u);
}

// Expects that each fault is told by its text: after the status, and before a connection's own fault.
void expect_texts(const Team& team, const std::vector<std::pair<TeamFault, std::string>>& cases) {
  for (const auto& [fault, text] : cases) {
    *team.handle().fault = fault;
    EXPECT_EQ(team.describe_fault(), text);
  }
}

TEST_F(LoneTeam, refusal_is_told_by_its_reason) {
  Team team = made();
  const auto area = reinterpret_cast<std::uintptr_t>(team.handle().area);
  const auto heap = reinterpret_cast<std::uintptr_t>(team.heap().data());
  const std::string most = std::to_string(mlx5::kMaxMessageBytes);
  constexpr Status kBad = Status::kInvalidArgument;
  expect_texts(
      team,
      {
          {{Status::kInvalidLength, kAnyTeamRank, heap, 0, 0, 0},
           "invalid length: any rank, 0 bytes at heap offset 0x0: of no signals"},
          {{Status::kInvalidLength, 0, heap, 0, 0, 0},
           "invalid length: rank 0, 0 bytes at heap offset 0x0: more elements than the lane's scratch takes, "
           "or a "
           "piece of the heap that is too small: use fewer elements, or a larger piece"},
          {{Status::kInvalidLength, 0, heap, mlx5::kMaxMessageBytes + 1, 0, 0},
           "invalid length: rank 0, 1073741825 bytes at heap offset 0x0: use 1 to " + most + " bytes"},
          {{Status::kInvalidLength, 0, heap, 4097, 0, 0},
           "invalid length: rank 0, 4097 bytes at heap offset 0x0: too long to go inline: use another mode"},
          {{kBad, 1, 0, 0, 0, 0}, "invalid argument: rank 1: the team has 1 ranks"},
          {{kBad, 0, 0, 0, 0, 0}, "invalid argument: rank 0: the lane does not exist"},
          {{kBad, 0, 0, kArgumentsDiffer, 0, 0},
           "invalid argument: rank 0: threads made one call with different arguments"},
          {{kBad, 0, 0, 64, 0, 0}, "invalid argument: rank 0, 64 bytes at 0x0: a null pointer"},
          {{kBad, kAnyTeamRank, heap, 64, 0, 0},
           "invalid argument: any rank, 64 bytes at heap offset 0x0: the team has 1 ranks, and that is "
           "number "
           "4294967295"},
          {{Status::kUnsupported, 0, heap, 8, 0, 0},
           "unsupported: rank 0, 8 bytes at heap offset 0x0: the team was made without the slots of that "
           "mode"},
          {{Status::kTimeout, 0, area + 64, 1 << 20, 0, 3},
           "timed out: rank 0, waited 120.000 s in a collective call"},
      });
}

TEST_F(LoneTeam, fault_of_each_kind_is_told_with_its_place_and_reason) {
  static std::array<std::byte, 1024> memory{};
  Team team = made();
  ASSERT_TRUE(team.register_window(memory.data(), memory.size()));
  const auto heap = reinterpret_cast<std::uintptr_t>(team.heap().data());
  const auto window = reinterpret_cast<std::uintptr_t>(memory.data());
  const auto hex = [](std::uintptr_t value) { return fmt::format("{:#x}", value); };
  *reinterpret_cast<std::uint64_t*>(heap + 16) = 55;
  constexpr Status kBad = Status::kInvalidArgument;
  expect_texts(
      team,
      {
          {{Status::kOk, 0, heap, 8, 0, 0}, "ok"},
          {{Status::kTimeout, kAnyTeamRank, 0, 8, 0, 1}, "timed out: any rank"},
          {{Status::kTimeout, 0, heap + 16, 7, 0, 3},
           "timed out: rank 0, waited 120.000 s for the word at heap offset 0x10 to be >= 7, now 55"},
          {{Status::kPeerUnreachable, 0, heap + 16, 56, 0, 1},
           "peer unreachable (transport retries exceeded): rank 0, waited for the word at heap offset 0x10 "
           "to be "
           "== 56, "
           "now 55"},
          {{Status::kTimeout, 0, heap + 16, 8, 0, 0},
           "timed out: rank 0, 8 bytes at heap offset 0x10, after 120.000 s"},
          {{Status::kTimeout, kAnyTeamRank, window, 8, 0, 6},
           "timed out: any rank, waited 120.000 s for the word at " + hex(window) + " to be < 8"},
          {{Status::kRemoteInvalid, 0, heap + 8, 8, 0, 0},
           "remote invalid request: rank 0, 8 bytes at heap offset 0x8"},
          {{Status::kRemoteInvalid, 0, heap + 9, 8, 0, 0},
           "remote invalid request: rank 0, 8 bytes at heap offset 0x9: not 8-byte aligned"},
          {{kBad, 1, heap, 8, 0, 0},
           "invalid argument: rank 1, 8 bytes at heap offset 0x0: the team has 1 ranks"},
          {{kBad, 0, heap + kHeapBytes - 8, 8, 0, 0},
           "invalid argument: rank 0, 8 bytes at heap offset 0xfff8: the lane does not exist, or threads "
           "made "
           "one "
           "call with different arguments"},
          {{kBad, 0, window, 8, 0, 0},
           "invalid argument: rank 0, 8 bytes at " + hex(window) +
               ": the lane does not exist, the window came after the handle, or threads made one call with "
               "different "
               "arguments"},
          {{kBad, 0, heap + kHeapBytes - 8, 9, 0, 0},
           "invalid argument: rank 0, 9 bytes at heap offset 0xfff8: ends 1 bytes beyond that memory"},
          {{kBad, kAnyTeamRank, window + 1000, 30, 0, 0},
           "invalid argument: any rank, 30 bytes at " + hex(window + 1000) +
               ": ends 6 bytes beyond that memory"},
          {{kBad, 0, window + 1024, 4, 0, 0},
           "invalid argument: rank 0, 4 bytes at " + hex(window + 1024) +
               ": neither of the heap nor of a window"},
          {{Status::kAborted, 0, heap, 8, 0, 0}, "aborted by the host: rank 0, 8 bytes at heap offset 0x0"},
      });
  team.clear_fault();
  EXPECT_EQ(team.describe_fault(), "ok");
  ASSERT_TRUE(team.connect(0));
  *team.handle().fault = {Status::kTimeout, 0, heap + 16, 7, 0, 3};
  EXPECT_THAT(
      team.describe_fault(),
      HasSubstr("to be >= 7, now 55: that rank's NIC answers, so it is slow, or does not set the word"));
  *team.handle().fault = {Status::kTimeout, 0, 0, 0, 0, 0};
  EXPECT_EQ(team.describe_fault(),
            "timed out: rank 0, after 120.000 s: that rank's NIC answers, so GDX_CALL_TIMEOUT_S above that "
            "gives slow or large transfers the time that they need");
}

// The pools that a team makes itself, each alone.
TEST_F(LoneTeam, endpoints_have_slots_of_the_pools_that_the_options_ask_for) {
  for (const bool pushes : {false, true}) {
    for (const bool bounces : {false, true}) {
      TeamOptions options{.heap_bytes = kHeapBytes, .timeout_ns = kLongNs, .connect_all = true};
      options.world = WorldOptions{};
      if (!pushes) options.staging.reset();
      if (!bounces) options.bounce.reset();
      const Team team = must(Team::create(options));
      ASSERT_EQ(team.connections(), 1u);
      const EndpointHandle endpoint = team.endpoint(0, 0);
      EXPECT_EQ(endpoint.staging.slot_count != 0, pushes);
      EXPECT_EQ(endpoint.bounce.slot_count != 0, bounces);
    }
  }
  const TeamOptions usual{.heap_bytes = kHeapBytes, .timeout_ns = kLongNs, .world = WorldOptions{}};
  const Team holder = must(Team::create(usual));
  EXPECT_THAT(
      refusal(Team::create(usual)),
      HasSubstr("out of memory: this process has a team of Team::create already, which holds the memory of "
                "HCA gdx0 for pushes: split that team, or"));
  TeamOptions elsewhere{.heap_bytes = kHeapBytes, .timeout_ns = kLongNs};
  elsewhere.hca.name = "nosuch0";
  EXPECT_THAT(refusal(Team::create(elsewhere)), HasSubstr("nosuch0"));
}

}  // namespace team_test
}  // namespace gdx
