// The program's actions for SIGSEGV and SIGBUS. Once a device is open the HCA has these signals, for its
// accesses to memory that has gone. All other faults are the program's, who installs, reads and loses its
// actions as ever, and may block the two, which then are blocked in name.
#include <pthread.h>

#include <cerrno>
#include <csignal>

#include "driver-shim/softhca/engine/guarded_access.h"
#include "driver-shim/softhca/interpose/fault_signals.h"
#include "driver-shim/softhca/uverbs/real.h"

#define GDX_EXPORT extern "C" __attribute__((visibility("default")))
#define GDX_REAL(type, name, ...) static GDX_REAL_FUNCTION RealFunction<type(__VA_ARGS__)> real(#name)

namespace gdx::softhca::uverbs {
namespace {

GDX_REAL_FUNCTION RealFunction<int(int, const struct sigaction*, struct sigaction*)> real_sigaction(
    "sigaction");
GDX_REAL_FUNCTION RealFunction<int(int, const sigset_t*, sigset_t*)> real_mask("pthread_sigmask");

int set_action(int signal, const struct sigaction* next, struct sigaction* previous) {
  return real_sigaction(signal, next, previous);
}

int set_mask(int how, const sigset_t* next, sigset_t* previous) { return real_mask(how, next, previous); }

sighandler_t exchange_handler(int number, sighandler_t handler, int flags) {
  struct sigaction next {};
  next.sa_handler = handler;
  next.sa_flags = flags;
  struct sigaction previous {};
  exchange_fault_action(number, &next, &previous);
  return previous.sa_handler;
}

int fail_with(int error) {
  if (error == 0) return 0;
  errno = error;
  return -1;
}

// Returns whether the program had blocked the signal.
bool change_one(int how, int number) {
  sigset_t one;
  sigset_t before;
  sigemptyset(&one);
  sigaddset(&one, number);
  mask_signals(how, &one, &before);
  return sigismember(&before, number) == 1;
}

}  // namespace

void take_fault_signals() { install_fault_guard(set_action, set_mask); }

}  // namespace gdx::softhca::uverbs

using namespace gdx::softhca;          // NOLINT: what follows are libc's names, outside any namespace
using namespace gdx::softhca::uverbs;  // NOLINT

GDX_EXPORT int sigaction(int signal, const struct sigaction* next, struct sigaction* previous) {
  if (!guards_faults(signal)) return real_sigaction(signal, next, previous);
  exchange_fault_action(signal, next, previous);
  return 0;
}

GDX_EXPORT sighandler_t signal(int number, sighandler_t handler) {
  GDX_REAL(sighandler_t, signal, int, sighandler_t);
  if (!guards_faults(number) || handler == SIG_ERR) return real(number, handler);
  return exchange_handler(number, handler, SA_RESTART);
}

GDX_EXPORT sighandler_t bsd_signal(int number, sighandler_t handler) { return signal(number, handler); }

// Stands for signal() in a program that asks for C alone (-std=c99) or for System V.
GDX_EXPORT sighandler_t __sysv_signal(int number, sighandler_t handler) {
  GDX_REAL(sighandler_t, __sysv_signal, int, sighandler_t);
  if (!guards_faults(number) || handler == SIG_ERR) return real(number, handler);
  return exchange_handler(number, handler, static_cast<int>(SA_RESETHAND | SA_NODEFER));
}

GDX_EXPORT sighandler_t sysv_signal(int number, sighandler_t handler) {
  return __sysv_signal(number, handler);
}

GDX_EXPORT int pthread_sigmask(int how, const sigset_t* next, sigset_t* previous) {
  return guards_faults(SIGSEGV) ? mask_signals(how, next, previous) : real_mask(how, next, previous);
}

GDX_EXPORT int sigprocmask(int how, const sigset_t* next, sigset_t* previous) {
  return fail_with(pthread_sigmask(how, next, previous));
}

GDX_EXPORT int sighold(int number) {
  GDX_REAL(int, sighold, int);
  if (!guards_faults(number)) return real(number);
  change_one(SIG_BLOCK, number);
  return 0;
}

GDX_EXPORT int sigrelse(int number) {
  GDX_REAL(int, sigrelse, int);
  if (!guards_faults(number)) return real(number);
  change_one(SIG_UNBLOCK, number);
  return 0;
}

GDX_EXPORT int sigignore(int number) {
  GDX_REAL(int, sigignore, int);
  if (!guards_faults(number)) return real(number);
  exchange_handler(number, SIG_IGN, 0);
  return 0;
}

GDX_EXPORT sighandler_t sigset(int number, sighandler_t handler) {
  GDX_REAL(sighandler_t, sigset, int, sighandler_t);
  if (!guards_faults(number) || handler == SIG_ERR) return real(number, handler);
  const bool holds = handler == SIG_HOLD;
  const bool held = change_one(holds ? SIG_BLOCK : SIG_UNBLOCK, number);
  struct sigaction before {};
  exchange_fault_action(number, nullptr, &before);
  const sighandler_t previous = holds ? before.sa_handler : exchange_handler(number, handler, 0);
  return held ? SIG_HOLD : previous;
}
