#include "host/queue/network.h"

#include <fmt/format.h>
#include <netinet/in.h>

#include <cstddef>
#include <cstring>

#include "host/hca/hca.h"
#include "host/queue/endpoint.h"
#include "proto/roce/headers.h"

namespace gdx {
namespace {

// Returns the subnet prefix of a GID in the byte order of this host.
std::uint64_t subnet_prefix(const std::uint8_t (&gid)[16]) {
  std::uint64_t prefix = 0;
  for (std::size_t i = 0; i < sizeof prefix; ++i) prefix = prefix << 8 | gid[i];
  return prefix;
}

// Returns whether the GID is of 127.0.0.0/8, or ::1.
bool is_loopback(const std::uint8_t (&gid)[16]) {
  in6_addr address{};
  static_assert(sizeof address == sizeof gid);
  std::memcpy(&address, gid, sizeof address);
  return IN6_IS_ADDR_LOOPBACK(&address) || (IN6_IS_ADDR_V4MAPPED(&address) && gid[12] == IN_LOOPBACKNET);
}

}  // namespace

Result<void> check_one_network(const EndpointAddress& own, const EndpointAddress& peer) {
  if ((peer.lid != 0) != (own.lid != 0)) {
    const auto layer = [](const EndpointAddress& of) {
      return name(of.lid != 0 ? LinkLayer::kInfiniBand : LinkLayer::kEthernet);
    };
    return fail(
        Status::kInvalidArgument,
        fmt::format("the peer's port is {}, and the HCA's port here is {}: choose HCAs of one network",
                    layer(peer), layer(own)));
  }
  const bool two_nodes = own.node != 0 && peer.node != 0 && own.node != peer.node;
  for (const EndpointAddress* const end : {&peer, &own}) {
    if (!two_nodes || !is_loopback(end->gid)) continue;
    return fail(
        Status::kInvalidArgument,
        fmt::format(
            "{} HCA has the loopback address {}, and the other end is on another host: give it an address "
            "of its host's network (gdx run --addr ADDRESS)",
            end == &peer ? "the peer's" : "this", address_text(end->gid)));
  }
  if (roce::may_talk(own.pkey, peer.pkey)) return {};
  return fail(
      Status::kInvalidArgument,
      fmt::format("the peer's P_Key is {:#06x}, and this endpoint's is {:#06x}: choose one partition for "
                  "both by {}, in which one of them is a full member (has 0x8000)",
                  peer.pkey, own.pkey, kPkeyVariable));
}

Result<LidPath> infiniband_path(const std::uint8_t (&own_gid)[16], bool own_grh_required,
                                const EndpointAddress& peer) {
  constexpr std::uint64_t kSiteLocalSubnet = 0xffff;  // the part of a GID with a FLID that names its subnet
  const std::uint64_t difference = subnet_prefix(own_gid) ^ subnet_prefix(peer.gid);
  const bool have_flids = flid_of(own_gid) != 0 && flid_of(peer.gid) != 0;
  if (difference == 0 || (have_flids && (difference & kSiteLocalSubnet) == 0))
    return LidPath{peer.lid, own_grh_required || peer.grh_required != 0};
  if (have_flids) return LidPath{flid_of(peer.gid), true};
  return fail(
      Status::kUnsupported,
      fmt::format("the peer's GID {} is of another InfiniBand subnet than {}: a router leads only to GIDs "
                  "with a FLID, from such; within one subnet set {} = 0 at both ends",
                  address_text(peer.gid), address_text(own_gid), kGidIndexVariable));
}

std::optional<std::uint16_t> choose_pkey(std::span<const std::uint16_t> table,
                                         std::optional<std::uint16_t> wanted) {
  std::optional<std::uint16_t> found;
  for (std::size_t index = 0; index < table.size(); ++index) {
    const std::uint16_t pkey = table[index];
    const bool used = (pkey & roce::kPartitionMask) != 0;
    if (!used || (wanted && ((*wanted ^ pkey) & roce::kPartitionMask) != 0)) continue;
    if (!found || (roce::is_full_member(pkey) && !roce::is_full_member(table[*found])))
      found = static_cast<std::uint16_t>(index);
  }
  return found;
}

}  // namespace gdx
