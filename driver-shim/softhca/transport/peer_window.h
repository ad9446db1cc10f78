// Bound on one HCA's packets in another's receive socket. One window serves all connections between the two,
// in units that bound the kernel's charge for a packet. A grant is an absolute limit to a cumulative count,
// so it may be lost, repeated or late.
//
//   sender    packets, marker(sent 900) ---------> receiver: all 900 units have left the socket or are lost
//   sender    <------------ grant(limit 1500)      sender: may count up to 1500 until its lease ends
//
// A socket is a queue. So a receiver that takes a marker has taken, or lost, all units counted before it. The
// receiver thus counts no packets, and lost units return with the next marker.
// Grants are leases. The sender's lease ends kLeaseNs after it sent the answered marker. The receiver's ends
// later, kReclaimNs after it took that marker. So a silent peer's share returns by itself, after that peer
// has stopped using it.
// Pure: time comes as an argument. Source: the absolute credit limits of InfiniBand's link layer (IBA 1.4,
// 7.9).
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
// Units allowed in flight without a grant: for new peers and expired leases.
inline constexpr std::uint64_t kMinimumUnits = 32 << 10;
inline constexpr std::uint64_t kStalledNs = 3'000'000'000;
// Fewer markers were sent by a sender that was itself stopped.
inline constexpr std::uint32_t kStalledMarkers = 10;

// Upper bound on Linux's charge for a datagram that arrives alone (skb->truesize). The charge is a power of
// two for payload, headers and the kernel's own part, and a descriptor. Measured on loopback; datagrams
// joined by GRO cost less.
constexpr std::uint64_t window_units(std::size_t datagram_bytes) { return 2 * datagram_bytes + 1024; }

// The sender's side. States and their events:
//   unknown: no packet of the peer has arrived; only the minimum may be outstanding
//   standard: the peer uses no windows; nothing is bounded, no marker is sent to it
//   asking: the peer may use windows and has not granted yet; bounded as while unknown
//   bounded: by its newest grant, as long as that lease lasts
//   unbounded: it grants without limit, or sends packets but no grants; markers continue at intervals
//   unknown -> standard, asking (a packet arrived); standard -> asking; asking -> bounded, unbounded (a
//   grant, or markers ignored); bounded <-> unbounded (a grant); bounded -> standard (stalled, and a packet
//   of another kind arrived)
class SendWindow {
 public:
  explicit SendWindow(std::uint64_t incarnation) : incarnation_(incarnation) {}

  // Handles a packet of the peer. `of_our_kind`: it may use windows. Returns whether a marker is due.
  bool on_packet(std::uint64_t now_ns, bool of_our_kind);
  // Applies a grant. False: late, or no answer to a marker of this sender.
  bool on_grant(std::uint64_t now_ns, const roce::WindowGrant& grant);
  // Returns whether the peer has answered a marker, as only the holder of its RoCE port can: forgers of its
  // address receive none.
  [[nodiscard]] bool answered() const { return answered_; }
  // Forgets that answer and the markers without one, and asks again, because the address may get another
  // owner.
  void doubt() {
    answered_ = asked_ = false;
    unanswered_ = ignored_ = 0;
  }
  // Returns the units that may still be counted now.
  [[nodiscard]] std::uint64_t room_units(std::uint64_t now_ns) const;
  // Returns whether a bound exists for services without acknowledgements.
  [[nodiscard]] bool bounds_datagrams() const { return peer_ == Peer::kAsking || peer_ == Peer::kBounded; }
  void charge(std::uint64_t units) { sent_units_ += units; }
  // Records that a sender waits for room. True: the first wait since there was some.
  bool wait(std::uint64_t now_ns);
  // Returns whether silence has lasted so long, over so many markers, that only timers can detect a live
  // peer. Senders without timers may send then.
  [[nodiscard]] bool stalled(std::uint64_t now_ns) const {
    const bool asked_enough = peer_ == Peer::kUnknown || unanswered_ >= kStalledMarkers;
    return waiting_ && asked_enough && now_ns >= waiting_since_ns_ + kStalledNs;
  }
  // Returns the marker that is due now: send it after everything that was charged.
  [[nodiscard]] std::optional<roce::WindowMarker> take_marker(std::uint64_t now_ns);
  [[nodiscard]] bool waiting() const { return waiting_; }
  // Returns the time of the next marker for waiting senders, or of the stall.
  [[nodiscard]] std::uint64_t next_deadline_ns(std::uint64_t now_ns) const;
  // Returns the first broken invariant; nullptr: all hold.
  [[nodiscard]] const char* check_invariants() const;

