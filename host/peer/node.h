// Which processes can share memory. Names of hosts say nothing of it: containers and clones bear the same
// ones.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "proto/bootstrap/peer.h"

namespace gdx {

// Of this process: the kernel's boot, its network namespace (where local sockets are named), its user. `proc`
// is where /proc is. Errors: kSystem.
[[nodiscard]] Result<peer::NodeIdentity> node_identity(const std::string& proc = "/proc");

// What keeps processes there and here apart; nothing if nothing does.
[[nodiscard]] std::optional<std::string> apart(const peer::NodeIdentity& here,
                                               const peer::NodeIdentity& there);

}  // namespace gdx
