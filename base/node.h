// Identity of the place where processes can share memory. Host names do not decide it, because containers and
// clones repeat them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "proto/bootstrap/peer.h"

namespace gdx {

// Reads this process's identity: the kernel's boot, its network namespace (where local sockets are named),
// its user. `proc` is the path of /proc. Errors: kSystem.
[[nodiscard]] Result<peer::NodeIdentity> node_identity(const std::string& proc = "/proc");

// Returns a number of the kernel's boot and the network namespace, different elsewhere but for one chance in
// 2^32; 0: unknown.
[[nodiscard]] std::uint32_t node_word();

// Returns the difference that keeps processes there and here apart; nullopt without one.
[[nodiscard]] std::optional<std::string> apart(const peer::NodeIdentity& here,
                                               const peer::NodeIdentity& there);

}  // namespace gdx
