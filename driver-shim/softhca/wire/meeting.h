// Meeting of two HCAs of one host. Each listens on an abstract UNIX socket named after its address. Abstract
// names live in the network namespace, as addresses do, and leave no file behind. A sender to an address
// connects there and passes the memory of a ring. The open socket then proves that both ends live, and
// carries a byte that wakes a sleeping end.
//
//   sender    connect, Call(memory of a ring) -------> receiver: checks the sender's user, maps the ring
//   sender    bytes that wake, end of the socket <---> receiver
//
// Trust: any process may bind a name, so a name proves nothing. An address belongs to the user who holds its
// UDP port 4791, which the Linux kernel gives to one only. Both sides read that user from the kernel, and
// also the user at the socket's other end. They continue only if the two are equal.
#pragma once

#include <optional>

#include "base/result.h"
#include "driver-shim/softhca/wire/udp_socket.h"
#include "driver-shim/softhca/wire/wire.h"

namespace gdx::softhca::wire {

// Listens for callers. Errors: kBusy when the name is taken, kSystem otherwise.
[[nodiscard]] Result<Descriptor> listen_for_calls(const Address& local);

// Connects to `peer`, which then waits for send_call(). Never blocks. Errors: kNotFound when no process
// listens there or holds the address, kRemoteAccess when the listener is not its holder, kSystem otherwise.
[[nodiscard]] Result<Descriptor> reach_peer(const Address& peer);

// Sends the caller's address, and passes `memory_fd`. Never blocks. Errors: kSystem when the peer has closed.
[[nodiscard]] Result<void> send_call(const Descriptor& socket, const Address& local, int memory_fd);

// Returns the next caller's socket, empty without one.
[[nodiscard]] Descriptor accept_call(int listener_fd);

struct Call {
  Address source;
  Descriptor memory;
};
// Reads the caller's first message; nullopt inside the result before it has come. Never blocks.
// Errors: kInvalidArgument for anything but a call; kRemoteAccess when another process holds the caller's
// address; kNotFound when none does, because the caller has ended.
[[nodiscard]] Result<std::optional<Call>> receive_call(int fd);

}  // namespace gdx::softhca::wire
