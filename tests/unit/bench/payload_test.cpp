// The check of what a benchmark has sent finds each byte that is wrong.
#include "host/programs/bench/payload.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

namespace gdx::bench {
namespace payload_test {

TEST(Payload, each_wrong_byte_of_a_message_of_any_length_is_counted) {
  constexpr Sent kSent{3, 1};
  constexpr std::uint64_t kFirst = 64;
  constexpr std::uint64_t kStride = 40;
  auto hca = Hca::open();
  ASSERT_TRUE(hca) << hca.error().message;
  auto payload = Payload::in_host_memory(*hca, nullptr, 4096);
  ASSERT_TRUE(payload) << payload.error().message;
  for (std::uint64_t bytes = 1; bytes <= 25; ++bytes) {
    const auto count_bad = [&] { return payload->count_bad(kFirst, 2, bytes, kStride, kSent).value(); };
    const auto fill = [&](bool inverted) {
      ASSERT_TRUE(payload->fill(kFirst, kStride + bytes, kSent, inverted));
    };
    fill(true);
    EXPECT_EQ(count_bad(), 2 * bytes);
    fill(false);
    EXPECT_EQ(count_bad(), 0u) << bytes;
    for (std::uint64_t at = 0; at < bytes; ++at) {
      for (const std::uint64_t place : {kFirst, kFirst + kStride}) {
        ASSERT_TRUE(payload->damage(place + at));
        EXPECT_EQ(count_bad(), 1u) << "byte " << at << " of " << bytes;
        ASSERT_TRUE(payload->damage(place + at));  // as it was
      }
    }
    ASSERT_TRUE(payload->damage(kFirst + kStride + bytes));
    EXPECT_EQ(count_bad(), 0u) << "what lies behind the messages is not theirs";
  }
}

// Every rank's floats, added up in any order, are exactly what a sink must hold.
TEST(Payload, sums_of_all_ranks_are_exact_and_of_fewer_are_wrong) {
  constexpr std::uint32_t kRanks = 16;
  constexpr std::uint64_t kBytes = 20;
  auto hca = Hca::open();
  ASSERT_TRUE(hca) << hca.error().message;
  auto payload = Payload::in_host_memory(*hca, nullptr, 4096);
  ASSERT_TRUE(payload) << payload.error().message;
  float sums[kBytes / sizeof(float)] = {};
  for (std::uint32_t rank = kRanks; rank-- > 0;) {
    ASSERT_TRUE(payload->fill(0, kBytes, {7, rank, 0, 1}, false));
    float floats[kBytes / sizeof(float)];
    std::memcpy(floats, payload->memory().data(), kBytes);
    for (std::size_t i = 0; i < std::size(sums); ++i) sums[i] += floats[i];
    std::memcpy(payload->memory().data(), sums, kBytes);
    const std::uint64_t bad = payload->count_bad(0, 1, kBytes, kBytes, {7, 0, 0, kRanks}).value();
    EXPECT_EQ(bad == 0, rank == 0) << bad << " wrong bytes without " << rank << " ranks";
  }
}

TEST(Payload, of_each_receiver_is_its_own) {
  auto hca = Hca::open();
  ASSERT_TRUE(hca) << hca.error().message;
  auto payload = Payload::in_host_memory(*hca, nullptr, 4096);
  ASSERT_TRUE(payload) << payload.error().message;
  ASSERT_TRUE(payload->fill(0, 64, {3, 1, 2}, false));
  EXPECT_EQ(payload->count_bad(0, 1, 64, 64, {3, 1, 2}).value(), 0u);
  for (const Sent other : {Sent{3, 1, 0}, Sent{3, 2, 1}, Sent{2, 1, 2}})
    EXPECT_GT(payload->count_bad(0, 1, 64, 64, other).value(), 48u);
}

}  // namespace payload_test
}  // namespace gdx::bench
