#include "driver-shim/softhca/wire/host_tokens.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace gdx::softhca::wire {
namespace {

// Bytes of the BTH with reserved bits, and those bits. The bits beside them carry FECN, BECN, the absence of
// a GRH and the request for an ACK.
constexpr std::size_t kFirstByte = 4;
constexpr std::size_t kSecondByte = 8;
constexpr std::byte kFirstBits{0x3e};
constexpr std::byte kSecondBits{0x7f};

constexpr std::uint64_t kFirstIntervalNs = 10'000'000;  // before a request without an answer is repeated
constexpr std::uint64_t kLongestIntervalNs = 200'000'000;
// Life of a challenge: the rest of its epoch and the next one.
constexpr unsigned kEpochBits = 30;
// Bound on the work that requests under invented addresses make. Peers have another of this size.
constexpr std::uint64_t kAnswerIntervalNs = 10'000'000;
constexpr std::uint32_t kAnswersPerInterval = 1000;
constexpr std::uint64_t kReadIntervalNs = 100'000'000;  // between two looks at the host's addresses

enum Purpose : std::uint64_t { kIncarnation = 1, kToken, kChallenge };

}  // namespace

Seal::Seal(std::uint64_t token)
    : icrc_(static_cast<std::uint32_t>(token)),
      first_(static_cast<std::byte>(token >> 32) & kFirstBits),
      second_(static_cast<std::byte>(token >> 40) & kSecondBits) {}

void Seal::apply(std::span<std::byte> datagram) const {
  datagram[kFirstByte] ^= first_;
  datagram[kSecondByte] ^= second_;
  std::byte* const at = datagram.data() + datagram.size() - sizeof icrc_;
  std::uint32_t icrc = 0;
  std::memcpy(&icrc, at, sizeof icrc);
  icrc ^= icrc_;
  std::memcpy(at, &icrc, sizeof icrc);
}

bool Seal::is_off(std::span<const std::byte> datagram) {
  return (datagram[kFirstByte] & kFirstBits) == std::byte{0} &&
         (datagram[kSecondByte] & kSecondBits) == std::byte{0};
}

HostTokens::HostTokens(const SipKey& secret, const Address& local, Addresses addresses,
                       bool foreign_on_loopback)
    : secret_(secret),
      local_(local),
      addresses_(std::move(addresses)),
      foreign_on_loopback_(foreign_on_loopback),
      incarnation_(hash(kIncarnation, local, 0, 0)) {
  read_host(0);
}

// Reads at intervals, because a program may meet many peers at once.
void HostTokens::read_host(std::uint64_t now_ns) {
  if (!addresses_ || (read_ns_ != 0 && now_ns - read_ns_ < kReadIntervalNs)) return;
  read_ns_ = now_ns;
  if (std::optional<std::vector<Address>> present = addresses_()) host_ = std::move(*present);
}

// Chains the hash over a message of one length, which is as good as one of the whole.
std::uint64_t HostTokens::hash(std::uint64_t purpose, const Address& address, std::uint64_t first,
                               std::uint64_t second) const {
  std::array<std::uint64_t, 2> words;
  std::memcpy(words.data(), address.gid.data(), sizeof words);
  std::uint64_t sum = 0;
  for (const std::uint64_t block : {purpose, words[0], words[1], first, second})
    sum = sip_hash(secret_, sum ^ block);
  return sum;
}

std::uint64_t HostTokens::token_for(const Address& peer, std::uint64_t incarnation) const {
  return hash(kToken, peer, incarnation, 0);
}

std::uint64_t HostTokens::challenge_for(const Address& peer, std::uint64_t answers,
                                        std::uint64_t epoch) const {
  return hash(kChallenge, peer, answers, epoch);
}

roce::HostToken HostTokens::request_for(const Address& destination, const Peer* peer,
                                        std::uint64_t now_ns) const {
  const std::uint64_t answers = peer == nullptr ? 0 : peer->answers_;
  return {incarnation_, challenge_for(destination, answers, now_ns >> kEpochBits), 0};
}

bool HostTokens::guards(const Address& source) const {
  if (source == local_) return false;
  if (!foreign_on_loopback_ && source.is_loopback()) return true;
  return std::ranges::find(host_, source) != host_.end();
}

HostTokens::Peer* HostTokens::look_up(const Address& destination) {
  const auto found = peers_.find(destination.gid);
  if (found == peers_.end()) return nullptr;
  newest_address_ = destination;
  newest_ = &found->second;
  return newest_;
}

// Replaces a peer where there are too many: one of another host, which costs nothing, or else the one that
// was not used for the longest time. That one gets a new token with its next request.
HostTokens::Peer& HostTokens::insert(const Address& address, std::uint64_t now_ns) {
  if (peers_.size() >= kMaxPeers) {
    const auto oldest = std::ranges::min_element(peers_, {}, [](const auto& entry) {
      return std::pair(entry.second.standing != Standing::kOther, entry.second.used_ns_);
    });
    set_standing(oldest->second, Standing::kOther);
    peers_.erase(oldest);
  }
  newest_address_ = address;
  newest_ = &peers_[address.gid];
  newest_->used_ns_ = now_ns;
  return *newest_;
}

