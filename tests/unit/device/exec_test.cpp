// The CPU execution layer keeps the promises that kernels rely on.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <vector>

#include "device/exec/exec.h"

namespace gdx::exec {
namespace exec_test {

__global__ void record_indices(std::vector<unsigned>* seen) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  const unsigned lane = thread % kWarpThreads;
  const bool ranked = thread_rank<Scope::kBlock>() == thread && thread_rank<Scope::kWarp>() == lane &&
                      thread_rank<Scope::kThread>() == 0;
  const bool counted = thread_count<Scope::kBlock>() == threads &&
                       thread_count<Scope::kWarp>() == std::min(kWarpThreads, threads - (thread - lane)) &&
                       thread_count<Scope::kThread>() == 1;
  if (ranked && counted) ++(*seen)[block * threads + thread];
}

TEST(Launch, grid_of_blocks_runs_every_thread_once) {
  for (const unsigned workers : {1u, 2u, 5u, 40u}) {
    std::vector<unsigned> seen(3 * 2 * 5 * 5 * 4 * 2, 0);
    const LaunchConfig config{.grid = {3, 2, 5}, .block = {5, 4, 2}, .workers = workers};
    ASSERT_EQ(launch(config, record_indices, &seen), Status::kOk);
    EXPECT_EQ(seen, std::vector<unsigned>(seen.size(), 1));
  }
}

TEST(Launch, largest_block_and_most_shared_memory_run) {
  std::vector<unsigned> seen(kMaxBlockThreads, 0);
  ASSERT_EQ(launch({.block = {8, 16, 8}}, record_indices, &seen), Status::kOk);
  EXPECT_EQ(seen, std::vector<unsigned>(kMaxBlockThreads, 1));
  std::atomic<unsigned> ran{0};
  const auto run = [&](std::uint32_t bytes) {
    return run_grid({.grid = {2}, .block = {2}, .shared_bytes = bytes}, [&] {
      std::byte* const shared = dynamic_shared();
      ASSERT_EQ(shared == nullptr, bytes == 0);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(shared) % kSharedAlignment, 0u);
      if (threadIdx.x == 0) {
        EXPECT_EQ(std::count(shared, shared + bytes, std::byte{0xff}), std::ptrdiff_t{bytes}) << "no zeros";
        std::fill(shared, shared + bytes, std::byte(blockIdx.x));
      }
      sync_block();
      EXPECT_EQ(std::count(shared, shared + bytes, std::byte(blockIdx.x)), std::ptrdiff_t{bytes});
      ++ran;
    });
  };
  EXPECT_EQ(run(0), Status::kOk);
  EXPECT_EQ(run(kMaxSharedBytes), Status::kOk);
  EXPECT_EQ(ran.load(), 8u);
  EXPECT_EQ(run(kMaxSharedBytes + 1), Status::kInvalidArgument);
  EXPECT_EQ(ran.load(), 8u);
}

TEST(Launch, impossible_shape_is_refused) {
  std::vector<unsigned> seen(1);
  for (const LaunchConfig& config :
       {LaunchConfig{.grid = {0}}, LaunchConfig{.grid = {1, 0}}, LaunchConfig{.grid = {1, 1, 0}},
        LaunchConfig{.block = {0}}, LaunchConfig{.block = {1, 1, 0}},
        LaunchConfig{.block = {kMaxBlockThreads + 1}}, LaunchConfig{.block = {32, 33}},
        LaunchConfig{.block = {1, 1, kMaxBlockThreads + 1}}, LaunchConfig{.workers = 0}}) {
    EXPECT_EQ(launch(config, record_indices, &seen), Status::kInvalidArgument);
  }
  EXPECT_EQ(seen[0], 0u);
}

