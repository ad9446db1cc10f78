// Holder of the other end of a connection, over TCP or a local socket.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/descriptor.h"

namespace gdx::bootstrap {

struct Holder {
  enum Kind {
    kOtherHost,  // or a container with a network of its own
    kNobody,     // it is this host's, and no process holds it: it was closed, or is not accepted yet
    kUser,
  };
  Kind kind = kOtherHost;
  uid_t user = 0;  // kUser
};

// Returns who holds the other end of `socket`; of a local one, who connected it or listened. A user cannot
// make the system name another one. Source: proc(5), /proc/net/tcp; unix(7), SO_PEERCRED.
[[nodiscard]] Holder holder_of_peer(const Descriptor& socket);

// Returns why the other end is no process of `user`; empty if it is one, or another host's.
[[nodiscard]] std::string why_stranger(const Descriptor& socket, uid_t user);

}  // namespace gdx::bootstrap
