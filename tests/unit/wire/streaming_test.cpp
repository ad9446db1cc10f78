#include "driver-shim/softhca/wire/streaming.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace gdx::softhca::wire {
namespace streaming_test {

TEST(Streaming, copies_any_length_from_any_to_any_place_and_nothing_beside) {
  constexpr std::size_t kRoom = 6 * kStreamedBytes;
  std::mt19937 random(7);
  std::vector<std::byte> source(kRoom);
  for (std::byte& byte : source) byte = static_cast<std::byte>(random());
  for (int round = 0; round < 3000; ++round) {
    const std::size_t length_bytes = random() % (4 * kStreamedBytes + 100);
    const std::size_t from = random() % 128;
    const std::size_t to = random() % 128;
    std::vector<std::byte> expected(kRoom, std::byte{0x5a});
    std::vector<std::byte> target = expected;
    std::copy_n(source.begin() + from, length_bytes, expected.begin() + to);
    stream_copy(target.data() + to, source.data() + from, length_bytes);
    stream_fence();
    ASSERT_EQ(target, expected) << length_bytes << " bytes from " << from << " to " << to;
  }
}

}  // namespace streaming_test
}  // namespace gdx::softhca::wire
