// Sockets that never block, of TCP or, under an address unix:NAME, of this host: addresses, listening,
// connecting. All waiting is poll() to a deadline. NAME is abstract (local_socket.h), and both ends of such a
// connection are one user's.
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

// Parses "HOST:PORT" or "[IPV6]:PORT".
// Errors: kInvalidArgument.
[[nodiscard]] Result<HostPort> parse_host_port(const std::string& text);

// Checks the address where ranks meet: HOST:PORT, [IPV6]:PORT or unix:NAME. Errors: kInvalidArgument.
[[nodiscard]] Result<void> check_root(const std::string& root);

// Returns whether the address is unix:NAME.
[[nodiscard]] bool is_local(const std::string& address);

// Listens at `root`, also where `gdx run` of this user keeps the port for a rank 0 (`may_be_reserved`), and
// nobody listens. Errors: kBusy (the port is taken), kInvalidArgument (no such address here), kSystem.
[[nodiscard]] Result<Descriptor> listen_at(const std::string& root, bool may_be_reserved = false);

// Listens at a port that the system chooses. `host` is a numeric address of this machine, or "unix:": then
// the system chooses a name.
// Errors: kInvalidArgument (no such address here), kSystem.
[[nodiscard]] Result<Descriptor> listen_on(const std::string& host);

// Returns the next connection, or an empty Descriptor when none waits.
// Errors: kNoMemory (no descriptors left), kSystem.
[[nodiscard]] Result<Descriptor> accept_one(const Descriptor& listener);

// Checks the interface of `address`. Errors: kSystem when it is the loopback interface and that is down.
[[nodiscard]] Result<void> check_route(const sockaddr& address);

// Tries until a listener accepts or the deadline (CLOCK_MONOTONIC) passes.
// Errors: kTimeout, kInvalidArgument (no such host; another user listens at unix:NAME), kSystem (the loopback
// interface is down).
[[nodiscard]] Result<Descriptor> connect_to(const std::string& root, std::uint64_t deadline_ns);

// Begins to connect to a numeric "HOST:PORT" or to unix:NAME, and does not wait. Once poll() finds the socket
// writable, finish_connect() tells the result. Errors: kInvalidArgument (no numeric address); as of
// finish_connect().
[[nodiscard]] Result<Descriptor> begin_connect(const std::string& address);
// Errors, with the system's reason: kNotFound (nobody listens there), kPeerGone.
[[nodiscard]] Result<void> finish_connect(const Descriptor& socket);

// Ends the connection about a minute after the other machine is lost.
void keep_alive(const Descriptor& socket);

// Returns whether this end has an address of the loopback network.
[[nodiscard]] bool is_loopback(const Descriptor& socket);

// Returns this end as "127.0.0.1:40000", or "unix:NAME".
[[nodiscard]] std::string own_text(const Descriptor& socket);
// Returns the other end as "127.0.0.1:40000", or "process 4711".
[[nodiscard]] std::string peer_text(const Descriptor& socket);

// Waits until a socket is ready; false when the deadline passed first.
[[nodiscard]] bool wait_until(std::span<pollfd> sockets, std::uint64_t deadline_ns);

}  // namespace gdx::bootstrap
