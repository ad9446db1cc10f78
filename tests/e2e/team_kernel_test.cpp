// Kernels of a team, as `gdx run --ranks N` starts them: every rank runs these tests in the same order.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "device/collectives/collectives.h"
#include "device/endpoint.h"
#include "device/team.h"
#include "host/calibration/mode_table.h"
#include "host/calibration/table_mode.h"
#include "host/gdx.h"
#include "tests/e2e/must.h"

namespace gdx {
namespace team_kernel_test {

constexpr std::uint32_t kBlockThreads = 64;

// Ways of a whole team, by the options of its ranks.
enum class Ways { kNic, kDirect, kMixed };

Team make_team(Ways ways, TeamOptions options = {}) {
  options.heap_bytes = 8 << 20;
  options.timeout_ns = 200'000'000'000;  // of collective calls, so that a rank may stand still for long
  const auto world = must(WorldOptions::from_environment());
  const bool off = ways == Ways::kNic || (ways == Ways::kMixed && world.rank == 0);
  options.direct = off ? DirectChoice::kOff : DirectChoice::kAuto;
  return must(Team::create(options));
}

class TeamKernels : public ::testing::TestWithParam<Ways> {};
INSTANTIATE_TEST_SUITE_P(By, TeamKernels, ::testing::Values(Ways::kNic, Ways::kDirect, Ways::kMixed),
                         [](const auto& test) {
                           switch (test.param) {
                             case Ways::kNic: return "nic";
                             case Ways::kDirect: return "direct";
                             case Ways::kMixed: return "mixed";
                           }
                           return "";
                         });

constexpr std::uint64_t word_from(std::uint32_t rank, std::uint32_t round, std::size_t i) {
  return (rank + 1) * 0x9e3779b97f4a7c15u + round * 0x100000001b3u + i;
}

// Puts a piece to every rank, and waits for theirs; a round's signal counts all ranks' pieces.
template <Scope S, Mode M>
Status exchange(const TeamHandle& team, std::uint64_t* inbox, std::uint64_t* outbox, std::uint64_t* arrived,
                std::size_t words, std::uint32_t round) {
  for (std::size_t i = exec::thread_rank<S>(); i < words; i += exec::thread_count<S>())
    outbox[i] = word_from(team.rank, round, i);
  exec::sync<S>();
  Status status = Status::kOk;
  for (std::uint32_t k = 0; k < team.size && status == Status::kOk; ++k) {
    const std::uint32_t rank = (team.rank + k) % team.size;
    status = gdx_put_signal<M, S>(team, inbox + team.rank * words, outbox, words * sizeof(std::uint64_t),
                                  arrived, 1, SignalOp::kAdd, rank);
  }
  if (status == Status::kOk) status = gdx_quiet<S>(team);
  if (status == Status::kOk) {
    status = gdx_wait<S>(team, arrived, Compare::kGreaterEqual, std::uint64_t{team.size} * (round + 1));
  }
  return status;
}

template <Scope S, Mode M>
void expect_exchange(Team& team, std::uint32_t round, std::size_t words, std::uint64_t* memory) {
  std::uint64_t* const arrived = memory;
  std::uint64_t* const outbox = memory + 8;
  std::uint64_t* const inbox = outbox + words;
  Status status = Status::kPending;
  const auto kernel = [&](const TeamHandle& handle) {
    const Status mine = exchange<S, M>(handle, inbox, outbox, arrived, words, round);
    if (exec::thread_rank<Scope::kBlock>() == 0) status = mine;
  };
  const unsigned threads = S == Scope::kThread ? 1 : S == Scope::kWarp ? 32 : kBlockThreads;
  must(exec::launch({.block = {threads}}, kernel, team.handle()) == Status::kOk
           ? Result<void>{}
           : fail(Status::kSystem, "the launch failed"));
  EXPECT_EQ(status, Status::kOk) << team.describe_fault();
  for (std::uint32_t rank = 0; rank < team.size(); ++rank) {
    for (std::size_t i = 0; i < words; ++i)
      ASSERT_EQ(inbox[rank * words + i], word_from(rank, round, i)) << "of rank " << rank << ", word " << i;
  }
  must(team.barrier());  // inboxes are read before the next round writes them
}

TEST_P(TeamKernels, pieces_and_signals_of_every_scope_and_mode_arrive) {
  Team team = make_team(GetParam());
  auto* const memory = must(team.allocate<std::uint64_t>(8 + (team.size() + 1) * 5000));
  std::uint32_t round = 0;
  for (const std::size_t words : {std::size_t{1}, std::size_t{5000}}) {
    expect_exchange<Scope::kThread, Mode::kPull>(team, round++, words, memory);
    expect_exchange<Scope::kThread, Mode::kAuto>(team, round++, words, memory);
    expect_exchange<Scope::kWarp, Mode::kPush>(team, round++, words, memory);
    expect_exchange<Scope::kBlock, Mode::kBounce>(team, round++, words, memory);
    const std::size_t fit = std::min(words, kMaxInlinePutBytes / sizeof(std::uint64_t));
    expect_exchange<Scope::kBlock, Mode::kInline>(team, round++, fit, memory);
  }
  EXPECT_EQ(team.describe_fault(), "ok");
}

// Nothing in the kernel waits: the host's barrier does, and so does the end of a team.
TEST_P(TeamKernels, barrier_completes_what_finished_kernels_had_posted) {
  constexpr std::size_t kWords = 120'000;
  constexpr std::uint32_t kPieces = 4;
  Team team = make_team(GetParam());
  const std::uint32_t next = (team.rank() + 1) % team.size();
  const std::uint32_t before = (team.rank() + team.size() - 1) % team.size();
  auto* const from = must(team.allocate<std::uint64_t>(kWords));
  auto* const to = must(team.allocate<std::uint64_t>(kWords * kPieces));
  must(team.connect(next));
  for (std::size_t i = 0; i < kWords; ++i) from[i] = word_from(team.rank(), 0, i);
  Status status = Status::kOk;
  const auto kernel = [&](const TeamHandle& handle) {
    for (std::uint32_t piece = 0; piece < kPieces && status == Status::kOk; ++piece)
      status = gdx_put(handle, to + piece * kWords, from, kWords * sizeof *from, next);
  };
  must(exec::launch({.block = {1}}, kernel, team.handle()) == Status::kOk
           ? Result<void>{}
           : fail(Status::kSystem, "the launch failed"));
  EXPECT_EQ(status, Status::kOk) << team.describe_fault();
  must(team.barrier());
  for (std::size_t i = 0; i < kWords * kPieces; ++i)
    ASSERT_EQ(to[i], word_from(before, 0, i % kWords)) << "word " << i;
}

TEST_P(TeamKernels, lane_that_does_not_exist_and_a_closed_team_are_refused_at_once) {
  Team team = make_team(GetParam());
  auto* const memory = must(team.allocate<std::uint64_t>(16));
  must(team.connect(0));
  std::vector<Status> answers;
  const auto kernel = [&](const TeamHandle& handle) {
    answers = {gdx_wait(handle, memory, Compare::kEqual, 1), gdx_put(handle, memory, memory + 8, 8, 0),
               gdx_signal(handle, memory, 1, SignalOp::kAdd, 0)};
  };
  const auto divide = [&](const TeamHandle& handle) {
    answers = {gdx_put(handle, memory, memory + 8, 8, (handle.rank + 1) % handle.size),
               gdx_wait_any(handle, memory, nullptr, 1, Compare::kEqual, 1, nullptr), gdx_barrier(handle)};
  };
  const auto refused_by = [&](const auto& calls, const TeamHandle& handle) {
    must(exec::launch({.block = {1}}, calls, handle) == Status::kOk
             ? Result<void>{}
             : fail(Status::kSystem, "the launch failed"));
    EXPECT_EQ(answers, std::vector<Status>(3, Status::kInvalidArgument));
  };
  const TeamHandle handle = team.handle();
  refused_by(kernel, handle.on_lane(1));
  must(team.close());
  refused_by(kernel, handle);
  refused_by(divide, team.handle());
}

// A child by fork has copies of queues that no HCA reads, so a post there would be lost.
TEST_P(TeamKernels, forked_childs_launches_and_kernels_are_refused) {
  Team team = make_team(GetParam());
  auto* const memory = must(team.allocate<std::uint64_t>(16));
  const std::uint32_t next = (team.rank() + 1) % team.size();
  must(team.connect(next));
  const TeamHandle handle = team.handle();
  const EndpointHandle endpoint = team.endpoint(0, next);
  exec::Stream stream = nullptr;
  ASSERT_EQ(exec::create_stream(&stream), Status::kOk);
  std::vector<Status> answers;
  const auto kernel = [&] {
    answers = {gdx_put(handle, memory + 8, memory, 8, next),
               gdx_signal(handle, memory, 1, SignalOp::kAdd, next)};
    if (endpoint.layout_version == 0) return;  // mapped ranks have none
    const device::SharedEndpoint<Scope::kThread> queue(endpoint);
    answers.push_back(queue.status() == Status::kNotConnected ? Status::kInvalidArgument : Status::kOk);
  };
  const pid_t child = fork();
  if (child == 0) {
    const Status launched = exec::launch({.block = {1}}, kernel);
    answers.push_back(launched == Status::kOk ? Status::kInvalidArgument : launched);
    answers.push_back(exec::launch(
        {.block = {1}}, [](const TeamHandle& /*team*/) {}, handle));
    answers.push_back(exec::launch_async({.block = {1}, .stream = stream}, [] {}));
    exec::destroy_stream(stream);
    const auto wrong = std::find_if(answers.begin(), answers.end(),
                                    [](Status each) { return each != Status::kInvalidArgument; });
    _exit(wrong == answers.end() ? 0 : 1 + static_cast<int>(wrong - answers.begin()));
  }
  int ended = 0;
  ASSERT_EQ(waitpid(child, &ended, 0), child);
  EXPECT_EQ(ended, 0) << "number of the answer that was no refusal: " << WEXITSTATUS(ended);
  exec::destroy_stream(stream);
  must(team.barrier());
}

// Only the leader's arguments would count, and the other lanes' puts be lost.
TEST_P(TeamKernels, lanes_that_give_different_arguments_are_refused_by_the_name_of_the_call) {
  Team team = make_team(GetParam());
  const std::uint32_t next = (team.rank() + 1) % team.size();
  auto* const from = must(team.allocate<std::uint64_t>(32));
  auto* const to = must(team.allocate<std::uint64_t>(32));
  std::fill_n(from, 32, 7);
  std::vector<Status> ends(32, Status::kPending);
  const auto run = [&](std::uint32_t stride) {
    const auto kernel = [&](const TeamHandle& handle) {
      const std::uint32_t lane = threadIdx.x;
      ends[lane] =
          gdx_put<Mode::kAuto, Scope::kWarp>(handle, to + lane * stride, from + lane * stride, 8, next);
    };
    ::testing::internal::CaptureStderr();
    const Status launched = exec::launch({.block = {32}}, kernel, team.handle());
    std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(launched, Status::kOk);
    return said;
  };
  EXPECT_NE(run(1).find("gdx: gdx_put: thread 1 of block 0 calls gdx_put with other arguments than thread 0"),
            std::string::npos);
  EXPECT_EQ(ends, std::vector<Status>(32, Status::kInvalidArgument));
  EXPECT_NE(team.describe_fault().find(": threads made one call with different arguments"), std::string::npos)
      << team.describe_fault();
  must(team.barrier());
  EXPECT_EQ(std::count(to, to + 32, 0u), 32) << "nothing was sent";
  must(team.barrier());
  EXPECT_EQ(run(0), "");
  EXPECT_EQ(ends, std::vector<Status>(32, Status::kOk)) << team.describe_fault();
  must(team.barrier());
  EXPECT_EQ(to[0], 7u);
}

// The last rank adds to its own word, the first to the same, and no add is lost. Where ways are mixed, the
// one could by a processor, and the other only by the NIC. The HCA runs on a thread of its own, beside the
// kernel.
TEST_P(TeamKernels, adds_of_a_local_and_a_remote_rank_are_all_counted) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr std::uint64_t kEach = 5'000;
#else
  constexpr std::uint64_t kEach = 100'000;
#endif
  constexpr std::uint32_t kThreads = 32;
  Team team = make_team(GetParam());
  if (team.size() < 2) return;
  auto* const memory = must(team.allocate<std::uint64_t>(16));
  auto* const steps = memory + 8;  // of the other rank
  Status status = Status::kOk;
  const auto kernel = [&](const TeamHandle& handle) {
    const std::uint32_t other = handle.rank == 0 ? handle.size - 1 : 0;
    Status mine = Status::kOk;
    for (std::uint64_t i = threadIdx.x; i < kEach && mine == Status::kOk; i += kThreads) {
      const std::uint64_t step = i / kThreads;
      if (step % 32 == 0) {  // together, or the faster rank would be done before the other has begun
        if (threadIdx.x == 0) mine = gdx_signal(handle, steps, step, SignalOp::kSet, other);
        if (mine == Status::kOk) mine = gdx_wait(handle, steps, Compare::kGreaterEqual, step, other);
      }
      if (mine == Status::kOk) mine = gdx_signal(handle, memory, 1, SignalOp::kAdd, handle.size - 1);
    }
    if (mine == Status::kOk) mine = gdx_flush(handle, handle.size - 1);
    if (mine != Status::kOk) status = mine;
  };
  const bool is_last = team.rank() == team.size() - 1;
  if (team.rank() == 0 || is_last) {
    must(exec::launch({.block = {kThreads}, .progress = [] { return 0; }}, kernel, team.handle()) ==
                 Status::kOk
             ? Result<void>{}
             : fail(Status::kSystem, "the launch failed"));
  }
  EXPECT_EQ(status, Status::kOk) << team.describe_fault();
  must(team.barrier());
  if (is_last) {
    EXPECT_EQ(*memory, 2 * kEach);
  }
  must(team.barrier());
}

// Atomics by any thread of any rank hand out each number once; a compare-and-swap has one winner a round.
TEST_P(TeamKernels, fetched_numbers_are_unique_and_swaps_have_one_winner) {
  constexpr std::uint32_t kThreads = 32;
  constexpr std::uint32_t kRounds = 10;
  Team team = make_team(GetParam());
  auto* const words = must(team.allocate<std::uint64_t>(2 + 2 * kThreads));
  auto* const results = words + 2;
  std::vector<std::uint64_t> fetched;
  std::uint64_t won = 0;
  Status status = Status::kOk;
  const auto kernel = [&](const TeamHandle& handle) {
    Status mine = gdx_fetch_add(handle, results + threadIdx.x, words, 1, 0);
    for (std::uint32_t round = 0; round < kRounds && mine == Status::kOk; ++round) {
      mine = gdx_compare_swap(handle, results + kThreads + threadIdx.x, words + 1, round, round + 1, 0);
      if (mine == Status::kOk) mine = gdx_flush(handle, 0);
      if (results[kThreads + threadIdx.x] == round) exec::add(&won, 1);
      if (results[kThreads + threadIdx.x] < round) --round;  // another rank is behind
    }
    if (mine != Status::kOk) status = mine;
  };
  must(exec::launch({.block = {kThreads}}, kernel, team.handle()) == Status::kOk
           ? Result<void>{}
           : fail(Status::kSystem, "the launch failed"));
  EXPECT_EQ(status, Status::kOk) << team.describe_fault();
  must(team.barrier());
  if (team.rank() == 0) {
    EXPECT_EQ(words[0], std::uint64_t{team.size()} * kThreads);
    EXPECT_EQ(words[1], kRounds);
  }
  *words = won;
  auto* const all = must(team.allocate<std::uint64_t>(team.size()));
  const auto tell = [&](const TeamHandle& handle) {
    for (std::uint32_t rank = 0; rank < handle.size; ++rank)
      if (gdx_put_value(handle, all + handle.rank, won, rank) != Status::kOk) status = Status::kSystem;
    if (gdx_quiet(handle) != Status::kOk) status = Status::kSystem;
  };
  must(exec::launch({}, tell, team.handle()) == Status::kOk ? Result<void>{}
                                                            : fail(Status::kSystem, "the launch failed"));
  EXPECT_EQ(status, Status::kOk) << team.describe_fault();
  must(team.barrier());
  std::uint64_t sum = 0;
  for (std::uint32_t rank = 0; rank < team.size(); ++rank) sum += all[rank];
  EXPECT_EQ(sum, kRounds);
  must(team.barrier());
}

// The pool has 32 slots of 4 KiB, and every endpoint pushes three of them at a time.
TEST(TeamPushes, of_more_endpoints_than_slots_share_one_pool) {
  constexpr std::uint32_t kEndpoints = 64;
  constexpr std::size_t kWords = 3 * 4096 / 8 - 5;
  const auto world = must(WorldOptions::from_environment());
  const std::uint32_t lanes = kEndpoints / world.size;
  Team team = make_team(Ways::kNic, {.lanes = lanes, .bounce = std::nullopt});
  auto* const arrived = must(team.allocate<std::uint64_t>(lanes));
  auto* const outbox = must(team.allocate<std::uint64_t>(kWords));
  auto* const inbox = must(team.allocate<std::uint64_t>(kEndpoints * kWords));
  for (std::size_t i = 0; i < kWords; ++i) outbox[i] = word_from(team.rank(), 7, i);
  std::vector<Status> ends(lanes, Status::kPending);
  const auto kernel = [&](const TeamHandle& handle) {
    const TeamHandle lane = handle.on_lane(blockIdx.x);
    Status status = Status::kOk;
    for (std::uint32_t k = 0; k < lane.size && status == Status::kOk; ++k) {
      const std::uint32_t rank = (lane.rank + k) % lane.size;
      status = gdx_put_signal<Mode::kPush, Scope::kWarp>(
          lane, inbox + (blockIdx.x * lane.size + lane.rank) * kWords, outbox, kWords * sizeof(std::uint64_t),
          arrived + blockIdx.x, 1, SignalOp::kAdd, rank);
    }
    if (status == Status::kOk)
      status = gdx_wait<Scope::kWarp>(lane, arrived + blockIdx.x, Compare::kEqual, lane.size);
    if (threadIdx.x == 0) ends[blockIdx.x] = status;
  };
  must(exec::launch({.grid = {lanes}, .block = {32}}, kernel, team.handle()) == Status::kOk
           ? Result<void>{}
           : fail(Status::kSystem, "the launch failed"));
  for (const Status end : ends) EXPECT_EQ(end, Status::kOk) << team.describe_fault();
  for (std::uint32_t box = 0; box < lanes * team.size(); ++box) {
    for (std::size_t i = 0; i < kWords; ++i)
      ASSERT_EQ(inbox[box * kWords + i], word_from(box % team.size(), 7, i))
          << "box " << box << ", word " << i;
  }
  const Hca hca = must(Hca::open());
  EXPECT_EQ(must(hca.counter("softhca_staging_violations")), 0u);
  must(team.barrier());
}

// Sends one message, and returns the mode by which it went: which pool filled slots, and whether the HCA read
// payload.
TableMode mode_taken(Team& team, const Hca& hca, std::byte* to, const std::byte* from, std::size_t bytes) {
  const std::uint32_t rank = (team.rank() + 1) % team.size();
  const SharedState& state = team.endpoint(0, rank).state->shared;
  const auto filled = [](const SharedCredits& credits) { return static_cast<std::uint32_t>(credits.use); };
  const std::uint32_t pushed = filled(state.staging);
  const std::uint32_t bounced = filled(state.bounce);
  const std::uint64_t reads = must(hca.counter("softhca_pcie_payload_reads"));
  Status status = Status::kPending;
  const auto kernel = [&](const TeamHandle& handle) {
    status = gdx_put(handle, to, from, bytes, rank);
    if (status == Status::kOk) status = gdx_flush(handle, rank);
  };
  must(exec::launch({}, kernel, team.handle()) == Status::kOk ? Result<void>{}
                                                              : fail(Status::kSystem, "the launch failed"));
  EXPECT_EQ(status, Status::kOk) << team.describe_fault();
  if (filled(state.staging) != pushed) return TableMode::kPush;
  if (filled(state.bounce) != bounced) return TableMode::kBounce;
  return must(hca.counter("softhca_pcie_payload_reads")) != reads ? TableMode::kPull : TableMode::kInline;
}

TEST(TeamModes, of_auto_are_those_of_the_path) {
  constexpr std::size_t kMostBytes = 256 << 10;
  const Hca hca = must(Hca::open());
  for (const PathClass path : kPathClasses) {
    Team team = make_team(
        Ways::kNic, {.endpoint = {.slot_count = 16, .bounce_slot_count = 16, .auto_modes = {.path = path}},
                     .connect_all = true});
    auto* const memory = must(team.allocate<std::byte>(2 * kMostBytes));
    const ModeTable table =
        default_mode_table(path, Placement::kHost, {.push = true, .bounce = true}, DoorbellKind::kPlain);
    std::string line = std::string(name(path)) + ':';
    for (const std::size_t bytes : {std::size_t{8}, std::size_t{4096}, kMostBytes}) {
      const TableMode taken = mode_taken(team, hca, memory + kMostBytes, memory, bytes);
      const TableMode wanted = bytes <= std::min<std::uint64_t>(table.inline_bytes, kSharedInlineBytes)
                                   ? TableMode::kInline
                               : bytes <= table.push_bytes ? TableMode::kPush
                               : bytes <= table.pull_bytes ? TableMode::kPull
                                                           : TableMode::kBounce;
      EXPECT_EQ(taken, wanted) << name(path) << ", " << bytes << " B";
      line += (line.back() == ':' ? " " : ", ") + std::to_string(bytes) + " B " +
              std::string(kTableModeNames[static_cast<std::size_t>(taken)]);
      // Ranks that share an HCA share its counters, so all send messages of one size at a time.
      must(team.barrier());
    }
    if (team.rank() == 0) std::printf("%s\n", line.c_str());
  }
}

}  // namespace team_kernel_test
}  // namespace gdx
