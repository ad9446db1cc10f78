// Tokens by which an HCA recognises the UDP packets of the other HCAs of its host. Any user of a host may
// name any address of that host as the source of a packet, but gets no packet that was sent to it. So a token
// goes to the address for which it is, and packets under that address without it are forged.
//
//   B -> A: request(incarnation of B, challenge of B)
//   A -> B: request(incarnation of A, challenge of A)   unless A knows this incarnation of B
//   A -> B: answer(challenge of B, incarnation of A, token of A for B)
//   B -> A: answer(challenge of A, incarnation of B, token of B for A)
//   B -> A: packets with A's token
//
// A token is valid for one address, and for the incarnation that the holder of that address has proved by its
// answer to a challenge. Therefore a former holder's token ends with the next holder's answer, and a request
// under a foreign name changes nothing. Nothing is stored for addresses that have not answered.
// Pure: time and the host's addresses come from outside.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/sip_hash.h"
#include "driver-shim/softhca/wire/wire.h"
#include "proto/roce/headers.h"
#include "proto/roce/host_token.h"

namespace gdx::softhca::wire {

// Change that a token makes to a packet: of the bits of the BTH that IBA reserves, and of the ICRC. Applied
// twice it changes nothing.
class Seal {
 public:
  Seal() = default;  // changes nothing
  explicit Seal(std::uint64_t token);

  // `datagram`: from BTH to ICRC.
  void apply(std::span<std::byte> datagram) const;
  // Returns whether the reserved bits are zero, as in a packet without a seal.
  [[nodiscard]] static bool is_off(std::span<const std::byte> datagram);

  bool operator==(const Seal&) const = default;

 private:
  std::uint32_t icrc_ = 0;
  std::byte first_{};
  std::byte second_{};
};

class HostTokens {
 public:
  // kOther: of another host, or the HCA itself; packets are plain.
  // kAwaited: its token was requested; packets wait.
  // kKnown: its token is here; packets carry it.
  // kSilent: it has not answered for kSilentNs; packets are plain, and lost if an HCA is there.
  enum class Standing : std::uint8_t { kOther, kAwaited, kKnown, kSilent };

  struct Peer {
    Standing standing = Standing::kOther;
    Seal to;    // of packets to it
    Seal from;  // of its packets
    std::uint64_t request_again_ns = 0;

   private:
    friend class HostTokens;
    std::uint64_t incarnation_ = 0;  // proved last
    std::uint64_t answers_ = 0;      // proofs so far: each has another challenge
    std::uint64_t awaited_since_ns_ = 0;
    std::uint64_t interval_ns_ = 0;
    std::uint64_t used_ns_ = 0;
  };
  struct Message {
    Address peer;
    roce::Opcode opcode;
    roce::HostToken body;
  };
  using Addresses = std::function<std::optional<std::vector<Address>>()>;

  static constexpr std::uint64_t kSilentNs = 1'000'000'000;
  static constexpr std::uint64_t kRenewNs = 500'000'000;  // between requests to a peer that has answered
  static constexpr std::size_t kMaxPeers = 4096;
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};

  // `secret`: of this HCA alone. `addresses` returns those of the host, without 127.0.0.0/8, or nothing where
  // they cannot be read: those read before then stay. Called at once, and by meet() and on_message().
  // `foreign_on_loopback`: an address of 127.0.0.0/8 has an HCA of this kind only once it sent a request.
  HostTokens(const SipKey& secret, const Address& local, Addresses addresses,
             bool foreign_on_loopback = false);

  // Returns the peer at `destination`, or null before the first meet().
  [[nodiscard]] Peer* find(const Address& destination) {
    return newest_ != nullptr && newest_address_ == destination ? newest_ : look_up(destination);
  }
  // Returns the peer at `destination`, and requests its token if it is of this host and new. Valid until the
  // next meet() or on_message().
  Peer& meet(const Address& destination, std::uint64_t now_ns);
  // Requests the token again where that is due: call it for peers to which packets leave.
  void renew(const Address& destination, Peer& peer, std::uint64_t now_ns) {
    if (now_ns >= peer.request_again_ns && peer.standing != Standing::kOther)
      request(destination, peer, now_ns);
  }

  // Returns whether packets from `source` must carry a token of this HCA.
  [[nodiscard]] bool guards(const Address& source) const;
  // Handles a message. Returns whether it has made a peer known.
  bool on_message(const Address& source, roce::Opcode opcode, const roce::HostToken& body,
                  std::uint64_t now_ns);

  // Repeats requests and ends waits. Returns whether a wait has ended.
  bool advance(std::uint64_t now_ns);
  // Returns the time of the next advance(); kNever: none is needed.
  [[nodiscard]] std::uint64_t next_deadline_ns() const { return awaited_ == 0 ? kNever : next_ns_; }
  [[nodiscard]] bool has_due() const { return !due_.empty(); }
  // Takes the messages that are to leave, in their order.
  [[nodiscard]] std::vector<Message> take_due() { return std::exchange(due_, {}); }

  [[nodiscard]] std::uint64_t incarnation() const { return incarnation_; }
  // Returns this HCA's token for one incarnation of the HCA at `peer`.
  [[nodiscard]] std::uint64_t token_for(const Address& peer, std::uint64_t incarnation) const;

 private:
  using Key = std::array<std::uint8_t, 16>;

  [[nodiscard]] Peer* look_up(const Address& destination);
  Peer& insert(const Address& address, std::uint64_t now_ns);
  void read_host(std::uint64_t now_ns);
  void await(const Address& destination, Peer& peer, std::uint64_t now_ns);
  void request(const Address& destination, Peer& peer, std::uint64_t now_ns);
  void set_standing(Peer& peer, Standing standing);
  [[nodiscard]] roce::HostToken request_for(const Address& destination, const Peer* peer,
                                            std::uint64_t now_ns) const;
  [[nodiscard]] std::uint64_t challenge_for(const Address& peer, std::uint64_t answers,
                                            std::uint64_t epoch) const;
  [[nodiscard]] std::uint64_t hash(std::uint64_t purpose, const Address& address, std::uint64_t first,
                                   std::uint64_t second) const;
  [[nodiscard]] bool takes_request(const Address& source, std::uint64_t now_ns);
  bool on_answer(const Address& source, const roce::HostToken& body, std::uint64_t now_ns);

  SipKey secret_;
  Address local_;
  Addresses addresses_;
  bool foreign_on_loopback_;
  std::uint64_t incarnation_;
  std::vector<Address> host_;  // addresses of this host, as last read
  std::uint64_t read_ns_ = 0;  // 0: not since the start
  std::map<Key, Peer> peers_;
  std::size_t awaited_ = 0;         // peers of that standing
  std::uint64_t next_ns_ = kNever;  // no request of theirs is due before
  Address newest_address_;
  Peer* newest_ = nullptr;
  std::uint64_t interval_ = 0;                   // the answers of one interval are limited
  std::array<std::uint32_t, 2> answers_left_{};  // to addresses without a peer, and to peers
  std::vector<Message> due_;
};

}  // namespace gdx::softhca::wire
