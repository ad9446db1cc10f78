#include "host/direct/peer_mapping.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/environment.h"
#include "base/log.h"
#include "base/node.h"
#include "base/trace.h"
#include "host/direct/offer_exchange.h"
#include "host/direct/region.h"

namespace gdx {
namespace {

struct Peer {
  std::vector<MappedRegion> regions;  // all of its, or none
  std::string reason;                 // reason for its absence
  Descriptor process = {};
};

Result<void> check_arguments(std::span<const Memory* const> regions, const PeerOptions& options) {
  if (regions.empty() || regions.size() > kMaxPeerWindows) {
    return fail(Status::kInvalidArgument, fmt::format("cannot share {} regions with peers: use 1 to {}",
                                                      regions.size(), kMaxPeerWindows));
  }
  if (std::find(regions.begin(), regions.end(), nullptr) != regions.end()) {
    return fail(Status::kInvalidArgument, "cannot share a region with peers: it is null");
  }
  if (options.timeout_ns == 0) {
    return fail(Status::kInvalidArgument, "peer option timeout_ns = 0: use at least 1");
  }
  return {};
}

// This rank's end of the exchange: its identity, and its listener if it has one.
struct OwnEnd {
  peer::RankIdentity identity{};
  std::optional<OfferExchange> exchange;
  std::string reason;  // reason for its absence
};

// Opens this rank's end. It never fails, because the other ranks wait for the identity.
OwnEnd open_end(std::uint32_t rank, DirectChoice choice) {
  OwnEnd end;
  end.identity.version = peer::kExchangeVersion;
  if (choice == DirectChoice::kOff) {
    end.reason = fmt::format("told not to (${} or PeerOptions::direct)", kDirectVariable);
    return end;
  }
  const auto node = node_identity();
  if (!node) {
    end.reason = node.error().message;
    return end;
  }
  auto exchange = OfferExchange::listen(rank);
  if (!exchange) {
    end.reason = exchange.error().message;
    return end;
  }
  end.identity.willing = 1;
  end.identity.node = *node;
  exchange->write_to(end.identity);
  end.exchange = std::move(*exchange);
  return end;
}

// Returns the difference in two ranks' identities that keeps them apart; both ranks compute an equal result.
std::optional<std::string> why_apart(const OwnEnd& here, const peer::RankIdentity& there) {
  if (!here.exchange) return here.reason;
  if (there.version != peer::kExchangeVersion) return "it is another gdx: run the same on all ranks";
  if (there.willing == 0) return "it was told not to, or cannot: see what it logs";
  return apart(here.identity.node, there.node);
}

Peer map_all(Result<PeerOffers> offered, int gpu) {
  Peer peer;
  if (!offered) {
    peer.reason = offered.error().message;
    return peer;
  }
  if (offered->offers.empty()) peer.reason = "it offers no memory";
  std::span<const Descriptor> files(offered->files);
  for (const peer::Offer& offer : offered->offers) {
    auto mapped = map_region(offer, files.first(offer.part_count), gpu);
    if (!mapped) {
      return {{}, mapped.error().message, {}};
    }
    files = files.subspan(offer.part_count);
    peer.regions.push_back(std::move(*mapped));
  }
  peer.process = std::move(offered->process);
  return peer;
}

}  // namespace

Result<DirectChoice> direct_choice_from_environment() {
  return choice_from_environment<DirectChoice>(
      kDirectVariable,
      {{"auto", DirectChoice::kAuto}, {"on", DirectChoice::kOn}, {"off", DirectChoice::kOff}});
}

struct PeerMapping::Impl {
  std::vector<Peer> peers;  // by rank
  std::vector<std::shared_ptr<GpuMapping>> gpu_mappings;

