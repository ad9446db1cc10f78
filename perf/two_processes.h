// A measurement runs in two processes that talk over a socket pair; each opens its own HCA.
#pragma once

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace gdx::perf {

[[noreturn]] inline void give_up(const std::string& what) { throw std::runtime_error(what); }

inline void require(bool done, const char* what) {
  if (!done) give_up(std::string("cannot ") + what);
}

// The other process. Every exchange blocks; a peer that died ends it.
class Peer {
 public:
  explicit Peer(int fd) : fd_(fd) {}

  template <typename T>
  void send(const T& value) const {
    static_assert(std::is_trivially_copyable_v<T>);
    require(::send(fd_, &value, sizeof value, MSG_NOSIGNAL) == sizeof value, "reach the other process");
  }
  template <typename T>
  [[nodiscard]] T receive() const {
    T value;
    require(::recv(fd_, &value, sizeof value, MSG_WAITALL) == sizeof value, "receive from the other process");
    return value;
  }
  template <typename T>
  [[nodiscard]] T exchange(const T& mine) const {
    send(mine);
    return receive<T>();
  }
  void meet() const { static_cast<void>(exchange('.')); }
  // Returns without waiting whether the other process has sent something.
  [[nodiscard]] bool has_message() const {
    char byte = 0;
    return ::recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
  }

 private:
  int fd_;
};

// Runs first(peer) here and second(peer) in a child, which is killed where first throws.
template <typename First, typename Second>
void in_two_processes(First first, Second second) {
  int ends[2];
  require(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "make a socket pair");
  const pid_t child = ::fork();
  require(child >= 0, "fork");
  if (child == 0) {
    ::close(ends[0]);
    second(Peer(ends[1]));
    std::exit(0);
  }
  ::close(ends[1]);
  try {
    first(Peer(ends[0]));
  } catch (...) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    throw;
  }
  int status = 0;
  require(::waitpid(child, &status, 0) == child && status == 0, "finish: the other process failed");
}

}  // namespace gdx::perf
