// Waits for what other threads and processes do.
#pragma once

#include <chrono>
#include <thread>

namespace gdx {

// Returns whether `condition()` comes true. The limit only ends a hang.
template <typename Condition>
bool comes_true(Condition condition) {
  constexpr std::chrono::seconds kHang{200};
  const auto end = std::chrono::steady_clock::now() + kHang;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace gdx
