// Source of real time: state machines take `now_ns` as an argument and never read a clock.
#pragma once

#include <cstdint>
#include <ctime>

namespace gdx {

// CLOCK_MONOTONIC in nanoseconds. Thread-safe, async-signal-safe.
inline std::uint64_t monotonic_ns() {
  timespec ts{};
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<std::uint64_t>(ts.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(ts.tv_nsec);
}

// CLOCK_REALTIME in nanoseconds since 1970. Thread-safe, async-signal-safe.
inline std::uint64_t unix_time_ns() {
  timespec ts{};
  clock_gettime(CLOCK_REALTIME, &ts);
  return static_cast<std::uint64_t>(ts.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(ts.tv_nsec);
}

}  // namespace gdx
