#include "tests/unit/host/skipped_time.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <ctime>

#include "base/clock.h"

namespace gdx::test {
namespace {

std::atomic<std::uint64_t> skipped_ns{0};

}  // namespace

SkippedTime::~SkippedTime() { skipped_ns = 0; }

void SkippedTime::skip(std::uint64_t duration_ns) { skipped_ns += duration_ns; }

}  // namespace gdx::test

// In place of the C library's.
#define GDX_STAND_IN extern "C" __attribute__((visibility("default")))

GDX_STAND_IN int clock_gettime(clockid_t clock, timespec* time) noexcept {
  constexpr std::uint64_t kNsPerS = 1'000'000'000;
  const int error = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (error != 0 || clock != CLOCK_MONOTONIC) return error;
  const std::uint64_t now_ns = static_cast<std::uint64_t>(time->tv_nsec) + gdx::test::skipped_ns.load();
  time->tv_sec += static_cast<time_t>(now_ns / kNsPerS);
  time->tv_nsec = static_cast<long>(now_ns % kNsPerS);
  return 0;
}

GDX_STAND_IN int poll(pollfd* files, nfds_t count, int timeout_ms) {
  constexpr std::uint64_t kNsPerMs = 1'000'000;
  constexpr std::uint64_t kLookNs = 10 * kNsPerMs;
  const std::uint64_t end_ns = timeout_ms < 0
                                   ? ~std::uint64_t{0}
                                   : gdx::monotonic_ns() + static_cast<std::uint64_t>(timeout_ms) * kNsPerMs;
  for (;;) {
    const std::uint64_t now_ns = gdx::monotonic_ns();
    const std::uint64_t left_ns = end_ns - std::min(end_ns, now_ns);
    const timespec look{0, static_cast<long>(std::min(left_ns, kLookNs))};
    const int ready = ppoll(files, count, &look, nullptr);
    if (ready != 0 || left_ns <= kLookNs) return ready;
  }
}

// NOLINTNEXTLINE(readability-identifier-naming): libc names it
GDX_STAND_IN int __poll_chk(pollfd* files, nfds_t count, int timeout_ms, std::size_t) {
  return poll(files, count, timeout_ms);
}
