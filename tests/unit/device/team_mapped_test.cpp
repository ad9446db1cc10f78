// Copies, values and signals to a mapped rank: who may see what when a call has returned.
#include <algorithm>
#include <cstring>

#include "device/endpoint.h"
#include "tests/unit/device/team_records.h"

namespace gdx::device {
namespace team_mapped_test {

template <typename Value>
void fill(std::byte* at, std::size_t bytes, Value value) {
  std::fill(at, at + bytes, static_cast<std::byte>(value));
}

// One thread spoils the source as soon as its call returns; the others must have copied their parts by then.
template <Scope S>
Status put_and_spoil(const TeamHandle& team, std::byte* at, std::size_t bytes) {
  const Status status = gdx_put<Mode::kAuto, S>(team, at, at, bytes, kMapped);
  if (exec::thread_rank<S>() == 0) fill(at, bytes, 0);
  return status;
}

TEST_F(Team, put_to_a_mapped_rank_returns_when_all_threads_have_copied) {
  for (const unsigned threads : {32u, 20u, 96u}) {
    fill(heap(), 1000, 7);
    in_kernel(
        [&](const TeamHandle& team) {
          EXPECT_EQ(threads == 96 ? put_and_spoil<Scope::kBlock>(team, heap(), 1000)
                                  : put_and_spoil<Scope::kWarp>(team, heap(), 1000),
                    Status::kOk);
        },
        threads);
    const std::byte* const there = ranks_[kMapped]->heap.data();
    EXPECT_EQ(std::count(there, there + 1000, std::byte{7}), 1000);
    fill(ranks_[kMapped]->heap.data(), 1000, 0);
  }
}

// The second block looks whenever the first lets it in. It must never find the signal before the payload.
TEST_F(Team, signal_of_a_mapped_rank_shows_all_payload_before_it) {
  constexpr std::uint64_t kRounds = 20;
  constexpr std::size_t kPayload = kHeapBytes - 64;
  for (const SignalOp op : {SignalOp::kSet, SignalOp::kAdd}) {
    handle_.atomics = TeamAtomics::kProcessor;
    handle_.copy = &copy_;
    copy_ = handle_;
    std::byte* const there = ranks_[kMapped]->heap.data();
    std::uint64_t& arrived = word_of(*ranks_[kMapped], kPayload / 8);
    arrived = 0;
    std::uint64_t answered = 0;
    std::atomic<int> wrong{0};
    const auto kernel = [&](const TeamHandle& team) {
      for (std::uint64_t round = 1; round <= kRounds && wrong == 0; ++round) {
        if (blockIdx.x == 0) {
          for (std::size_t i = threadIdx.x; i < kPayload; i += blockDim.x) heap()[i] = std::byte(round);
          const std::uint64_t value = op == SignalOp::kSet ? round : 1;
          wrong += gdx_put_signal<Mode::kAuto, Scope::kBlock>(
                       team, heap(), heap(), kPayload, word(kPayload / 8), value, op, kMapped) != Status::kOk;
          while (!gdx_test(&answered, Compare::kGreaterEqual, round) && wrong == 0) {
          }
          __syncthreads();
        } else if (threadIdx.x == 0) {
          while (!gdx_test(&arrived, Compare::kGreaterEqual, round) && wrong == 0) {
          }
          wrong +=
              std::count(there, there + kPayload, std::byte(round)) != static_cast<std::ptrdiff_t>(kPayload);
          exec::publish(&answered, round);
        }
      }
    };
    ASSERT_EQ(exec::launch({.grid = {2}, .block = {64}}, kernel, handle_), Status::kOk);
    EXPECT_EQ(wrong, 0);
  }
}

template <typename T>
T value_there(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

TEST_F(Team, values_of_every_size_arrive_whole_at_a_mapped_rank) {
  struct Wide {
    std::uint64_t of[2];
  };
  const std::byte* const there = ranks_[kMapped]->heap.data();
  in_kernel([&](const TeamHandle& team) {
    EXPECT_EQ(gdx_put_value(team, reinterpret_cast<std::uint8_t*>(heap() + 1), std::uint8_t{9}, kMapped),
              Status::kOk);
    EXPECT_EQ(
        gdx_put_value(team, reinterpret_cast<std::uint16_t*>(heap() + 3), std::uint16_t{0x0102}, kMapped),
        Status::kOk);
    EXPECT_EQ(gdx_put_value(team, reinterpret_cast<std::uint32_t*>(heap() + 8), 0x01020304u, kMapped),
              Status::kOk);
    EXPECT_EQ(gdx_put_value(team, word(2), std::uint64_t{5}, kMapped), Status::kOk);
    EXPECT_EQ(gdx_put_value(team, reinterpret_cast<Wide*>(word(4)), Wide{{6, 7}}, kMapped), Status::kOk);
  });
  EXPECT_EQ(value_there<std::uint8_t>(there + 1), 9u);
  EXPECT_EQ(value_there<std::uint8_t>(there + 2), 0u);
  EXPECT_EQ(value_there<std::uint16_t>(there + 3), 0x0102u);
  EXPECT_EQ(value_there<std::uint32_t>(there + 8), 0x01020304u);
  EXPECT_EQ(word_of(*ranks_[kMapped], 2), 5u);
  EXPECT_EQ(word_of(*ranks_[kMapped], 4), 6u);
  EXPECT_EQ(word_of(*ranks_[kMapped], 5), 7u);
  EXPECT_EQ(posted(), 0u);
}

TEST_F(Team, pointer_to_a_ranks_memory_is_of_ranks_that_loads_and_stores_reach) {
  std::uint64_t* const own = word(5);
  std::byte* const in_window = ranks_[kOwn]->window.data() + 9;
  in_kernel([&](const TeamHandle& team) {
    EXPECT_EQ(gdx_ptr(team, own, kOwn), own);
    EXPECT_EQ(gdx_ptr(team, own, kDirect), &word_of(*ranks_[kDirect], 5));
    EXPECT_EQ(gdx_ptr(team.on_lane(1), own, kMapped), &word_of(*ranks_[kMapped], 5));
    EXPECT_EQ(gdx_ptr(team, in_window, kMapped), ranks_[kMapped]->window.data() + 9);
    for (const std::uint32_t rank : {kNative, kAbsent, kSize, ~0u})
      EXPECT_EQ(gdx_ptr(team, own, rank), nullptr);
    for (const std::uint32_t rank : {kOwn, kDirect})
      EXPECT_EQ(gdx_ptr(team, heap() + kHeapBytes, rank), nullptr) << "beyond the heap";
    EXPECT_EQ(gdx_ptr(team.on_lane(2), own, kOwn), nullptr);
    EXPECT_EQ(gdx_ptr<Placement::kGpu>(team, own, kDirect), nullptr);
    *gdx_ptr(team, own, kMapped) = 7;
    EXPECT_EQ(gdx_signal_fetch(&word_of(*ranks_[kMapped], 5)), 7u);
  });
  record(0, kDirect).way = PeerWay::kGone;
  record(0, kMapped).way = PeerWay::kProxied;
  in_kernel([&](const TeamHandle& team) {
    EXPECT_EQ(gdx_ptr(team, own, kDirect), nullptr) << "gone";
    EXPECT_EQ(gdx_ptr(team, own, kMapped), &word_of(*ranks_[kMapped], 5)) << "proxied and mapped";
  });
}

}  // namespace team_mapped_test
}  // namespace gdx::device
