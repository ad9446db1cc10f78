// Exchange of offers between two ranks of a node, after all identities were gathered.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/bootstrap/local_socket.h"
#include "host/direct/region.h"
#include "proto/bootstrap/peer.h"

namespace gdx {

struct PeerOffers {
  std::vector<peer::Offer> offers;
  std::vector<Descriptor> files;  // files of all regions, in their order
  Descriptor process;             // pidfd of the rank; none if it has no number here, or the kernel no pidfd
};

// One rank's end of the exchange. A rank listens first, then publishes its identity.
class OfferExchange {
 public:
  // Listens under a random name, which no process can guess before it is published. Errors: kSystem, kBusy.
  [[nodiscard]] static Result<OfferExchange> listen(std::uint32_t rank);

  // Writes the fields that other ranks need to connect: socket_name and token.
  void write_to(peer::RankIdentity& identity) const;

  // Sends `mine` to each rank of `peers` and receives theirs, or an error, by the deadline (CLOCK_MONOTONIC).
  // `identities` are all ranks'. `peers` are those that list this rank among theirs. Errors of one rank:
  // kTimeout, kPeerGone, kVersionMismatch, kInvalidArgument, kSystem.
  [[nodiscard]] std::map<std::uint32_t, Result<PeerOffers>> run(
      std::span<const peer::RankIdentity> identities, std::span<const std::uint32_t> peers,
      std::span<const OfferedRegion> mine, std::uint64_t deadline_ns);

 private:
  OfferExchange() = default;
  [[nodiscard]] Result<void> send(const Descriptor& socket, const peer::RankIdentity& to,
                                  std::span<const OfferedRegion> mine, std::uint64_t deadline_ns) const;
  // Returns the sending rank; nullopt for a connection of none of `identities`' ranks.
  [[nodiscard]] std::optional<std::uint32_t> sender(const bootstrap::LocalMessage& message,
                                                    std::span<const std::uint32_t> awaited) const;
  void accept_all(std::span<const peer::RankIdentity> identities, std::vector<std::uint32_t> awaited,
                  std::span<const OfferedRegion> mine, std::uint64_t deadline_ns,
                  std::map<std::uint32_t, Result<PeerOffers>>& results) const;

  std::uint32_t rank_ = 0;
  std::string name_;
  std::uint8_t token_[peer::kTokenBytes] = {};
  Descriptor listener_;
};

}  // namespace gdx
