// Kernels written with CUDA's own names do on this layer what they do on a GPU. As part of device_test_cuda
// they are compared with a GPU's results.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "perf/machine.h"
#include "tests/unit/device/cuda_names_kernels.h"

namespace gdx::cuda_names_tests {
namespace cuda_names_test {

// Zeroed memory that host and kernels reach.
template <typename T>
class Array {
 public:
  explicit Array(std::size_t count)
      : memory_(machine::allocate(machine::Place::kHost, count * sizeof(T))), count_(count) {}
  [[nodiscard]] T* get() { return reinterpret_cast<T*>(memory_.get()); }
  T& operator[](std::size_t i) { return get()[i]; }
  T* operator->() { return get(); }
  [[nodiscard]] std::vector<T> copy() { return {get(), get() + count_}; }

 private:
  machine::Memory memory_;
  std::size_t count_;
};

class CudaNames : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = machine::unavailable();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_F(CudaNames, blocks_sum_by_shuffles_and_shared_memory) {
  constexpr unsigned kBlocks = 3;
  constexpr unsigned kThreads = 96;
  Array<unsigned> values(kBlocks * kThreads), sums(kBlocks);
  for (unsigned i = 0; i < kBlocks * kThreads; ++i) values[i] = i * i + 1;
  ASSERT_EQ(sum_blocks(kBlocks, kThreads, values.get(), sums.get()), Status::kOk);
  for (unsigned b = 0; b < kBlocks; ++b) {
    const unsigned* const first = values.get() + b * kThreads;
    EXPECT_EQ(sums[b], std::accumulate(first, first + kThreads, 0u)) << b;
  }
}

TEST_F(CudaNames, square_is_transposed_through_padded_tiles) {
  constexpr unsigned kSide = 43;
  Array<float> from(kSide * kSide), to(kSide * kSide);
  for (unsigned i = 0; i < kSide * kSide; ++i) from[i] = static_cast<float>(i + 1);
  ASSERT_EQ(transpose(kSide, from.get(), to.get()), Status::kOk);
  for (unsigned y = 0; y < kSide; ++y) {
    for (unsigned x = 0; x < kSide; ++x) ASSERT_EQ(to[x * kSide + y], from[y * kSide + x]) << x << " " << y;
  }
}

TEST_F(CudaNames, histogram_counts_every_value_once) {
  constexpr unsigned kCount = 5000;
  Array<unsigned char> values(kCount);
  Array<unsigned> bins(kBins);
  std::vector<unsigned> expected(kBins);
  for (unsigned i = 0; i < kCount; ++i) {
    values[i] = static_cast<unsigned char>(i * i % 251);
    ++expected[values[i] % kBins];
  }
  ASSERT_EQ(count(3, kCount, values.get(), bins.get()), Status::kOk);
  EXPECT_EQ(bins.copy(), expected);
}

TEST_F(CudaNames, resident_blocks_keep_their_own_static_shared_memory) {
  for (const unsigned workers : {1u, 3u}) {
    Array<Meeting> meeting(1);
    ASSERT_EQ(meet_with_shared(64, workers, meeting.get()), Status::kOk);
    EXPECT_EQ(meeting->arrived, 64 * kMeetings);
    EXPECT_EQ(meeting->wrong, 0u) << workers;
  }
}

TEST_F(CudaNames, resident_blocks_keep_their_own_dynamic_shared_memory) {
  for (const unsigned bytes : {256u, 100u * 1024 + 4}) {
    Array<Meeting> meeting(1);
    ASSERT_EQ(meet_with_dynamic_shared(6, bytes, meeting.get()), Status::kOk) << bytes;
    EXPECT_EQ(meeting->arrived, 6 * kMeetings);
    EXPECT_EQ(meeting->wrong, 0u) << bytes;
  }
}

TEST_F(CudaNames, more_shared_memory_than_a_block_can_have_is_refused) {
  Array<Meeting> meeting(1);
  EXPECT_EQ(meet_with_dynamic_shared(1, 1024 * 1024, meeting.get()), Status::kInvalidArgument);
  EXPECT_EQ(meeting->arrived, 0u);
  EXPECT_EQ(meet_with_dynamic_shared(1, 256, meeting.get()), Status::kOk);
}

TEST_F(CudaNames, shuffles_bring_the_value_of_the_lane_that_is_named) {
  Array<Exchanges> out(1);
  ASSERT_EQ(exchange(out.get()), Status::kOk);
  for (int l = 0; l < 32; ++l) {
    SCOPED_TRACE(l);
    EXPECT_EQ(out->from[l], 100 + l / 8 * 8 + 5);
    EXPECT_EQ(out->up[l], 100 + (l % 16 < 3 ? l : l - 3));
    EXPECT_EQ(out->down[l], 100 + (l < 27 ? l + 5 : l));
    EXPECT_EQ(out->swapped[l], 100 + ((l ^ 9) / 8 > l / 8 ? l : l ^ 9));
    EXPECT_EQ(out->wide[l], (static_cast<long long>(131 - l) << 33) + 1);
    EXPECT_EQ(out->single[l], static_cast<float>(100 + std::max(l - 1, 0)) + 0.5f);
    EXPECT_EQ(out->twofold[l], 100 + (l ^ 1) + 0.125);
  }
}

TEST_F(CudaNames, votes_and_shuffles_are_of_the_lanes_that_the_mask_names) {
  Array<Votes> out(1);
  ASSERT_EQ(vote(out.get()), Status::kOk);
  for (unsigned l = 0; l < 32; ++l) {
    SCOPED_TRACE(l);
    EXPECT_EQ(out->thirds[l], 0x49249249u);
    EXPECT_EQ(out->active[l], 1u);
    EXPECT_EQ(out->of_parts[l], l < 20 ? 0x55555u : 0xaaa00000u);
    EXPECT_EQ(out->sum_of_parts[l], l < 20 ? 190 : 306);
  }
  for (unsigned l = 0; l < 20; ++l) {
    EXPECT_EQ(out->shared_of_part[l], (l + 1) % 20) << l;
  }
  EXPECT_EQ(out->any_of_none, 0);
  EXPECT_EQ(out->any_of_one, 32);
  EXPECT_EQ(out->all_of_most, 0);
  EXPECT_EQ(out->all_of_all, 32);
  for (const int word : out->broadcast_of_few) EXPECT_EQ(word, 20);
}

TEST_F(CudaNames, atomics_lose_no_change) {
  constexpr unsigned kThreads = 45;
  constexpr unsigned kAll = 2 * kThreads;
  constexpr unsigned kSum = kAll * (kAll + 1) / 2;
  Array<Words> words(1);
  words->turning_up = 3;
  words->turning_down = 3;
  words->anded = ~0u;
  words->exchanged = 0;
  ASSERT_EQ(change(kThreads, words.get()), Status::kOk);
  unsigned bits = 0;
  unsigned parity = 0;
  for (unsigned i = 1; i <= kAll; ++i) {
    bits |= 1u << i % 32;
    parity ^= i;
  }
  EXPECT_EQ(words->added, static_cast<int>(kSum));
  EXPECT_EQ(words->added_unsigned, kSum);
  EXPECT_EQ(words->added_long, std::uint64_t{kSum} << 32);
  EXPECT_EQ(words->added_float, 0.5f * kAll);
  EXPECT_EQ(words->added_double, 0.25 * kAll);
  EXPECT_EQ(words->subtracted, -static_cast<int>(kSum));
  EXPECT_EQ(words->swapped, 2 * kSum);
  EXPECT_EQ(words->least, -static_cast<int>(kAll));
  EXPECT_EQ(words->most, kAll);
  EXPECT_EQ(words->turning_up, (3 + kAll) % 7);
  EXPECT_EQ(words->turning_down, (3 + 6 * kAll) % 7);
  EXPECT_EQ(words->anded, ~bits);
  EXPECT_EQ(words->ored, bits);
  EXPECT_EQ(words->xored, parity);
  EXPECT_EQ(words->sum + words->exchanged, kSum);
  EXPECT_EQ(words->in_system, static_cast<int>(kAll));
  EXPECT_EQ(words->least_of_block[0], -static_cast<int>(kThreads));
  EXPECT_EQ(words->least_of_block[1], -static_cast<int>(kAll));
}

TEST_F(CudaNames, thread_that_waits_by_an_atomic_lets_others_run) {
  Array<Locked> locked(1);
  ASSERT_EQ(add_under_lock(3, 40, locked.get()), Status::kOk);
  EXPECT_EQ(locked->value, 120u);
}

TEST_F(CudaNames, functions_of_a_thread_are_those_of_cuda) {
  Array<Single> out(1);
  ASSERT_EQ(call_by_one(out.get()), Status::kOk);
  const std::vector<int> expected = {8, 64, 31, 63, 5, 0, 41, 42, 3, 4};
  EXPECT_EQ(std::vector<int>(out->bits, out->bits + 10), expected);
  EXPECT_EQ(out->sum_of_vectors, 21);
  EXPECT_EQ(out->constants, 26);
  EXPECT_EQ(out->aligned, 0u);
}

}  // namespace cuda_names_test
}  // namespace gdx::cuda_names_tests
