// Arithmetic of the transport: masked atomics, times, sequence numbers, rates.
#include <gtest/gtest.h>

#include "driver-shim/softhca/transport/psn.h"
#include "driver-shim/softhca/transport/requester.h"
#include "driver-shim/softhca/transport/token_bucket.h"

namespace gdx::softhca::transport {
namespace arithmetic_test {

TEST(AtomicOperation, masked_swap_looks_at_and_replaces_its_bits_only) {
  const AtomicOperation swap{
      .swap_or_add = 0xffff, .compare = 0x1234, .swap_mask_or_boundaries = 0xff00, .compare_mask = 0x00ff};
  EXPECT_EQ(swap.result(0xabcd0034), 0xabcdff34u);
  EXPECT_EQ(swap.result(0xabcd0035), 0xabcd0035u);
}

TEST(AtomicOperation, masked_add_stops_each_carry_at_its_boundary) {
  const AtomicOperation bytes{
      .add = true, .swap_or_add = 0x0101'0101'0101'0101, .swap_mask_or_boundaries = 0x8080'8080'8080'8080};
  EXPECT_EQ(bytes.result(0xff00'ff7f'80ff'00ff), 0x0001'0080'8100'0100u);
  const AtomicOperation whole{.add = true, .swap_or_add = 3};
  EXPECT_EQ(whole.result(~std::uint64_t{0}), 2u);
  const AtomicOperation every_bit{
      .add = true, .swap_or_add = 0xf0f0, .swap_mask_or_boundaries = ~std::uint64_t{0}};
  EXPECT_EQ(every_bit.result(0xff00), 0x0ff0u) << "fields of one bit add as XOR";
}

TEST(RnrTimer, codes_have_the_times_of_the_specification) {
  // IBA 1.4, table 45, in units of 10 us.
  constexpr std::uint64_t kTimes[] = {65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
                                      48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
                                      2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
  for (std::size_t code = 0; code < std::size(kTimes); ++code) {
    EXPECT_EQ(rnr_timer_ns(static_cast<std::uint8_t>(code)), kTimes[code] * 10'000) << code;
  }
}

TEST(ExtendedPsn, nearest_number_is_taken_on_both_sides_of_the_wrap) {
  const ExtendedPsn reference = first_psn(0xfffffe);
  EXPECT_EQ(extend_psn(0xfffffe, reference), reference);
  EXPECT_EQ(extend_psn(3, reference), reference + 5);
  EXPECT_EQ(extend_psn(0xfffff0, reference), reference - 14);
  EXPECT_EQ(extend_psn(0xffffff, first_psn(0)), first_psn(0) - 1);
}

TEST(TokenBucket, burst_then_one_token_an_interval) {
  TokenBucket bucket(3, 10);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(bucket.take(100));
  EXPECT_FALSE(bucket.take(109));
  EXPECT_TRUE(bucket.take(110));
  EXPECT_FALSE(bucket.take(110));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(bucket.take(1000)) << "idle time saves up one burst";
  EXPECT_FALSE(bucket.take(1000));
}

}  // namespace arithmetic_test
}  // namespace gdx::softhca::transport
