// Time that a test skips: for all code of the program it has passed.
#pragma once

#include <cstdint>

namespace gdx::test {

// Must outlive all threads that read the clock, because its destructor sets the clock back. Waits of the C++
// library that time out take longer by what was skipped before they began.
class SkippedTime {
 public:
  SkippedTime() = default;
  ~SkippedTime();
  SkippedTime(const SkippedTime&) = delete;
  SkippedTime& operator=(const SkippedTime&) = delete;

  // Ends waits by poll(2) within 10 ms.
  static void skip(std::uint64_t duration_ns);
};

}  // namespace gdx::test
