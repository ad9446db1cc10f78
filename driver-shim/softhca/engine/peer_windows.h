// Windows of one HCA to its peers' receive sockets, and the shares of its own that it grants them. Each
// address has one, whatever its number of connections.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "driver-shim/softhca/transport/peer_window.h"
#include "driver-shim/softhca/wire/wire.h"
#include "proto/roce/codec.h"

namespace gdx::softhca {

struct WindowCounters {
  std::uint64_t waits = 0;    // sends that had to wait for room in a peer's socket
  std::uint64_t markers = 0;  // packets sent to request more
  std::uint64_t grants = 0;   // answers sent to peers' markers
};

class PeerWindow {
 public:
  PeerWindow(const wire::Address& peer, std::uint64_t incarnation) : peer_(peer), window_(incarnation) {}

  [[nodiscard]] const wire::Address& peer() const { return peer_; }
  [[nodiscard]] const transport::SendWindow& window() const { return window_; }

 private:
  friend class PeerWindows;

  wire::Address peer_;
  transport::SendWindow window_;
  bool listed_ = false;
};

class PeerWindows {
 public:
  using Random = std::function<std::uint32_t()>;

  // `granting`: off, neither this HCA's sends nor its peers' are bounded.
  PeerWindows(bool granting, std::size_t socket_bytes, Random random)
      : on_(granting && socket_bytes > 0), shares_(socket_bytes), random_(std::move(random)) {}

  [[nodiscard]] bool on() const { return on_; }
  // Returns the window to `peer`, made if need be, at an address that lasts as long as this object. Null:
  // nothing is bounded.
  [[nodiscard]] PeerWindow* to(const wire::Address& peer);
  // Counts a datagram of `length_bytes` that leaves for the peer.
  void charge(PeerWindow& window, std::size_t length_bytes) {
    window.window_.charge(transport::window_units(length_bytes));
    list(window);
  }
  void wait(PeerWindow& window, std::uint64_t now_ns);

  // Counts a queue pair that exchanges packets with `peer`; the zero address: with any, as one of UD.
  void connect(const wire::Address& peer) { ++queue_pairs_[peer.gid]; }
  void disconnect(const wire::Address& peer);

  // Counts a datagram of `length_bytes` that came out of this HCA's socket, sent from `port`. False: it is
  // forged, because the peer of a connection has answered a marker from another port.
  [[nodiscard]] bool on_taken(const wire::Address& source, std::uint16_t port, std::size_t length_bytes,
                              std::uint64_t now_ns);
  void on_drained(std::uint64_t now_ns) { shares_.on_drained(now_ns); }
  // Handles a marker or grant from the RoCE port. False: the packet is neither.
  bool on_packet(const wire::Address& source, const roce::Decoded& packet, std::uint64_t now_ns);

  // Sends due markers and grants after all earlier packets. So acknowledgements of packets before a marker
  // leave before its grant.
  using Send =
      std::function<void(const wire::Address& peer, roce::Opcode opcode, const roce::WindowGrant& body)>;
  void send_due(std::uint64_t now_ns, const Send& send);
  [[nodiscard]] std::uint64_t next_deadline_ns(std::uint64_t now_ns) const;
  [[nodiscard]] const WindowCounters& counters() const { return counters_; }
  // Returns the first broken invariant; nullptr: all hold.
  [[nodiscard]] const char* check_invariants() const;

 private:
  static constexpr std::size_t kMaxPeers = 4096;  // packets to further peers are not bounded

  struct Answer {
    wire::Address peer;
    roce::WindowGrant grant;
  };
  [[nodiscard]] PeerWindow* find(const wire::Address& peer);
  [[nodiscard]] bool gets_share(const wire::Address& peer);
  void list(PeerWindow& window) {
    if (window.listed_) return;
    window.listed_ = true;
    listed_.push_back(&window);
  }

  bool on_;
  transport::ReceiveShares shares_;
  Random random_;
  std::map<transport::ReceiveShares::Key, PeerWindow> windows_;
  std::map<transport::ReceiveShares::Key, std::uint32_t> queue_pairs_;  // number, by peer
  std::vector<PeerWindow*> listed_;                                     // windows that may have a marker due
  std::vector<Answer> answers_;                                         // answers of this step
  // The windows used last, because the next packet often has the peer of the one before.
  struct Known {
    wire::Address peer;
    PeerWindow* window = nullptr;
  };
  Known last_source_;
  Known last_destination_;
  WindowCounters counters_;
};

}  // namespace gdx::softhca
