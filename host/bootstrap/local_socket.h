// Sockets between processes of one node, which carry open files. Each message is bytes and descriptors,
// whole. A name that begins with a slash is a path. Others are abstract: they leave nothing in a file system
// and end at the network namespace. Calls block until their deadline at most (CLOCK_MONOTONIC). Every
// descriptor made here is closed on exec. Source: unix(7), SCM_RIGHTS, SO_PEERCRED.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "base/result.h"
#include "host/bootstrap/socket.h"

namespace gdx::bootstrap {

inline constexpr std::size_t kMaxLocalMessageBytes = 16384;
inline constexpr std::size_t kMaxLocalMessageDescriptors = 64;

// One message: bytes and open files.
struct LocalMessage {
  std::vector<std::byte> bytes;
  std::vector<Descriptor> descriptors;
};

// Listens under `name`, or without one under an abstract name that the system chooses. `type` is of
// socket(2): streams carry frames (connection.h). Errors: kBusy (the name is taken), kSystem.
[[nodiscard]] Result<Descriptor> listen_local(const std::string& name, int type = SOCK_SEQPACKET);
// Connects to `name`, and tries again while the listener's queue is full, until the deadline. Errors:
// kNotFound (no listener), kBusy (its queue is full), kUnsupported (its mode does not admit this user),
// kSystem.
[[nodiscard]] Result<Descriptor> connect_local(const std::string& name, std::uint64_t deadline_ns = 0,
                                               int type = SOCK_SEQPACKET);
// Accepts one connection. Errors: kTimeout, kSystem.
[[nodiscard]] Result<Descriptor> accept_local(const Descriptor& listener, std::uint64_t deadline_ns);

// Returns the user and the process that made the other end. Errors: kSystem.
[[nodiscard]] Result<ucred> peer_of(const Descriptor& socket);

// Sends one message. Errors: kPeerGone, kTimeout, kInvalidLength (beyond the two limits above, or no bytes).
[[nodiscard]] Result<void> send_local(const Descriptor& socket, std::span<const std::byte> bytes,
                                      std::span<const int> descriptors, std::uint64_t deadline_ns);
// Receives one message. An error closes all descriptors that arrived.
// Errors: kPeerGone, kTimeout, kInvalidArgument (more than the limits above, or than this process can open).
[[nodiscard]] Result<LocalMessage> receive_local(const Descriptor& socket, std::uint64_t deadline_ns);

}  // namespace gdx::bootstrap
