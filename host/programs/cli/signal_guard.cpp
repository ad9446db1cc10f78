#include "host/programs/cli/signal_guard.h"

#include <algorithm>

#include "base/clock.h"

namespace gdx {
namespace {

constexpr std::uint64_t kSecondNs = 1'000'000'000;

}  // namespace

SignalGuard::SignalGuard() {
  sigemptyset(&waited_);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD}) {
    // A blocked signal is queued even where it is ignored, as SIGHUP below nohup.
    struct sigaction present {};
    sigaction(signal, nullptr, &present);
    if (signal == SIGCHLD || present.sa_handler != SIG_IGN) sigaddset(&waited_, signal);
  }
  sigset_t blocked = waited_;
  sigaddset(&blocked, SIGTTOU);  // so that a message of a background process stops nothing
  pthread_sigmask(SIG_BLOCK, &blocked, &previous_);
  // An ignored SIGCHLD would let children vanish before they are waited for.
  struct sigaction plain {};
  plain.sa_handler = SIG_DFL;
  sigaction(SIGCHLD, &plain, &previous_child_);
}

SignalGuard::~SignalGuard() {
  sigaction(SIGCHLD, &previous_child_, nullptr);
  pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
}

int SignalGuard::wait(std::uint64_t deadline_ns) const {
  const std::uint64_t now_ns = monotonic_ns();
  const std::uint64_t left_ns = deadline_ns <= now_ns ? 0 : std::min(deadline_ns - now_ns, 3600 * kSecondNs);
  const timespec timeout{static_cast<time_t>(left_ns / kSecondNs), static_cast<long>(left_ns % kSecondNs)};
  return std::max(0, sigtimedwait(&waited_, nullptr, &timeout));
}

}  // namespace gdx
