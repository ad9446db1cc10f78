// How two ranks of a node pass their offers to each other, once all cards are known.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/bootstrap/local_socket.h"
#include "host/peer/region.h"
#include "proto/bootstrap/peer.h"

namespace gdx {

struct PeerOffers {
  std::vector<peer::Offer> offers;
  std::vector<Descriptor> files;  // of all of them, in their order
};

// This rank's end of the exchange. A rank listens first, then shows its card to all.
class OfferExchange {
 public:
  // Listens under a name that nobody can guess before it is published. Errors: kSystem, kBusy.
  [[nodiscard]] static Result<OfferExchange> listen(std::uint32_t rank);

  // What others need to connect: socket_name and token.
  void write_on(peer::Card& card) const;

  // Passes `mine` to each rank of `peers` and takes theirs, or what went wrong, by the deadline
  // (CLOCK_MONOTONIC). `cards` are all ranks', `peers` those that list this rank among theirs. Errors of one
  // rank: kTimeout, kPeerGone, kVersionMismatch, kInvalidArgument, kSystem.
  [[nodiscard]] std::map<std::uint32_t, Result<PeerOffers>> run(std::span<const peer::Card> cards,
                                                                std::span<const std::uint32_t> peers,
                                                                std::span<const OfferedRegion> mine,
                                                                std::uint64_t deadline_ns);

 private:
  OfferExchange() = default;
  [[nodiscard]] Result<void> send(const Descriptor& socket, const peer::Card& to,
                                  std::span<const OfferedRegion> mine, std::uint64_t deadline_ns) const;
  // Nothing: whoever connected is none of `cards`' ranks.
  [[nodiscard]] std::optional<std::uint32_t> sender(const bootstrap::Parcel& parcel,
                                                    std::span<const std::uint32_t> awaited) const;
  void accept_all(std::span<const peer::Card> cards, std::vector<std::uint32_t> awaited,
                  std::span<const OfferedRegion> mine, std::uint64_t deadline_ns,
                  std::map<std::uint32_t, Result<PeerOffers>>& results) const;

  std::uint32_t rank_ = 0;
  std::string name_;
  std::uint8_t token_[peer::kTokenBytes] = {};
  Descriptor listener_;
};

}  // namespace gdx
