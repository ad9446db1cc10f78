// The CPU execution layer keeps the promises that kernels rely on.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/exec/exec.h"

namespace gdx::exec {
namespace {

__global__ void record_indices(std::vector<unsigned>* seen) {
  const unsigned block = blockIdx.x + gridDim.x * blockIdx.y;
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  ++(*seen)[block * blockDim.x * blockDim.y * blockDim.z + thread];
}

TEST(Launch, grid_of_blocks_runs_every_thread_once) {
  std::vector<unsigned> seen(3 * 2 * 5 * 4 * 2, 0);
  const LaunchConfig config{.grid = {3, 2}, .block = {5, 4, 2}, .workers = 2};
  ASSERT_EQ(launch(config, record_indices, &seen), Status::kOk);
  EXPECT_EQ(seen, std::vector<unsigned>(seen.size(), 1));
}

TEST(Launch, impossible_shape_is_refused) {
  std::vector<unsigned> seen(1);
  for (const LaunchConfig& config :
       {LaunchConfig{.grid = {0}}, LaunchConfig{.block = {0}}, LaunchConfig{.block = {kMaxBlockThreads + 1}},
        LaunchConfig{.workers = 0}}) {
    EXPECT_EQ(launch(config, record_indices, &seen), Status::kInvalidArgument);
  }
  EXPECT_EQ(seen[0], 0u);
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

template <Scope S>
__global__ void copy_range(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  copy<S>(to, from, bytes);
}

TEST(Copy, every_length_copies_exactly_that) {
  std::vector<std::byte> from(300), to;
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
  for (std::uint64_t bytes = 0; bytes <= 260; ++bytes) {
    to.assign(from.size(), std::byte{0});
    ASSERT_EQ(launch({.block = {37}}, copy_range<Scope::kBlock>, to.data(), from.data(), bytes), Status::kOk);
    std::vector<std::byte> expected(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(bytes));
    expected.resize(from.size());
    ASSERT_EQ(to, expected) << bytes;
  }
}

}  // namespace
}  // namespace gdx::exec
