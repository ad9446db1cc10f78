// Helpers of every fuzz target: values taken from the input, and a check that stays in release builds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>

namespace gdx::fuzz {

inline void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

// A byte of which no answer consists, so that one written beyond an answer shows.
inline constexpr std::uint8_t kCanary = 0xa5;
inline constexpr std::size_t kCanaryBytes = 64;

inline void expect_canaries(std::span<const std::uint8_t> behind, const char* what) {
  expect(std::ranges::all_of(behind, [](std::uint8_t byte) { return byte == kCanary; }), what);
}

// An input that has ended goes on as zeros.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}

  [[nodiscard]] bool empty() const { return rest_.empty(); }
  template <typename T>
  T take() {
    T value{};
    const auto bytes = take_bytes(sizeof value);
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  // Small, or within 256 below 2^64, where sums wrap.
  std::uint64_t take_amount() {
    const auto value = take<std::uint16_t>();
    return value < 0xff00 ? value : ~std::uint64_t{0xffff} | value;
  }
  // At most `length`, as many as are left.
  std::span<const std::uint8_t> take_bytes(std::size_t length) {
    const auto taken = rest_.first(std::min(length, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }

 private:
  std::span<const std::uint8_t> rest_;
};

}  // namespace gdx::fuzz
