// Threads of a library in a program that handles signals.
#pragma once

#include <csignal>
#include <thread>
#include <utility>

namespace gdx {

// Starts a thread on which no handler of the program runs, because it inherits a mask that blocks all
// signals. Throws std::system_error without one.
template <typename Run>
[[nodiscard]] std::thread start_library_thread(Run run) {
  struct SignalsBlocked {
    SignalsBlocked() {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;
    sigset_t before{};
  };
  const SignalsBlocked inherited;
  return std::thread(std::move(run));
}

}  // namespace gdx
