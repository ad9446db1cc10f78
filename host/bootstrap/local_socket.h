// Sockets between processes of one node, which carry open files: each message is bytes and descriptors,
// whole. Names are abstract, so they leave nothing in a file system and end at the network namespace. None of
// it ever blocks beyond its deadline (CLOCK_MONOTONIC), and every descriptor that it makes is closed on exec.
// Source: unix(7), SCM_RIGHTS, SO_PEERCRED.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "base/result.h"
#include "host/bootstrap/socket.h"

namespace gdx::bootstrap {

inline constexpr std::size_t kMaxParcelBytes = 16384;
inline constexpr std::size_t kMaxParcelDescriptors = 64;

struct Parcel {
  std::vector<std::byte> bytes;
  std::vector<Descriptor> descriptors;
};

// Errors: kBusy (somebody has the name), kSystem.
[[nodiscard]] Result<Descriptor> listen_local(const std::string& name);
// Errors: kNotFound (nobody listens), kBusy (too many wait there), kSystem.
[[nodiscard]] Result<Descriptor> connect_local(const std::string& name);
// Errors: kTimeout, kSystem.
[[nodiscard]] Result<Descriptor> accept_local(const Descriptor& listener, std::uint64_t deadline_ns);

// Who made the other end. Errors: kSystem.
[[nodiscard]] Result<uid_t> peer_user(const Descriptor& socket);

// Errors: kPeerGone, kTimeout, kInvalidLength (beyond the two limits above, or no bytes).
[[nodiscard]] Result<void> send_parcel(const Descriptor& socket, std::span<const std::byte> bytes,
                                       std::span<const int> descriptors, std::uint64_t deadline_ns);
// What arrived is closed again after an error.
// Errors: kPeerGone, kTimeout, kInvalidArgument (more than the limits above, or than this process can open).
[[nodiscard]] Result<Parcel> receive_parcel(const Descriptor& socket, std::uint64_t deadline_ns);

}  // namespace gdx::bootstrap
