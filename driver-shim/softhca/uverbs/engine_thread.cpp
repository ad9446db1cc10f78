#include "driver-shim/softhca/uverbs/engine_thread.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/library_thread.h"
#include "base/log.h"
#include "driver-shim/softhca/engine/guarded_access.h"
#include "driver-shim/softhca/uverbs/idle_policy.h"

namespace gdx::softhca::uverbs {
namespace {

constexpr std::uint64_t kDrivenNs = 2'000'000;       // a thread that drove the HCA so lately will do so again
constexpr std::uint64_t kDrivenSleepNs = 1'000'000;  // each wake-up preempts the driver
constexpr std::uint64_t kBusyRoundNs = 10'000'000;  // time between rounds, also of a thread that never sleeps
constexpr std::uint64_t kHeldSleepNs = 200'000;
constexpr unsigned long kTimerSlackNs = 1'000;
constexpr std::uint64_t kParkedSleepNs = 1'000'000'000;
constexpr std::uint64_t kDeafSleepNs = 10'000'000;  // if nothing can wake it
constexpr int kNicerBy = 10;                        // than the program

timespec to_timespec(std::uint64_t duration_ns) {
  return {static_cast<time_t>(duration_ns / 1'000'000'000u), static_cast<long>(duration_ns % 1'000'000'000u)};
}

}  // namespace

EngineThread::EngineThread(Hca& hca, const std::atomic<std::uint64_t>& driven_at_ns,
                           std::function<void()> on_round, std::function<void()> on_lost)
    : hca_(hca), driven_at_ns_(driven_at_ns), on_round_(std::move(on_round)), on_lost_(std::move(on_lost)) {
  std::array<int, 2> ends{-1, -1};
  const int made = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data());
  const int error = made == 0 ? EMFILE : errno;
  wake_ = Descriptor::keep(ends[0]);
  waker_ = Descriptor::keep(ends[1]);
  if (!wake_ || !waker_)
    throw std::system_error(error, std::generic_category(), "no descriptor to wake a thread");
  thread_ = start_library_thread([this] {
    run();
    ended_.store(true);
  });
}

EngineThread::~EngineThread() {
  stop_.store(true);
  wake();
  thread_.join();
}

bool EngineThread::stop(std::uint64_t limit_ns) {
  stop_.store(true);
  wake();
  const std::uint64_t start_ns = monotonic_ns();
  while (!ended_.load()) {
    if (monotonic_ns() - start_ns > limit_ns) return false;
    std::this_thread::yield();
  }
  return true;
}

// Wakes the thread by its socket, unless the program has closed that, and may have opened another file at its
// number.
void EngineThread::wake() const {
  if (!waker_.refers()) return;
  const char byte = 0;
  [[maybe_unused]] const ssize_t sent = ::send(waker_.value(), &byte, sizeof byte, MSG_NOSIGNAL);
}

void EngineThread::set_parked(bool parked) {
  parked_.store(parked);
  wake();
}

void EngineThread::rouse() {
  roused_.store(true);
  wake();
}

// A pair that is closed, or another file of its number, would end every sleep at once.
void EngineThread::sleep(std::uint64_t backoff_ns, bool watch_wire) {
  const int wake = deaf_ ? -1 : wake_.value();
  std::array<pollfd, 2> files = {pollfd{wake, POLLIN, 0}, pollfd{hca_.poll_fd(), POLLIN, 0}};
  const timespec timeout = to_timespec(deaf_ ? std::min(backoff_ns, kDeafSleepNs) : backoff_ns);
  ppoll(files.data(), watch_wire ? 2 : 1, &timeout, nullptr);
  if (files[0].revents == 0) return;
  std::array<char, 64> bytes{};
  deaf_ = !wake_.refers() || ::recv(wake_.value(), bytes.data(), bytes.size(), 0) == 0;
}

void EngineThread::sleep_until_due(std::uint64_t longest_ns) {
  const std::uint64_t idle_ns = hca_.idle_ns();
  if (idle_ns == kHeldElsewhere) {
    // Packets may wait for the one that holds it, who may have been preempted: watching the wire would spin.
    sleep(kHeldSleepNs, false);
  } else {
    sleep(std::clamp(idle_ns, kShortestSleepNs, longest_ns), true);
  }
}

bool EngineThread::driven_elsewhere() const {
  return driven_at_ns_.load(std::memory_order_relaxed) + kDrivenNs > monotonic_ns();
}

// The last act of the thread, unless it is ended anyhow: the device may have a successor by then.
bool EngineThread::wire_is_lost() {
  if (stop_.load()) return true;
  if (!hca_.wire_is_lost()) return false;
  lost_.store(true);
  log::error(
      "{}: the program has closed the descriptors of the HCA, which carries nothing any more: close what you "
      "opened, or open the device again",
      hca_.config().name);
  on_lost_();
  return true;
}

void EngineThread::run() {
  pthread_setname_np(pthread_self(), "gdx-softhca");
  unblock_faults();
  prctl(PR_SET_TIMERSLACK, kTimerSlackNs, 0, 0, 0);
  // Raises the priority, because programs that spin on a completion starve the thread that would bring it.
  // Best effort.
  const auto thread = static_cast<id_t>(gettid());
  setpriority(PRIO_PROCESS, thread, getpriority(PRIO_PROCESS, thread) - kNicerBy);
  IdlePolicy idle;
  std::uint64_t round_at_ns = 0;  // time of the last round on a busy HCA
  while (!stop_.load()) {
    if (parked_.load()) {
      if (wire_is_lost()) return;
      if (hca_.progress() == 0) sleep_until_due(kParkedSleepNs);
      continue;
    }
    if (driven_elsewhere()) {
      on_round_();
      if (wire_is_lost()) return;
      sleep(kDrivenSleepNs, false);
      continue;
    }
    if (hca_.progress() > 0) {
      const std::uint64_t now_ns = monotonic_ns();
      idle.on_work(now_ns);
      if (now_ns - round_at_ns >= kBusyRoundNs) {
        round_at_ns = now_ns;
        on_round_();
        if (wire_is_lost()) return;
      }
      continue;
    }
    const std::uint64_t idle_at_ns = monotonic_ns();
    if (roused_.exchange(false)) idle.on_roused(idle_at_ns);
    const Pause pause = idle.on_idle(idle_at_ns, hca_.rung_at_ns());
    switch (pause.kind) {
      case Pause::Kind::kNone: break;
      case Pause::Kind::kYield: {
        sched_yield();
        const std::uint64_t now_ns = monotonic_ns();
        idle.on_yielded(now_ns, now_ns - idle_at_ns);
        break;
      }
      case Pause::Kind::kSleep:
        on_round_();
        sleep_until_due(pause.longest_ns);
        if (wire_is_lost()) return;
        break;
    }
  }
}

}  // namespace gdx::softhca::uverbs
