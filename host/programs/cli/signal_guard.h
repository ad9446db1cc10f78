// Signals that end a launch, and SIGCHLD.
#pragma once

#include <csignal>
#include <cstdint>

namespace gdx {

inline constexpr std::uint64_t kNeverNs = ~std::uint64_t{0};
inline constexpr int kSignalBase = 128;  // a shell's status of a process that a signal ended

// Takes these signals by sigtimedwait instead of handlers, and restores them at the end. A forked child keeps
// them taken.
class SignalGuard {
 public:
  SignalGuard();
  ~SignalGuard();
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;

  [[nodiscard]] const sigset_t& previous() const { return previous_; }

  // Returns the next signal, or 0 when the deadline passed.
  [[nodiscard]] int wait(std::uint64_t deadline_ns) const;

 private:
  sigset_t waited_{};
  sigset_t previous_{};
  struct sigaction previous_child_ {};
};

}  // namespace gdx
