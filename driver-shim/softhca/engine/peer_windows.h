// The windows of one HCA to its peers' receive sockets, and the shares of its own that it grants them. There
// is one for each address, whatever the number of connections.
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
  std::uint64_t waits = 0;    // times that something had to wait for room in a peer's socket
  std::uint64_t markers = 0;  // packets sent to ask for more
  std::uint64_t grants = 0;   // and answers to the peers'
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

  // `granting`: off, it neither bounds what is sent nor what peers may send.
  PeerWindows(bool granting, std::size_t socket_bytes, Random random)
      : on_(granting && socket_bytes > 0), shares_(socket_bytes), random_(std::move(random)) {}

  [[nodiscard]] bool on() const { return on_; }
  // The one to `peer`, made if need be; it stays where it is as long as this lives. Null: nothing is bounded.
  [[nodiscard]] PeerWindow* to(const wire::Address& peer);
  // A datagram of `length_bytes` leaves for the peer.
  void charge(PeerWindow& window, std::size_t length_bytes) {
    window.window_.charge(transport::window_units(length_bytes));
    list(window);
  }
  void wait(PeerWindow& window, std::uint64_t now_ns);

  // A datagram of `length_bytes` came out of our socket, sent from `port`.
  void on_taken(const wire::Address& source, std::uint16_t port, std::size_t length_bytes,
                std::uint64_t now_ns);
  void on_drained(std::uint64_t now_ns) { shares_.on_drained(now_ns); }
  // False: it is no marker or grant.
  bool on_packet(const wire::Address& source, const roce::Decoded& packet, std::uint64_t now_ns);

  // Sends what is due, behind all that was sent before: acknowledgements of what a marker stands behind leave
  // before its grant.
  using Send =
      std::function<void(const wire::Address& peer, roce::Opcode opcode, const roce::WindowGrant& body)>;
  void send_due(std::uint64_t now_ns, const Send& send);
  [[nodiscard]] std::uint64_t next_deadline_ns(std::uint64_t now_ns) const;
  [[nodiscard]] const WindowCounters& counters() const { return counters_; }

 private:
  static constexpr std::size_t kMaxPeers = 4096;  // to more, nothing is bounded

  struct Answer {
    wire::Address peer;
    roce::WindowGrant grant;
  };
  [[nodiscard]] PeerWindow* find(const wire::Address& peer);
  void list(PeerWindow& window) {
    if (window.listed_) return;
    window.listed_ = true;
    listed_.push_back(&window);
  }

  bool on_;
  transport::ReceiveShares shares_;
  Random random_;
  std::map<transport::ReceiveShares::Key, PeerWindow> windows_;
  std::vector<PeerWindow*> listed_;  // those that may have a marker due
  std::vector<Answer> answers_;      // of this step
  // The last ones that were asked for: the next is often its own too.
  struct Known {
    wire::Address peer;
    PeerWindow* window = nullptr;
  };
  Known last_source_;
  Known last_destination_;
  WindowCounters counters_;
};

}  // namespace gdx::softhca
