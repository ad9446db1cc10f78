#include "host/team/symmetric_heap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>

namespace gdx {
namespace symmetric_heap_test {

using ::testing::HasSubstr;

TEST(SymmetricHeap, first_fit_takes_the_lowest_gap_and_aligns) {
  SymmetricHeap heap(4096 + 100);
  EXPECT_EQ(heap.bytes(), 4096u) << "whole units only";
  EXPECT_EQ(heap.allocate(1, 1).value(), 0u);
  EXPECT_EQ(heap.allocate(129, 8).value(), 128u);
  EXPECT_EQ(heap.allocate(128, 1024).value(), 1024u);
  EXPECT_EQ(heap.allocate(128, 128).value(), 384u) << "the gap below the aligned piece is used";
  EXPECT_EQ(heap.bytes_free(), 4096u - 5 * 128);
  EXPECT_EQ(heap.free(128), 256u);
  EXPECT_EQ(heap.allocate(256, 256).value(), 512u);
  EXPECT_EQ(heap.allocate(256, 128).value(), 128u);
  EXPECT_TRUE(heap.invariant_holds());
}

TEST(SymmetricHeap, whole_heap_can_be_taken_and_given_back) {
  SymmetricHeap heap(1 << 20);
  ASSERT_EQ(heap.allocate(1 << 20, 4096).value(), 0u);
  EXPECT_EQ(heap.bytes_free(), 0u);
  EXPECT_EQ(heap.free(0), 1u << 20);
  EXPECT_EQ(heap.allocate(1 << 20, 4096).value(), 0u);
  EXPECT_TRUE(heap.invariant_holds());
}

TEST(SymmetricHeap, no_memory_names_what_is_left_and_the_option) {
  SymmetricHeap heap(1024);
  ASSERT_TRUE(heap.allocate(256, 1));
  ASSERT_TRUE(heap.allocate(256, 1));
  ASSERT_EQ(heap.free(0), 256u);
  const auto refused = heap.allocate(600, 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, Status::kNoMemory);
  EXPECT_THAT(refused.error().message, HasSubstr("768 of 1024 bytes are free, 512 in one piece"));
  EXPECT_THAT(refused.error().message, HasSubstr("heap_bytes"));
  EXPECT_EQ(heap.allocate(UINT64_MAX, 4096).error().status, Status::kNoMemory);
  EXPECT_TRUE(heap.invariant_holds());
}

TEST(SymmetricHeap, misuse_is_refused) {
  SymmetricHeap heap(4096);
  EXPECT_EQ(heap.allocate(0, 1).error().status, Status::kInvalidArgument);
  for (const std::uint64_t alignment : {0u, 3u, 8192u})
    EXPECT_THAT(heap.allocate(1, alignment).error().message, HasSubstr("power of two up to 4096"));
  ASSERT_TRUE(heap.allocate(300, 1));
  EXPECT_FALSE(heap.free(128));
  EXPECT_EQ(heap.free(0), 384u);
  EXPECT_FALSE(heap.free(0)) << "twice";
}

TEST(SymmetricHeap, equal_calls_give_equal_offsets_and_no_overlap) {
  SymmetricHeap heap(64 * 1024);
  SymmetricHeap twin(64 * 1024);
  std::map<std::uint64_t, std::uint64_t> pieces;
  std::mt19937_64 random(1);
  std::uint64_t refused = 0;
  for (int step = 0; step < 20'000; ++step) {
    if (random() % 2 == 0 || pieces.empty()) {
      const std::uint64_t bytes = 1 + random() % 3000;
      const std::uint64_t alignment = std::uint64_t{1} << random() % 13;
      const auto at = heap.allocate(bytes, alignment);
      const auto twins = twin.allocate(bytes, alignment);
      ASSERT_EQ(at.has_value(), twins.has_value());
      if (!at) {
        ++refused;
        continue;
      }
      ASSERT_EQ(*at, *twins);
      ASSERT_EQ(*at % alignment + *at % kHeapAlignment, 0u);
      ASSERT_LE(*at + bytes, heap.bytes());
      const auto after = pieces.upper_bound(*at);
      ASSERT_TRUE(after == pieces.end() || *at + bytes <= after->first);
      ASSERT_TRUE(after == pieces.begin() || std::prev(after)->first + std::prev(after)->second <= *at);
      pieces.emplace(*at, bytes);
    } else {
      const auto taken = std::next(pieces.begin(), static_cast<std::ptrdiff_t>(random() % pieces.size()));
      ASSERT_TRUE(heap.free(taken->first));
      ASSERT_TRUE(twin.free(taken->first));
      pieces.erase(taken);
    }
    ASSERT_TRUE(heap.invariant_holds());
  }
  EXPECT_GT(refused, 0u) << "the heap was never full";
}

}  // namespace symmetric_heap_test
}  // namespace gdx
