// The program's actions for SIGSEGV and SIGBUS. Once a device is open the HCA has these signals, for its
// accesses to memory that has gone. All other faults are the program's, who installs, reads and loses its
// actions as ever.
#include <csignal>

#include "driver-shim/softhca/engine/guarded_access.h"
#include "driver-shim/softhca/interpose/fault_signals.h"
#include "driver-shim/softhca/uverbs/real.h"

#define GDX_EXPORT extern "C" __attribute__((visibility("default")))

namespace gdx::softhca::uverbs {
namespace {

GDX_REAL_FUNCTION RealFunction<int(int, const struct sigaction*, struct sigaction*)> real_sigaction(
    "sigaction");
GDX_REAL_FUNCTION RealFunction<sighandler_t(int, sighandler_t)> real_signal("signal");

int set_action(int signal, const struct sigaction* next, struct sigaction* previous) {
  return real_sigaction(signal, next, previous);
}

}  // namespace

void take_fault_signals() { install_fault_guard(set_action); }

}  // namespace gdx::softhca::uverbs

using namespace gdx::softhca;          // NOLINT: what follows are libc's names, outside any namespace
using namespace gdx::softhca::uverbs;  // NOLINT

GDX_EXPORT int sigaction(int signal, const struct sigaction* next, struct sigaction* previous) {
  if (!guards_faults(signal)) return real_sigaction(signal, next, previous);
  exchange_fault_action(signal, next, previous);
  return 0;
}

GDX_EXPORT sighandler_t signal(int number, sighandler_t handler) {
  if (!guards_faults(number) || handler == SIG_ERR) return real_signal(number, handler);
  struct sigaction next {};
  next.sa_handler = handler;
  next.sa_flags = SA_RESTART;
  struct sigaction previous {};
  exchange_fault_action(number, &next, &previous);
  return previous.sa_handler;
}