  void announce(std::uint32_t self) const;
  [[nodiscard]] Result<void> check_all_direct() const;
};

void PeerMapping::Impl::announce(std::uint32_t self) const {
  for (std::uint32_t rank = 0; rank < peers.size(); ++rank) {
    if (rank == self) continue;
    const Peer& peer = peers[rank];
    if (peer.regions.empty()) {
      log::info("rank {} is reached through the NIC: {}", rank, peer.reason);
    } else {
      log::info("rank {} is reached by loads and stores: {} regions of its are mapped", rank,
                peer.regions.size());
    }
  }
}

Result<void> PeerMapping::Impl::check_all_direct() const {
  for (std::uint32_t rank = 0; rank < peers.size(); ++rank) {
    if (!peers[rank].regions.empty()) continue;
    return fail(Status::kUnsupported,
                fmt::format("rank {} cannot be reached by loads and stores: {}; or set {}=auto", rank,
                            peers[rank].reason, kDirectVariable));
  }
  return {};
}

PeerMapping::PeerMapping(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PeerMapping::PeerMapping(PeerMapping&&) noexcept = default;
PeerMapping& PeerMapping::operator=(PeerMapping&&) noexcept = default;
PeerMapping::~PeerMapping() = default;

Result<PeerMapping> PeerMapping::exchange(World& world, std::span<const Memory* const> regions,
                                          const PeerOptions& options) {
  const TraceSpan span("PeerMapping::exchange");
  GDX_TRY(check_arguments(regions, options));
  const auto choice =
      GDX_TRY(options.direct ? Result<DirectChoice>(*options.direct) : direct_choice_from_environment());

  OwnEnd end = open_end(world.rank(), choice);
  const auto identities = GDX_TRY(world.allgather_value(end.identity, options.timeout_ns));

  auto impl = std::make_unique<Impl>();
  impl->peers.resize(world.size());
  std::vector<std::uint32_t> near;
  for (std::uint32_t rank = 0; rank < world.size(); ++rank) {
    if (auto why = why_apart(end, identities[rank])) {
      impl->peers[rank].reason = std::move(*why);
    } else if (rank != world.rank()) {
      near.push_back(rank);
    } else {
      for (const Memory* const memory : regions) impl->peers[rank].regions.push_back(own_region(*memory));
    }
  }
  if (!near.empty()) {
    std::vector<OfferedRegion> mine;
    for (const Memory* const memory : regions) mine.push_back(offer_region(*memory));
    auto results = end.exchange->run(identities, near, mine, monotonic_ns() + options.timeout_ns);
    for (auto& [rank, offered] : results) impl->peers[rank] = map_all(std::move(offered), options.gpu);
  }
  impl->announce(world.rank());
  if (choice == DirectChoice::kOn) {
    GDX_TRY(impl->check_all_direct());
  }
  return PeerMapping(std::move(impl));
}

bool PeerMapping::is_direct(std::uint32_t rank) const {
  return rank < impl_->peers.size() && !impl_->peers[rank].regions.empty();
}

std::string PeerMapping::reason(std::uint32_t rank) const {
  return rank < impl_->peers.size() ? impl_->peers[rank].reason : "no such rank";
}

int PeerMapping::process(std::uint32_t rank) const {
  return is_direct(rank) ? impl_->peers[rank].process.value() : -1;
}

Result<void> PeerMapping::map_to(const Gpu& gpu) {
  for (const Peer& peer : impl_->peers) {
    for (const MappedRegion& region : peer.regions) {
      if (!region.is_host_memory || region.pages == nullptr) continue;  // a rank's own it has mapped itself
      auto mapping = GDX_TRY(gpu.map(region.window.mapped, region.window.bytes));
      impl_->gpu_mappings.push_back(std::move(mapping));
    }
  }
  return {};
}

std::vector<PeerWindow> PeerMapping::windows(std::uint32_t rank) const {
  std::vector<PeerWindow> windows;
  if (!is_direct(rank)) return windows;
  for (const MappedRegion& region : impl_->peers[rank].regions) windows.push_back(region.window);
  return windows;
}

}  // namespace gdx
