#include "host/direct/offer_exchange.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/clock.h"

namespace gdx {
namespace {

using bootstrap::LocalMessage;

static_assert(sizeof(peer::OfferHeader) + kMaxPeerWindows * sizeof(peer::Offer) <=
              bootstrap::kMaxLocalMessageBytes);
static_assert(kMaxPeerWindows * peer::kMaxParts <= bootstrap::kMaxLocalMessageDescriptors);

// Bound on a silent connection, so that it does not use up the time of the ranks after it.
constexpr std::uint64_t kFirstWordNs = 5'000'000'000;

// The process at the other end lives: it waits for this one in the exchange, or in what the ranks do next.
Descriptor process_of(const Descriptor& socket) {
  const auto peer = bootstrap::peer_of(socket);
  if (!peer || peer->pid <= 0) return {};
  return Descriptor::keep(static_cast<int>(syscall(SYS_pidfd_open, peer->pid, 0)));
}

// Errors: kVersionMismatch, kInvalidArgument.
Result<PeerOffers> parse(LocalMessage message, Descriptor process) {
  peer::OfferHeader header{};
  std::memcpy(&header, message.bytes.data(), sizeof header);  // sender() has seen that it is there
  if (header.version != peer::kExchangeVersion) {
    return fail(Status::kVersionMismatch, "it is another gdx: run the same on all ranks");
  }
  if (header.count > kMaxPeerWindows ||
      message.bytes.size() != sizeof header + header.count * sizeof(peer::Offer)) {
    return fail(Status::kInvalidArgument, "its offers are of another length than they say");
  }
  PeerOffers offers;
  offers.offers.resize(header.count);
  if (header.count != 0) {
    std::memcpy(offers.offers.data(), message.bytes.data() + sizeof header,
                header.count * sizeof(peer::Offer));
  }
  std::size_t files = 0;
  for (const peer::Offer& offer : offers.offers) files += std::min<std::size_t>(offer.part_count, 1u << 16);
  if (files != message.descriptors.size()) {
    return fail(Status::kInvalidArgument, "it sent another number of files than its offers name");
  }
  offers.files = std::move(message.descriptors);
  offers.process = std::move(process);
  return offers;
}

Result<void> same_user(const Descriptor& socket) {
  const uid_t user = GDX_TRY(bootstrap::peer_of(socket)).uid;
  if (user == geteuid()) return {};
  return fail(Status::kInvalidArgument, fmt::format("user {} answers in its place", user));
}

}  // namespace

Result<OfferExchange> OfferExchange::listen(std::uint32_t rank) {
  OfferExchange exchange;
  exchange.rank_ = rank;
  std::uint8_t random[peer::kTokenBytes + peer::kNameBytes / 2 - 1] = {};
  if (getrandom(random, sizeof random, 0) != static_cast<ssize_t>(sizeof random)) {
    return fail(Status::kSystem, fmt::format("no random bytes to be had: {}", std::strerror(errno)));
  }
  std::copy_n(random, peer::kTokenBytes, exchange.token_);
  for (std::size_t i = peer::kTokenBytes; i < sizeof random; ++i)
    exchange.name_ += fmt::format("{:02x}", random[i]);
  exchange.listener_ = GDX_TRY(bootstrap::listen_local(exchange.name_));
  return exchange;
}

void OfferExchange::write_to(peer::RankIdentity& identity) const {
  static_assert(sizeof identity.socket_name >= 2 * (peer::kNameBytes / 2 - 1) + 1);
  std::copy(name_.begin(), name_.end(), identity.socket_name);
  std::copy(std::begin(token_), std::end(token_), identity.token);
}

Result<void> OfferExchange::send(const Descriptor& socket, const peer::RankIdentity& to,
                                 std::span<const OfferedRegion> mine, std::uint64_t deadline_ns) const {
  peer::OfferHeader header{};
  header.version = peer::kExchangeVersion;
  header.rank = rank_;
  std::copy(std::begin(to.token), std::end(to.token), header.token);
  header.count = static_cast<std::uint32_t>(mine.size());
  std::vector<std::byte> bytes(sizeof header + mine.size() * sizeof(peer::Offer));
  std::memcpy(bytes.data(), &header, sizeof header);
  std::vector<int> files;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    std::memcpy(bytes.data() + sizeof header + i * sizeof(peer::Offer), &mine[i].offer, sizeof(peer::Offer));
    files.insert(files.end(), mine[i].files.begin(), mine[i].files.end());
  }
  return bootstrap::send_local(socket, bytes, files, deadline_ns);
}

