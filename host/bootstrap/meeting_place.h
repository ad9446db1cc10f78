// The address at which rank 0 listens: given, or chosen there and told to the others by a launcher.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/descriptor.h"
#include "base/result.h"
#include "host/bootstrap/world.h"

namespace gdx::bootstrap {

// An address of an interface of this host that is up.
struct HostAddress {
  std::string text;              // numeric
  std::vector<std::byte> bytes;  // 4 or 16
  std::uint32_t prefix_bits = 0;
  std::string interface = {};
};

// Returns this host's addresses, none of loopback or link-local ones, IPv4 first. Errors: kSystem.
[[nodiscard]] Result<std::vector<HostAddress>> host_addresses();

// Returns those of interfaces that `words` name, as NCCL_SOCKET_IFNAME does: beginnings of names, with commas
// between; "=" before whole names; "^" before names to leave out.
[[nodiscard]] std::vector<HostAddress> addresses_named(std::span<const HostAddress> own,
                                                       std::string_view words);

// Chooses of rank 0's addresses the one to connect to. Bridges of containers have the same address on many
// hosts, so that one which this host has, too, leads elsewhere only where rank 0 has no other. Of the rest,
// one on a network of this host comes first.
[[nodiscard]] std::string choose_address(std::span<const std::string> of_root,
                                         std::span<const HostAddress> own);

// Completes options.root, and options.secret where rank 0 has told one by options.tell_root. Returns the
// socket that listens at rank 0, elsewhere an empty one. Errors: those of listening, of options.tell_root,
// and of secret_to_tell; kVersionMismatch (rank 0 told no address, or no secret).
[[nodiscard]] Result<Descriptor> settle_root(WorldOptions& options, std::uint64_t deadline_ns);

}  // namespace gdx::bootstrap
