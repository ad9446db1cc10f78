// How two HCAs of one host find each other: each listens on an abstract UNIX socket named after its address.
// Abstract names live in the network namespace, as addresses do, and leave no file behind. Who has packets
// for an address calls it and hands over the memory of a ring; the open socket then says that both live,
// and carries a byte to wake who sleeps.
//
// Trust: a name alone proves nothing, anybody may bind it. An address belongs to the user who holds its UDP
// port 4791, which the kernel gives to one only; both sides ask the kernel for that user and for the user at
// the other end of the socket, and go on only when they are the same.
#pragma once

#include <optional>

#include "base/result.h"
#include "driver-shim/softhca/wire/udp_socket.h"
#include "driver-shim/softhca/wire/wire.h"

namespace gdx::softhca::wire {

// Errors: kBusy when the name is taken, kSystem otherwise.
[[nodiscard]] Result<Descriptor> listen_for_calls(const Address& local);

// Reaches `peer`, which waits for say_call(). Never blocks. Errors: kNotFound when nobody listens there or
// holds the address, kRemoteAccess when the listener is not its holder, kSystem otherwise.
[[nodiscard]] Result<Descriptor> reach_peer(const Address& peer);

// Says who calls, and hands over `memory_fd`. Never blocks. Errors: kSystem when the peer has hung up.
[[nodiscard]] Result<void> say_call(const Descriptor& socket, const Address& local, int memory_fd);

// The next caller, or one without a descriptor when there is none.
[[nodiscard]] Descriptor accept_call(int listener_fd);

struct Call {
  Address source;
  Descriptor memory;
};
// What the caller said first. Nullopt inside the result: nothing yet. Never blocks.
// Errors: kInvalidArgument for anything but a call, kRemoteAccess when the caller does not hold its address,
// kNotFound when nobody does: it has ended already.
[[nodiscard]] Result<std::optional<Call>> hear_call(int fd);

}  // namespace gdx::softhca::wire
