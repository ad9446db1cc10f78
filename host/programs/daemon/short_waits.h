// Bounds what a client can make a close of gdxd's wait for.
#pragma once

#include <ctime>
#include <optional>

namespace gdx::daemon {

// Interrupts this thread's system calls each millisecond, for as long as it lives. A close of a connection
// ends the files that the client sent and nobody has read, and such a file may wait for whom the client likes
// (SO_LINGER). A signal ends that wait. Linux before 6.9 also lets whoever closes a local socket end files
// that any user has left in a circle of sockets. Without a timer (RLIMIT_SIGPENDING) it does nothing. Takes
// SIGURG, whose default is to be ignored. Source: signal(7), timer_create(2).
class ShortWaits {
 public:
  ShortWaits();
  ~ShortWaits();
  ShortWaits(const ShortWaits&) = delete;
  ShortWaits& operator=(const ShortWaits&) = delete;

 private:
  std::optional<timer_t> timer_;
};

}  // namespace gdx::daemon