std::optional<std::uint32_t> OfferExchange::sender(const LocalMessage& message,
                                                   std::span<const std::uint32_t> awaited) const {
  peer::OfferHeader header{};
  if (message.bytes.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, message.bytes.data(), sizeof header);
  if (!std::equal(std::begin(token_), std::end(token_), header.token)) return std::nullopt;
  const bool known = std::find(awaited.begin(), awaited.end(), header.rank) != awaited.end();
  return known ? std::optional(header.rank) : std::nullopt;
}

// Accepts awaited ranks; leaves other connections without an answer, and continues to wait.
void OfferExchange::accept_all(std::span<const peer::RankIdentity> identities,
                               std::vector<std::uint32_t> awaited, std::span<const OfferedRegion> mine,
                               std::uint64_t deadline_ns,
                               std::map<std::uint32_t, Result<PeerOffers>>& results) const {
  while (!awaited.empty()) {
    auto socket = bootstrap::accept_local(listener_, deadline_ns);
    if (!socket) {
      for (const std::uint32_t rank : awaited) results[rank] = tl::unexpected(socket.error());
      return;
    }
    if (!same_user(*socket)) continue;
    auto message = bootstrap::receive_local(*socket, std::min(deadline_ns, monotonic_ns() + kFirstWordNs));
    if (!message) continue;
    const auto rank = sender(*message, awaited);
    if (!rank) continue;
    std::erase(awaited, *rank);
    Descriptor process = process_of(*socket);
    const auto sent = send(*socket, identities[*rank], mine, deadline_ns);
    results[*rank] = sent ? parse(std::move(*message), std::move(process))
                          : Result<PeerOffers>(tl::unexpected(sent.error()));
  }
}

std::map<std::uint32_t, Result<PeerOffers>> OfferExchange::run(std::span<const peer::RankIdentity> identities,
                                                               std::span<const std::uint32_t> peers,
                                                               std::span<const OfferedRegion> mine,
                                                               std::uint64_t deadline_ns) {
  std::map<std::uint32_t, Result<PeerOffers>> results;
  std::map<std::uint32_t, Descriptor> called;
  std::vector<std::uint32_t> awaited;
  // Of two ranks the higher one connects. No two ranks wait for each other, because a connection and its
  // message need no accept on the other side.
  for (const std::uint32_t rank : peers) {
    if (rank > rank_) {
      awaited.push_back(rank);
      continue;
    }
    const char* const name = identities[rank].socket_name;
    auto socket =
        bootstrap::connect_local(std::string(name, strnlen(name, sizeof identities[rank].socket_name)));
    Result<void> done = socket ? same_user(*socket) : Result<void>(tl::unexpected(socket.error()));
    if (done) done = send(*socket, identities[rank], mine, deadline_ns);
    if (done) {
      called[rank] = std::move(*socket);
    } else {
      results[rank] = tl::unexpected(done.error());
    }
  }
  accept_all(identities, std::move(awaited), mine, deadline_ns, results);
  for (const auto& [rank, socket] : called) {
    auto message = bootstrap::receive_local(socket, deadline_ns);
    if (!message) {
      results[rank] = tl::unexpected(message.error());
    } else if (sender(*message, std::span(&rank, 1)) == std::nullopt) {
      results[rank] = fail(Status::kInvalidArgument, "somebody else answers in its place");
    } else {
      results[rank] = parse(std::move(*message), process_of(socket));
    }
  }
  return results;
}

}  // namespace gdx
