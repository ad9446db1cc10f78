// TCP sockets that never block: addresses, listening, connecting. All waiting is poll() to a deadline.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "base/result.h"

namespace gdx::bootstrap {

struct HostPort {
  std::string host;
  std::string port;
};

// "HOST:PORT" or "[IPV6]:PORT".
// Errors: kInvalidArgument.
[[nodiscard]] Result<HostPort> parse_host_port(const std::string& text);

// Errors: kBusy (somebody has the port), kInvalidArgument (no such address here), kSystem.
[[nodiscard]] Result<Descriptor> listen_at(const std::string& root);

// Whether `descriptor` is a socket that listens at the port of `root`: a program between a launcher and this
// process may have closed what it was given, and opened something else.
[[nodiscard]] bool listens_at(int descriptor, const std::string& root);

// The parent's socket at its number `descriptor`, where that listens at the port of `root` and may be taken:
// wrappers close descriptors in what they start and keep their own. -1 otherwise; the caller closes it.
[[nodiscard]] int listener_of_parent(int descriptor, const std::string& root);

// Takes over a listening socket that another process made.
// Errors: kInvalidArgument when `descriptor` is not one.
[[nodiscard]] Result<Descriptor> adopt_listener(int descriptor);

// The next connection, or an empty Descriptor when none waits.
// Errors: kNoMemory (no descriptors left), kSystem.
[[nodiscard]] Result<Descriptor> accept_one(const Descriptor& listener);

// Errors: kSystem when `address` is of the loopback interface and that is down.
[[nodiscard]] Result<void> check_route(const sockaddr& address, socklen_t length);

// Tries until somebody listens there or the deadline (CLOCK_MONOTONIC) passes.
// Errors: kTimeout, kInvalidArgument (no such host), kSystem (the loopback interface is down).
[[nodiscard]] Result<Descriptor> connect_to(const std::string& root, std::uint64_t deadline_ns);

// "127.0.0.1:40000", the other end.
[[nodiscard]] std::string peer_text(const Descriptor& socket);

// Waits until something is ready; false when the deadline passed first.
[[nodiscard]] bool wait_until(std::span<pollfd> sockets, std::uint64_t deadline_ns);

}  // namespace gdx::bootstrap
