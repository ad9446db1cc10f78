#include "host/programs/daemon/short_waits.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>

namespace gdx::daemon {
namespace {

constexpr long kInterruptEveryNs = 1'000'000;

void do_nothing(int) {}

}  // namespace

ShortWaits::ShortWaits() {
  // A signal that is ignored interrupts nothing.
  struct sigaction action {};
  action.sa_handler = do_nothing;
  action.sa_flags = SA_RESTART;
  sigaction(SIGURG, &action, nullptr);
  sigevent event{};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = SIGURG;
  event._sigev_un._tid = static_cast<pid_t>(::syscall(SYS_gettid));
  timer_t made{};
  if (timer_create(CLOCK_MONOTONIC, &event, &made) != 0) return;
  timer_ = made;
  const itimerspec often{{0, kInterruptEveryNs}, {0, kInterruptEveryNs}};
  timer_settime(made, 0, &often, nullptr);
}

ShortWaits::~ShortWaits() {
  if (timer_) timer_delete(*timer_);
}

}  // namespace gdx::daemon
