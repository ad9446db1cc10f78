// TCP sockets that never block: addresses, listening, connecting. All waiting is poll() to a deadline.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace gdx::bootstrap {

class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() { close(); }

  [[nodiscard]] int descriptor() const { return descriptor_; }
  [[nodiscard]] explicit operator bool() const { return descriptor_ >= 0; }
  void close();

 private:
  int descriptor_ = -1;
};

struct HostPort {
  std::string host;
  std::string port;
};

// "HOST:PORT" or "[IPV6]:PORT".
// Errors: kInvalidArgument.
[[nodiscard]] Result<HostPort> parse_host_port(const std::string& text);

// Errors: kBusy (somebody has the port), kInvalidArgument (no such address here), kSystem.
[[nodiscard]] Result<Socket> listen_at(const std::string& root);

// Takes over a listening socket that another process made.
// Errors: kInvalidArgument when `descriptor` is not one.
[[nodiscard]] Result<Socket> adopt_listener(int descriptor);

// The next connection, or an empty Socket when none waits.
// Errors: kNoMemory (no descriptors left), kSystem.
[[nodiscard]] Result<Socket> accept_one(const Socket& listener);

// Tries until somebody listens there or the deadline (CLOCK_MONOTONIC) passes.
// Errors: kTimeout, kInvalidArgument (no such host), kSystem.
[[nodiscard]] Result<Socket> connect_to(const std::string& root, std::uint64_t deadline_ns);

// "127.0.0.1:40000", the other end.
[[nodiscard]] std::string peer_text(const Socket& socket);

// Waits until something is ready; false when the deadline passed first.
[[nodiscard]] bool wait_until(std::span<pollfd> sockets, std::uint64_t deadline_ns);

}  // namespace gdx::bootstrap
