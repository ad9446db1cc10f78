#include "driver-shim/softhca/engine/scattered_numbers.h"

#include <gtest/gtest.h>

namespace gdx::softhca {
namespace scattered_numbers_test {

// Of the reference implementation: key 00 01 .. 0f, message 00 01 .. 07.
static_assert(sip_hash({0x0706050403020100, 0x0f0e0d0c0b0a0908}, 0x0706050403020100) == 0x93f5f5799a932462);

TEST(ScatteredNumbers, each_key_has_a_sequence_of_its_own) {
  ScatteredNumbers numbers({1, 2});
  ScatteredNumbers again({1, 2});
  ScatteredNumbers others({1, 3});
  int same = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::uint32_t number = numbers.next();
    EXPECT_EQ(number, again.next());
    same += number == others.next() ? 1 : 0;
  }
  EXPECT_LE(same, 1);
}

}  // namespace scattered_numbers_test
}  // namespace gdx::softhca