void HostTokens::set_standing(Peer& peer, Standing standing) {
  if (peer.standing == Standing::kAwaited) --awaited_;
  if (standing == Standing::kAwaited) ++awaited_;
  peer.standing = standing;
}

HostTokens::Peer& HostTokens::meet(const Address& destination, std::uint64_t now_ns) {
  if (Peer* const known = find(destination)) return *known;
  Peer& peer = insert(destination, now_ns);
  if (!guards(destination)) read_host(now_ns);
  if (guards(destination)) await(destination, peer, now_ns);
  return peer;
}

void HostTokens::await(const Address& destination, Peer& peer, std::uint64_t now_ns) {
  set_standing(peer, Standing::kAwaited);
  peer.awaited_since_ns_ = now_ns;
  request(destination, peer, now_ns);
}

void HostTokens::request(const Address& destination, Peer& peer, std::uint64_t now_ns) {
  due_.push_back({destination, roce::Opcode::kTokenRequest, request_for(destination, &peer, now_ns)});
  peer.interval_ns_ =
      peer.interval_ns_ == 0 ? kFirstIntervalNs : std::min(2 * peer.interval_ns_, kLongestIntervalNs);
  peer.request_again_ns = now_ns + (peer.standing == Standing::kKnown ? kRenewNs : peer.interval_ns_);
  peer.used_ns_ = now_ns;
  if (peer.standing == Standing::kAwaited) next_ns_ = std::min(next_ns_, peer.request_again_ns);
}

// Finds also an address that the host has got since the addresses were read.
bool HostTokens::takes_request(const Address& source, std::uint64_t now_ns) {
  if (source == local_) return false;
  if (!guards(source)) {
    if (source.is_loopback()) {
      host_.push_back(source);
    } else {
      read_host(now_ns);
    }
    if (!guards(source)) return false;
  }
  if (const std::uint64_t interval = now_ns / kAnswerIntervalNs; interval != interval_) {
    interval_ = interval;
    answers_left_.fill(kAnswersPerInterval);
  }
  std::uint32_t& left = answers_left_[find(source) == nullptr ? 0 : 1];
  if (left == 0) return false;
  --left;
  return true;
}

bool HostTokens::on_message(const Address& source, roce::Opcode opcode, const roce::HostToken& body,
                            std::uint64_t now_ns) {
  if (opcode == roce::Opcode::kTokenAnswer) return on_answer(source, body, now_ns);
  if (!takes_request(source, now_ns)) return false;
  // The request goes first: so the asker answers it before it sends packets, which then find its answers'
  // way open.
  Peer* const peer = find(source);
  const bool proved =
      peer != nullptr && peer->standing == Standing::kKnown && peer->incarnation_ == body.incarnation;
  if (peer != nullptr && peer->standing == Standing::kOther) {
    await(source, *peer, now_ns);
  } else if (!proved) {
    due_.push_back({source, roce::Opcode::kTokenRequest, request_for(source, peer, now_ns)});
  }
  due_.push_back({source,
                  roce::Opcode::kTokenAnswer,
                  {incarnation_, body.challenge, token_for(source, body.incarnation)}});
  return false;
}

bool HostTokens::on_answer(const Address& source, const roce::HostToken& body, std::uint64_t now_ns) {
  if (!guards(source)) return false;
  Peer* peer = find(source);
  const std::uint64_t answers = peer == nullptr ? 0 : peer->answers_;
  const std::uint64_t epoch = now_ns >> kEpochBits;
  if (body.challenge != challenge_for(source, answers, epoch) &&
      body.challenge != challenge_for(source, answers, epoch - 1))
    return false;
  if (peer == nullptr) peer = &insert(source, now_ns);
  peer->used_ns_ = now_ns;
  set_standing(*peer, Standing::kKnown);
  peer->to = Seal(body.token);
  peer->from = Seal(token_for(source, body.incarnation));
  peer->incarnation_ = body.incarnation;
  ++peer->answers_;
  peer->interval_ns_ = 0;
  peer->request_again_ns = now_ns + kRenewNs;
  return true;
}

bool HostTokens::advance(std::uint64_t now_ns) {
  if (now_ns < next_ns_) return false;
  next_ns_ = kNever;
  bool ended = false;
  for (auto& [gid, peer] : peers_) {
    if (peer.standing != Standing::kAwaited) continue;
    if (now_ns >= peer.awaited_since_ns_ + kSilentNs) {
      set_standing(peer, Standing::kSilent);
      ended = true;
    } else if (now_ns >= peer.request_again_ns) {
      request({gid}, peer, now_ns);
    } else {
      next_ns_ = std::min(next_ns_, peer.request_again_ns);
    }
  }
  return ended;
}

}  // namespace gdx::softhca::wire
