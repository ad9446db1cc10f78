// Numbers of 16 bits, and reductions of a warp, of the CPU layer.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <vector>

#include "device/exec/exec.h"
#include "device/exec/halves.h"

namespace gdx::exec {
namespace numbers_test {

__half half_of_bits(std::uint16_t bits) {
  __half half;
  half.bits = bits;
  return half;
}

// Neighbours of every number, the middle between two, and what is beside the middle.
TEST(Halves, every_half_is_kept_and_what_lies_between_goes_to_the_nearest_or_even) {
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const float here = half_of_bits(static_cast<std::uint16_t>(bits));
    ASSERT_EQ(__half(here).bits, bits);
    ASSERT_EQ(__half(-here).bits, bits | 0x8000);
    // Above the greatest half lies 2^16 for this purpose, which is infinite.
    const float next = bits == 0x7bff ? 65536.0f : float(half_of_bits(static_cast<std::uint16_t>(bits + 1)));
    ASSERT_GT(next, here);
    const float middle = (here + next) / 2;
    ASSERT_EQ(__half(middle).bits, bits + (bits & 1)) << here;
    ASSERT_EQ(__half(std::nextafter(middle, 0.0f)).bits, bits) << here;
    ASSERT_EQ(__half(std::nextafter(middle, next)).bits, bits + 1) << here;
  }
  EXPECT_EQ(float(half_of_bits(0x3c00)), 1.0f);
  EXPECT_EQ(float(half_of_bits(0x0001)), std::ldexp(1.0f, -24));
  EXPECT_EQ(float(half_of_bits(0x7bff)), 65504.0f);
  EXPECT_TRUE(std::isinf(float(half_of_bits(0xfc00))));
  EXPECT_TRUE(std::isnan(float(__half(std::nanf("")))));
  EXPECT_EQ(__half(std::numeric_limits<float>::infinity()).bits, 0x7c00);
  EXPECT_EQ(__half(1e30f).bits, 0x7c00);
  EXPECT_EQ(float(__half(1.5f) + __half(2.25f)), 3.75f);
}

TEST(Halves, bfloat16_rounds_to_the_nearest_or_even) {
  const auto bits_of = [](float value) { return __nv_bfloat16(value).bits; };
  EXPECT_EQ(bits_of(1.0f), 0x3f80);
  EXPECT_EQ(bits_of(1.0f + 0x1p-8f), 0x3f80);                     // the middle, to even
  EXPECT_EQ(bits_of(1.0f + 0x1p-8f + 0x1p-20f), 0x3f81);          // above it
  EXPECT_EQ(bits_of(1.0f + 3 * 0x1p-8f), 0x3f82);                 // the next middle, to even
  EXPECT_EQ(bits_of(std::numeric_limits<float>::max()), 0x7f80);  // infinite
  EXPECT_TRUE(std::isnan(__bfloat162float(__float2bfloat16(std::nanf("")))));
  EXPECT_EQ(__bfloat162float(-1.5f), -1.5f);
}

__global__ void reduce_warp(std::vector<long>* out, unsigned mask) {
  const unsigned lane = threadIdx.x;
  if ((mask >> lane & 1) == 0) return;
  const int number = static_cast<int>(lane * 7 % 5) - 2;
  (*out)[6 * lane] = __reduce_add_sync(mask, number);
  (*out)[6 * lane + 1] = __reduce_min_sync(mask, number);
  (*out)[6 * lane + 2] = __reduce_max_sync(mask, lane);
  (*out)[6 * lane + 3] = __reduce_and_sync(mask, lane | 64);
  (*out)[6 * lane + 4] = __reduce_or_sync(mask, lane);
  (*out)[6 * lane + 5] = __reduce_xor_sync(mask, lane + 1);
}

TEST(Warps, reductions_give_every_lane_of_the_mask_the_result) {
  for (const unsigned mask : {0xffffffffu, 0x00ff00f2u, 0x80000000u}) {
    std::vector<long> out(6 * 32, -99);
    ASSERT_EQ(launch({.block = {32}}, reduce_warp, &out, mask), Status::kOk);
    std::vector<long> right{0, 9, 0, 0x7f, 0, 0};
    for (unsigned lane = 0; lane < 32; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      const long number = static_cast<long>(lane * 7 % 5) - 2;
      right[0] += number;
      right[1] = min(right[1], number);
      right[2] = max(right[2], lane);
      right[3] &= static_cast<long>(lane | 64);
      right[4] |= lane;
      right[5] ^= lane + 1;
    }
    for (unsigned lane = 0; lane < 32; ++lane) {
      for (unsigned i = 0; i < 6; ++i)
        EXPECT_EQ(out[6 * lane + i], (mask >> lane & 1) != 0 ? right[i] : -99)
            << "lane " << lane << ", " << i;
    }
  }
  EXPECT_EQ(min(2, -1.5), -1.5);
  EXPECT_EQ(max(2u, 3ull), 3u);
}

}  // namespace numbers_test
}  // namespace gdx::exec