// Outside a grid, and after one, time is the machine's and nothing waits.
TEST(Launch, leaves_nothing_to_the_host_thread) {
  std::uint64_t inside = 0;
  const auto body = [&] { inside = now_ns(); };
  ASSERT_EQ(run_grid({.clock = [] { return std::uint64_t{5}; }}, body), Status::kOk);
  EXPECT_EQ(inside, 5u);
  timespec before{};
  ASSERT_EQ(clock_gettime(CLOCK_MONOTONIC, &before), 0);
  const std::uint64_t now = now_ns();
  timespec after{};
  ASSERT_EQ(clock_gettime(CLOCK_MONOTONIC, &after), 0);
  const auto ns = [](const timespec& at) {
    return static_cast<std::uint64_t>(at.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(at.tv_nsec);
  };
  EXPECT_LE(ns(before), now);
  EXPECT_LE(now, ns(after));
  EXPECT_EQ(nic_stores, nullptr);
  wake_nic();
  for (int i = 0; i < 200; ++i) pause_now_and_then();
}

// Thread t writes cell t, all meet, thread t reads its neighbour's: right only if the barrier is one.
__global__ void rotate(std::vector<unsigned>* cells, std::vector<unsigned>* out, unsigned rounds) {
  const unsigned n = blockDim.x;
  for (unsigned round = 0; round < rounds; ++round) {
    (*cells)[threadIdx.x] = round * n + threadIdx.x;
    __syncthreads();
    (*out)[threadIdx.x] = (*cells)[(threadIdx.x + 1) % n];
    __syncthreads();
    if ((*out)[threadIdx.x] != round * n + (threadIdx.x + 1) % n) return;
  }
}

TEST(BlockBarrier, many_rounds_order_every_thread) {
  constexpr unsigned kThreads = 77;
  std::vector<unsigned> cells(kThreads), out(kThreads);
  ASSERT_EQ(launch({.block = {kThreads}}, rotate, &cells, &out, 50u), Status::kOk);
  for (unsigned t = 0; t < kThreads; ++t) EXPECT_EQ(out[t], 49 * kThreads + (t + 1) % kThreads);
}

template <Scope S>
__global__ void elect(std::vector<unsigned>* out) {
  const unsigned mine = 1000 + threadIdx.x;
  (*out)[threadIdx.x] = broadcast<S>(mine);
}

TEST(Broadcast, warps_with_a_short_last_one_take_their_own_leader) {
  std::vector<unsigned> out(70);
  ASSERT_EQ(launch({.block = {70}}, elect<Scope::kWarp>, &out), Status::kOk);
  for (unsigned t = 0; t < out.size(); ++t) EXPECT_EQ(out[t], 1000 + t / kWarpThreads * kWarpThreads);
}

TEST(Broadcast, block_takes_thread_zero) {
  std::vector<unsigned> out(70);
  ASSERT_EQ(launch({.block = {70}}, elect<Scope::kBlock>, &out), Status::kOk);
  EXPECT_EQ(out, std::vector<unsigned>(70, 1000));
}

template <Scope S>
__global__ void exchange_often(std::vector<unsigned>* wrong) {
  const unsigned group = S == Scope::kWarp ? threadIdx.x / kWarpThreads : 0;
  for (unsigned round = 0; round < 50; ++round) {
    (*wrong)[threadIdx.x] += broadcast<S>(1000 * round + threadIdx.x) != 1000 * round + group * kWarpThreads;
  }
}

TEST(Broadcast, each_of_many_in_a_row_takes_its_own_value) {
  std::vector<unsigned> wrong(70);
  ASSERT_EQ(launch({.block = {70}}, exchange_often<Scope::kWarp>, &wrong), Status::kOk);
  ASSERT_EQ(launch({.block = {70}}, exchange_often<Scope::kBlock>, &wrong), Status::kOk);
  EXPECT_EQ(wrong, std::vector<unsigned>(70, 0));
}

// In every third round one thread of each warp votes, another in each.
__global__ void vote_often(std::vector<unsigned>* wrong) {
  for (unsigned round = 0; round < 60; ++round) {
    const unsigned voter = round / 3 % warp_size();
    const bool found = any<Scope::kWarp>(round % 3 == 0 && threadIdx.x % kWarpThreads == voter);
    (*wrong)[threadIdx.x] += found != (round % 3 == 0);
  }
}

TEST(Vote, a_vote_is_not_seen_by_the_votes_after_it) {
  std::vector<unsigned> wrong(70);
  ASSERT_EQ(launch({.block = {70}}, vote_often, &wrong), Status::kOk);
  EXPECT_EQ(wrong, std::vector<unsigned>(70, 0));
}

// Every thread fills its cell, and the next without waiting; rank 0 reads all cells of each round.
template <Scope S>
__global__ void fill_for_leader(std::vector<unsigned>* cells, std::vector<unsigned>* wrong) {
  constexpr unsigned kRounds = 3;
  const unsigned first = threadIdx.x - thread_rank<S>();
  for (unsigned again = 1; again <= 20; ++again) {
    for (unsigned round = 0; round < kRounds; ++round) {
      for (unsigned turn = 0; turn < threadIdx.x % 3; ++turn) relax();
      (*cells)[round * blockDim.x + threadIdx.x] = again;
      gather<S>();
      if (thread_rank<S>() != 0) continue;
      for (unsigned t = 0; t < thread_count<S>(); ++t) {
        (*wrong)[threadIdx.x] += (*cells)[round * blockDim.x + first + t] != again;
      }
    }
    sync<S>();
  }
}

TEST(Gather, rank_zero_sees_what_all_did_and_others_do_not_wait) {
  std::vector<unsigned> cells(3 * 70), wrong(70);
  ASSERT_EQ(launch({.block = {70}}, fill_for_leader<Scope::kWarp>, &cells, &wrong), Status::kOk);
  ASSERT_EQ(launch({.block = {70}}, fill_for_leader<Scope::kBlock>, &cells, &wrong), Status::kOk);
  EXPECT_EQ(wrong, std::vector<unsigned>(70, 0));
}

// Every third thread returns, before or amid the calls of the others; the leaders stay.
template <Scope S>
__global__ void meet_after_some_left(std::vector<unsigned>* out) {
  const unsigned rank = thread_rank<S>();
  const unsigned group = threadIdx.x - rank;
  if (rank % 6 == 1) return;
  sync<S>();
  gather<S>();
  if (rank % 6 == 4) return;
  gather<S>();
  sync<S>();
  unsigned& mine = (*out)[threadIdx.x];
  mine = broadcast<S>(1000 + group);
  if constexpr (S == Scope::kWarp) mine += any<S>(rank == 3) ? shuffle<S>(1 + group) : 0;
}

template <Scope S>
void expect_to_meet_after_some_left() {
  std::vector<unsigned> out(70), expected(70);
  ASSERT_EQ(launch({.block = {70}}, meet_after_some_left<S>, &out), Status::kOk);
  for (unsigned t = 0; t < expected.size(); ++t) {
    const unsigned rank = S == Scope::kWarp ? t % kWarpThreads : t;
    if (rank % 3 != 1) expected[t] = S == Scope::kWarp ? 1001 + 2 * (t - rank) : 1000;
  }
  EXPECT_EQ(out, expected);
}

TEST(Barriers, of_warps_and_blocks_do_not_wait_for_threads_that_returned) {
  expect_to_meet_after_some_left<Scope::kWarp>();
  expect_to_meet_after_some_left<Scope::kBlock>();
}

__global__ void gather_alone(unsigned* seen) {
  if (threadIdx.x == 0) gather<Scope::kBlock>();
  if (threadIdx.x != 0) __syncthreads();
  ++*seen;
}

TEST(Gather, divergent_threads_end_the_launch_as_an_error) {
  unsigned seen = 0;
  EXPECT_EQ(launch({.block = {8}}, gather_alone, &seen), Status::kSystem);
  EXPECT_EQ(seen, 0u);
}

__global__ void diverge_in_block(unsigned bad, unsigned* reached) {
  if (blockIdx.x != bad) return;
  if (threadIdx.x == 0) {
    __syncthreads();
  } else {
    __syncwarp();
  }
  ++*reached;
}

TEST(BlockBarrier, divergent_threads_of_any_worker_end_the_launch_as_an_error) {
  for (const unsigned bad : {0u, 1u, 2u}) {
    unsigned reached = 0;
    EXPECT_EQ(launch({.grid = {3}, .block = {2}, .workers = 3}, diverge_in_block, bad, &reached),
              Status::kSystem);
    EXPECT_EQ(reached, 0u);
  }
}

std::uint64_t arrivals = 0;
int deliver() {
  std::atomic_ref<std::uint64_t>(arrivals).fetch_add(1);
  return 1;
}

__global__ void wait_for_arrivals(std::uint64_t wanted) {
  while (load_acquire(&arrivals) < wanted) relax();
}

TEST(Relax, waiting_threads_let_progress_run) {
  arrivals = 0;
  ASSERT_EQ(launch({.block = {40}, .progress = deliver}, wait_for_arrivals, std::uint64_t{10}), Status::kOk);
  EXPECT_GE(arrivals, 10u);
}

// Threads of the first warp turn meanwhile, until the second has met or its turns are used up.
template <typename Meet>
bool meets_alone(Meet meet) {
  constexpr unsigned kTurns = 1000;
  std::uint32_t met = 0;
  std::vector<unsigned> turns(2 * kWarpThreads);
  const auto kernel = [&] {
    if (threadIdx.x >= kWarpThreads) {
      meet();
      if (threadIdx.x == kWarpThreads) publish(&met, 1);
      return;
    }
    while (load_counter(&met) == 0 && turns[threadIdx.x] < kTurns) {
      ++turns[threadIdx.x];
      relax();
    }
  };
  EXPECT_EQ(run_grid({.block = {2 * kWarpThreads}}, kernel), Status::kOk);
  return *std::max_element(turns.begin(), turns.end()) < kTurns;
}

TEST(Barriers, of_a_warp_wait_for_no_other_warp) {
  EXPECT_TRUE(meets_alone([] { sync<Scope::kWarp>(); }));
  EXPECT_TRUE(meets_alone([] { gather<Scope::kWarp>(); }));
  EXPECT_TRUE(meets_alone([] { gather<Scope::kWarp>(true); }));
  EXPECT_TRUE(meets_alone([] { EXPECT_EQ(broadcast<Scope::kWarp>(threadIdx.x), 32u); }));
  EXPECT_TRUE(meets_alone([] { EXPECT_EQ(shuffle<Scope::kWarp>(threadIdx.x), 32u); }));
  EXPECT_TRUE(meets_alone([] { EXPECT_TRUE(any<Scope::kWarp>(threadIdx.x == 63)); }));
  EXPECT_TRUE(meets_alone([] {
    if (threadIdx.x % 2 == 1) sync_warp(0xaaaaaaaau);
  }));
  EXPECT_TRUE(meets_alone([] {
    const Lanes odd = lanes_with(threadIdx.x % 2 == 1);
    EXPECT_EQ(odd.count, 16u);
    EXPECT_EQ(odd.before, threadIdx.x % kWarpThreads / 2);
  }));
}

// An idle NIC serves the first doorbell at once, and a later one when all wait.
TEST(Doorbell, second_one_is_served_only_when_all_wait) {
  static std::atomic<unsigned> served{0};
  served = 0;
  std::uint64_t doorbell = 0;
  std::vector<unsigned> seen;
  const auto ring_and_look = [&] {
    if (threadIdx.x == 0) store_doorbell(&doorbell, 1);
    for (int i = 0; i < 3; ++i) sync_block();
    if (threadIdx.x == 0) seen.push_back(served.load());
  };
  const auto kernel = [&] {
    ring_and_look();
    ring_and_look();
    for (int turn = 0; turn < 2; ++turn) {  // the first is for the second doorbell
      relax();
      sync_block();
    }
    if (threadIdx.x == 0) seen.push_back(served.load());
    ring_and_look();
  };
  const auto serve = [] { return static_cast<int>(++served); };
  ASSERT_EQ(run_grid({.block = {2}, .progress = serve}, kernel), Status::kOk);
  EXPECT_EQ(seen, (std::vector<unsigned>{1, 1, 3, 4}));
}

TEST(Relax, every_64th_call_of_a_loop_is_a_turn) {
  static std::atomic<unsigned> turns{0};
  turns = 0;
  std::vector<unsigned> seen;
  const auto kernel = [&] {
    for (unsigned call = 1; call <= 129; ++call) {
      pause_now_and_then();
      seen.push_back(turns.load());
    }
  };
  const auto progress = [] { return static_cast<int>(++turns); };
  ASSERT_EQ(run_grid({.progress = progress}, kernel), Status::kOk);
  ASSERT_EQ(seen.size(), 129u);
  EXPECT_EQ(seen[62], 0u);
  EXPECT_EQ(seen[63], 1u);
  EXPECT_EQ(seen[126], 1u);
  EXPECT_EQ(seen[128], 2u);
}

// Kernel without a vain wait between the doorbell and the read of its result.
__global__ void ring_and_meet(std::uint64_t* doorbell, std::uint64_t* served) {
  if (threadIdx.x == 0) store_doorbell(doorbell, 1);
  __syncthreads();
  if (threadIdx.x == 0) *served = load_acquire(&arrivals);
}

TEST(Doorbell, is_served_while_threads_can_go_on) {
  arrivals = 0;
  std::uint64_t doorbell = 0;
  std::uint64_t served = 0;
  ASSERT_EQ(launch({.block = {40}, .progress = deliver}, ring_and_meet, &doorbell, &served), Status::kOk);
  EXPECT_EQ(served, 1u);
}

__global__ void meet_across_blocks(std::uint64_t* count) {
  add(count, 1);
  while (load_acquire(count) < gridDim.x) relax();
}

TEST(Relax, blocks_that_wait_for_each_other_all_run) {
  std::uint64_t count = 0;
  ASSERT_EQ(launch({.grid = {9}, .workers = 2}, meet_across_blocks, &count), Status::kOk);
  EXPECT_EQ(count, 9u);
}

// Runs of 16 B pieces, beyond the length up to which no thread divides.
template <Scope S>
void expect_exact_copies(unsigned threads) {
  constexpr std::size_t kMost = 40'000;
  constexpr std::byte kOld{0xee};
  std::vector<std::byte> from(kMost + 64);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + i / 256 + 1);
  alignas(16) static std::array<std::byte, kMost + 64> to;
  std::vector<std::uint32_t> lengths{511, 512, 513, 8191, 8192, 8193, 9471, 9472, 9473, 9488, 20'001, kMost};
  for (std::uint32_t bytes = 0; bytes < 300; bytes += bytes < 34 ? 1 : 37) lengths.push_back(bytes);
  for (const std::uint32_t bytes : lengths) {
    for (const bool fills : {false, true}) {
      to.fill(kOld);
      const auto kernel = [&] {
        if (fills) fill_slot<S>(to.data(), from.data(), bytes);
        if (!fills) copy<S>(to.data(), from.data(), bytes);
      };
      ASSERT_EQ(run_grid({.block = {threads}}, kernel), Status::kOk);
      const std::size_t end = fills ? (bytes + 15) / 16 * 16 : bytes;
      ASSERT_TRUE(std::equal(to.begin(), to.begin() + bytes, from.begin())) << bytes;
      ASSERT_EQ(std::count(to.begin() + bytes, to.begin() + static_cast<std::ptrdiff_t>(end), std::byte{0}),
                static_cast<std::ptrdiff_t>(end - bytes));
      ASSERT_EQ(std::count(to.begin() + static_cast<std::ptrdiff_t>(end), to.end(), kOld),
                static_cast<std::ptrdiff_t>(to.size() - end))
          << bytes;
    }
  }
}

TEST(Copy, every_length_copies_exactly_that_and_fills_whole_pieces) {
  expect_exact_copies<Scope::kThread>(1);
  expect_exact_copies<Scope::kWarp>(32);
  expect_exact_copies<Scope::kBlock>(37);
}

}  // namespace exec_test
}  // namespace gdx::exec
