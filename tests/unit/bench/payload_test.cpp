// The check of what a benchmark has sent finds each byte that is wrong.
#include "host/bench/payload.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace gdx::bench {
namespace {

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

}  // namespace
}  // namespace gdx::bench
