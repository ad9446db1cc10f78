// How much one HCA may have in another's receive socket: one window for all connections between the two, in
// units that bound what the kernel charges for a packet. A grant is an absolute limit to a cumulative count,
// so it may be lost, repeated or late.
//   The sender puts a marker with its count behind its packets. A socket is a queue: who takes the marker out
//   of it has taken, or lost, all that was counted before. So nobody counts packets at the receiver, and what
//   is lost comes back with the next marker. Grants are leases. The sender's ends kLeaseNs after it sent the
//   marker that the grant answers, the receiver's kReclaimNs after it took that marker, which is later. So
//   the share of who fell silent comes back without asking, and one that wakes up has stopped relying on it.
// Pure: time comes as an argument. Source: the absolute credit limits of InfiniBand's link layer
// (IBA 1.4, 7.9).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "driver-shim/softhca/transport/rc_types.h"
#include "proto/roce/window.h"

namespace gdx::softhca::transport {

inline constexpr std::uint64_t kLeaseNs = 500'000'000;
inline constexpr std::uint64_t kReclaimNs = 1'000'000'000;
// What anybody may have outstanding without a grant: a stranger's first packets, and those of who was silent.
inline constexpr std::uint64_t kMinimumUnits = 32 << 10;
inline constexpr std::uint64_t kStalledNs = 3'000'000'000;
inline constexpr std::uint32_t kStalledMarkers = 10;  // who was stopped himself has not asked so often

// At most what Linux charges a receive socket for a datagram of that size that arrives alone (skb->truesize:
// a power of two that holds payload, headers and the kernel's own part, and a descriptor). Measured on
// loopback; joined by GRO they cost less.
constexpr std::uint64_t window_units(std::size_t datagram_bytes) { return 2 * datagram_bytes + 1024; }

// The sender's side. States and their events:
//   unknown: nothing has been heard of the peer; only the minimum may be outstanding
//   standard: it does not speak of windows; nothing is bounded, nothing of ours is sent to it
//   asking: it is of our kind and has not granted yet; bounded as while unknown
//   bounded: by its newest grant, as long as that lease lasts
//   unbounded: it grants without limit, or answers no markers although it lives; asked again now and then
//   unknown -> standard, asking (a packet was heard); standard -> asking; asking -> bounded, unbounded (a
//   grant, or silence); bounded <-> unbounded (a grant); bounded -> standard (silent, and something else was
//   heard)
class SendWindow {
 public:
  explicit SendWindow(std::uint64_t incarnation) : incarnation_(incarnation) {}

  // The peer lives. `of_our_kind`: it may know of windows. Returns whether a marker is due.
  bool on_heard(std::uint64_t now_ns, bool of_our_kind);
  // False: late, or not an answer to us.
  bool on_grant(std::uint64_t now_ns, const roce::WindowGrant& grant);
  // What may still be counted now.
  [[nodiscard]] std::uint64_t room_units(std::uint64_t now_ns) const;
  // Whether it has been said how much a service without acknowledgements may send.
  [[nodiscard]] bool bounds_datagrams() const { return peer_ == Peer::kAsking || peer_ == Peer::kBounded; }
  void charge(std::uint64_t units) { sent_units_ += units; }
  // Somebody has something to send for which there is no room. True: the first since there was some.
  bool wait(std::uint64_t now_ns);
  // No word for so long, and to so many questions, that only timers can tell whether the peer lives: whoever
  // runs none may send.
  [[nodiscard]] bool stalled(std::uint64_t now_ns) const {
    const bool asked_enough = peer_ == Peer::kUnknown || unanswered_ >= kStalledMarkers;
    return waiting_ && asked_enough && now_ns >= waiting_since_ns_ + kStalledNs;
  }
  // The marker that is due now: send it behind everything that was charged.
  [[nodiscard]] std::optional<roce::WindowMarker> take_marker(std::uint64_t now_ns);
  [[nodiscard]] bool waiting() const { return waiting_; }
  // When who waits should be asked again: take_marker() has one, or the peer counts as stalled.
  [[nodiscard]] std::uint64_t next_deadline_ns(std::uint64_t now_ns) const;

 private:
  enum class Peer : std::uint8_t { kUnknown, kStandard, kAsking, kBounded, kUnbounded };

  [[nodiscard]] bool unlimited() const { return peer_ == Peer::kStandard || peer_ == Peer::kUnbounded; }
  [[nodiscard]] std::uint64_t limit_units(std::uint64_t now_ns) const;
  [[nodiscard]] bool marker_due(std::uint64_t now_ns) const;
  void end_wait();

  std::uint64_t incarnation_;
  Peer peer_ = Peer::kUnknown;
  std::uint64_t sent_units_ = 0;    // cumulative, as all of these
  std::uint64_t marked_units_ = 0;  // what the newest marker says
  std::uint64_t taken_units_ = 0;   // what the peer is known to have taken, or lost
  std::uint64_t limit_units_ = 0;
  std::uint64_t granted_for_ns_ = 0;  // when the marker was sent that the newest grant answers
  bool asked_ = false;
  std::uint64_t asked_ns_ = 0;  // the newest marker
  std::uint64_t ask_again_ns_ = kNever;
  std::uint64_t interval_ns_ = 0;
  std::uint32_t unanswered_ = 0;  // markers since the newest grant
  bool heard_since_ = false;      // something, since the newest marker
  std::uint32_t ignored_ = 0;     // markers after which something else came, and none of them answered
  bool waiting_ = false;
  std::uint64_t waiting_since_ns_ = 0;
};

// The receiver's side: divides what its socket can hold among the peers that send now. What has been promised
// and not been taken is never more than that, whoever comes, goes or dies. A peer that sends gets an equal
// part; one that comes later gets what the others give up as they send, or as their leases end.
class ReceiveShares {
 public:
  using Key = std::array<std::uint8_t, 16>;

  // `socket_bytes`: what the kernel lets the socket hold (SO_RCVBUF).
  explicit ReceiveShares(std::uint64_t socket_bytes);

  // A marker has come out of the socket. The answer, or nothing for a late one.
  [[nodiscard]] std::optional<roce::WindowGrant> on_marker(std::uint64_t now_ns, const Key& peer,
                                                           const roce::WindowMarker& marker);
  // A datagram has come out of it.
  void on_taken(std::size_t datagram_bytes) { taken_bytes_ += datagram_bytes; }
  // The socket has nothing more.
  void on_drained(std::uint64_t now_ns);

  [[nodiscard]] std::uint64_t capacity_units() const { return capacity_units_; }
  [[nodiscard]] std::uint64_t promised_units() const;  // to all of them
  [[nodiscard]] std::uint64_t promised_units(const Key& peer) const;

 private:
  static constexpr std::size_t kMaxPeers = 1024;  // more get the minimum

  struct Share {
    std::uint64_t incarnation = 0;
    std::uint64_t taken_units = 0;  // as the newest marker says
    std::uint64_t limit_units = 0;
    std::uint64_t renewed_ns = 0;
    std::optional<std::uint64_t> ended_at_bytes;  // taken_bytes_ when the lease was found to have ended

    [[nodiscard]] std::uint64_t promised_units() const { return limit_units - taken_units; }
  };

  void reclaim(std::uint64_t now_ns, bool drained);

  std::uint64_t socket_bytes_;
  std::uint64_t capacity_units_;
  std::uint64_t taken_bytes_ = 0;
  std::uint64_t next_end_ns_ = kNever;  // no lease ends before
  std::map<Key, Share> shares_;
};

}  // namespace gdx::softhca::transport
