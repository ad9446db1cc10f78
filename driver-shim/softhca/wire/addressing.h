// Forms of one IPv4 address as MAC, GUID, GIDs and LID, and the address of a peer's address vector.
#pragma once

#include <array>
#include <cstdint>

#include "driver-shim/softhca/wire/wire.h"

namespace gdx::softhca::wire {

using Mac = std::array<std::uint8_t, 6>;
using Gid = std::array<std::uint8_t, 16>;

inline constexpr std::uint8_t kGidTableSize = 2;  // 0: link-local, from the MAC; 1: the address itself

// Locally administered: 02:67 followed by the IPv4 address (or the low half of an IPv6 one).
[[nodiscard]] Mac mac_of(const Address& address);
// Modified EUI-64 of the MAC, host order.
[[nodiscard]] std::uint64_t guid_of(const Address& address);
[[nodiscard]] Gid gid_of(const Address& address, std::uint8_t index);
// Returns the address behind a GID of either kind. Link-local GIDs that are not a software HCA's stay as they
// are.
[[nodiscard]] Address address_of(const Gid& gid);

// Warns once where the port's GID `source_index` and `destination` are not both IPv4 or both IPv6. Not
// standard: here both GIDs of a port lead to it. On RoCE v2 the two ends would never meet.
void warn_of_mixed_gids(const Address& local, std::uint8_t source_index, const Gid& destination);

// Returns x.y for a port on 127.0.x.y, 0 for others. No standard: a RoCE port has no LID and needs a GRH.
// Programs that exchange LIDs only thus still find each other.
[[nodiscard]] std::uint16_t lid_of(const Address& address);
[[nodiscard]] Address address_of_lid(std::uint16_t lid);

}  // namespace gdx::softhca::wire
