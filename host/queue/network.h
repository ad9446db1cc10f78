// Way between the ports of two endpoints: partition, subnet, GRH. Pure.
// Source: IBA 4.1.1 (GIDs), 10.9 (partitions).
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/result.h"
#include "host/queue/endpoint_address.h"

namespace gdx {

// Checks that two ends have one link layer and one partition, of which one end is a full member, and no
// loopback address unless they are of one node. Errors: kInvalidArgument.
[[nodiscard]] Result<void> check_one_network(const EndpointAddress& own, const EndpointAddress& peer);

struct LidPath {
  std::uint16_t lid = 0;
  bool global = false;  // packets need a GRH

  bool operator==(const LidPath&) const = default;
};
// Returns the way to a peer on InfiniBand from a port of `own_gid`: within the subnet by the peer's LID, to
// another subnet by its FLID. A GRH goes out to another subnet, and where one of the ports requires it: the
// peer's gets these packets, and such a port sends none without it. Errors: kUnsupported for
// another subnet, unless both GIDs have a FLID. Source: UCX ib_iface.c, uct_ib_iface_resolve_remote_flid.
[[nodiscard]] Result<LidPath> infiniband_path(const std::uint8_t (&own_gid)[16], bool own_grh_required,
                                              const EndpointAddress& peer);

// Returns the index in `table`, a port's P_Keys, of an entry of the partition `wanted`, or of any. It prefers
// full members, as UCX does, because limited ones cannot talk to one another. None: there is no such entry.
[[nodiscard]] std::optional<std::uint16_t> choose_pkey(std::span<const std::uint16_t> table,
                                                       std::optional<std::uint16_t> wanted);

}  // namespace gdx