 private:
  enum class Peer : std::uint8_t { kUnknown, kStandard, kAsking, kBounded, kUnbounded };

  [[nodiscard]] bool unlimited() const { return peer_ == Peer::kStandard || peer_ == Peer::kUnbounded; }
  [[nodiscard]] std::uint64_t limit_units(std::uint64_t now_ns) const;
  [[nodiscard]] bool marker_due(std::uint64_t now_ns) const;
  void end_wait();

  std::uint64_t incarnation_;
  Peer peer_ = Peer::kUnknown;
  std::uint64_t sent_units_ = 0;    // cumulative, as all units here
  std::uint64_t marked_units_ = 0;  // count in the newest marker
  std::uint64_t taken_units_ = 0;   // units that grants confirm as taken or lost
  std::uint64_t limit_units_ = 0;
  std::uint64_t granted_for_ns_ = 0;  // sending time of the marker that the newest grant answers
  bool answered_ = false;
  bool asked_ = false;
  std::uint64_t asked_ns_ = 0;  // sending time of the newest marker
  std::uint64_t ask_again_ns_ = kNever;
  std::uint64_t interval_ns_ = 0;
  std::uint32_t unanswered_ = 0;  // markers since the newest grant
  bool arrived_since_ = false;    // a packet arrived since the newest marker
  std::uint32_t ignored_ = 0;     // markers followed by other packets, but no grant
  bool waiting_ = false;
  std::uint64_t waiting_since_ns_ = 0;
};

// The receiver's side: divides the socket's capacity among the peers that send now. Promised and untaken
// units never exceed that capacity, whatever peers arrive, leave or die. A peer that sends gets a small part
// first, and twice as much with each marker of a window that it uses up, until its part is equal to the
// others'. A later one gets the parts that others release as they send, or as their leases end.
class ReceiveShares {
 public:
  using Key = std::array<std::uint8_t, 16>;

  // `socket_bytes`: the kernel's limit for the socket (SO_RCVBUF).
  explicit ReceiveShares(std::uint64_t socket_bytes);

  // Handles a marker that came out of the socket. Returns the grant; nullopt for a late marker.
  [[nodiscard]] std::optional<roce::WindowGrant> on_marker(std::uint64_t now_ns, const Key& peer,
                                                           const roce::WindowMarker& marker);
  // Handles a datagram that came out of the socket.
  void on_taken(std::size_t datagram_bytes) { taken_bytes_ += datagram_bytes; }
  // Handles an empty socket.
  void on_drained(std::uint64_t now_ns);

  [[nodiscard]] std::uint64_t capacity_units() const { return capacity_units_; }
  [[nodiscard]] std::uint64_t promised_units() const;  // units that are promised to all peers together
  [[nodiscard]] std::uint64_t promised_units(const Key& peer) const;
  // Returns the first broken invariant; nullptr: all hold.
  [[nodiscard]] const char* check_invariants() const;

 private:
  static constexpr std::size_t kMaxPeers = 1024;  // more get the minimum

  struct Share {
    std::uint64_t incarnation = 0;
    std::uint64_t taken_units = 0;  // count of the newest marker
    std::uint64_t limit_units = 0;
    std::uint64_t renewed_ns = 0;
    std::optional<std::uint64_t> ended_at_bytes;  // taken_bytes_ at the first poll after the lease's end

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
