// Holder of the other end of a TCP connection.
#pragma once

#include <sys/types.h>

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

// Returns who holds the other end of `socket`. A user cannot make the system name another one.
// Source: proc(5), /proc/net/tcp.
[[nodiscard]] Holder holder_of_peer(const Descriptor& socket);

}  // namespace gdx::bootstrap
