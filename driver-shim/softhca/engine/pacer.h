// Limits of a queue pair's sending: the rate of congestion control, the wire's room and the peer's window.
//
//   permitted packets = least of (link time by rate, room of the wire, room of the peer's window)
//
// Sends nothing itself, and only reads the wire's room.
#pragma once

#include <cstdint>
#include <optional>

#include "driver-shim/softhca/engine/hca.h"
#include "driver-shim/softhca/engine/link_clock.h"
#include "driver-shim/softhca/engine/peer_windows.h"
#include "driver-shim/softhca/transport/dcqcn.h"
#include "driver-shim/softhca/transport/token_bucket.h"
#include "driver-shim/softhca/wire/wire.h"

namespace gdx::softhca {

class Pacer {
 public:
  // `attributes`: those that the queue pair has at each call. All must outlive the pacer.
  Pacer(QpType type, const QpAttributes& attributes, const HcaConfig& config, PeerWindows& windows,
        wire::Wire& wire);

  // Runs the timers of congestion control. Finds the window anew, because the wire to the peer may change.
  void advance(std::uint64_t now_ns) {
    const bool receives = attributes_.state == QpState::kRtr || attributes_.state == QpState::kRts;
    window_ = receives && type_ != QpType::kUd ? window_to(attributes_.remote) : nullptr;
    if (!congestion_.limited()) return;
    congestion_.advance(now_ns);
    set_rate(now_ns);
  }
  // Removes the limit.
  void reset(std::uint64_t now_ns);

  // Returns the window to the peer of a connection; null: unbounded, or bounded by a ring.
  [[nodiscard]] PeerWindow* window() const { return window_; }
  [[nodiscard]] PeerWindow* window_to(const wire::Address& destination) const {
    return windows_.on() && !wire_.holds_back(destination) ? windows_.to(destination) : nullptr;
  }
  // Returns the number of requests that fit `window`, because a packet without room is lost until a timeout.
  // `timed`: the transport's timer runs, which detects the peer's death.
  [[nodiscard]] std::uint32_t requests_permitted(std::uint64_t now_ns, std::uint32_t max_packets,
                                                 const PeerWindow* window, bool timed) const;
  [[nodiscard]] std::uint32_t responses_permitted(std::uint64_t now_ns, std::uint32_t max_packets) const;
  [[nodiscard]] bool window_has_room(std::uint64_t now_ns) const {
    return packets_of_room(window_, now_ns) > 0;
  }
  // Counts a packet that leaves through `window`, which may be null.
  void charge(PeerWindow* window, std::size_t length_bytes) const {
    if (window != nullptr) windows_.charge(*window, length_bytes + roce::kIcrcBytes);
  }

  // Returns the bytes of the link's time that may be begun now.
  [[nodiscard]] std::uint64_t budget_bytes(std::uint64_t now_ns) const { return pace_.budget_bytes(now_ns); }
  [[nodiscard]] bool paused(std::uint64_t now_ns) const { return budget_bytes(now_ns) == 0; }
  [[nodiscard]] std::uint64_t wait_ns(std::uint64_t now_ns) const { return pace_.wait_ns(now_ns); }
  // Counts bytes of the link's time, of requests and responses that took a turn.
  void on_sent(std::uint64_t now_ns, std::uint64_t bytes) {
    if (bytes > 0) sent_ns_ = now_ns;
    pace_.charge(now_ns, bytes);
    if (!congestion_.limited()) return;
    congestion_.on_sent(bytes);
    set_rate(now_ns);
  }

  // Returns whether a congestion mark is to be answered now, at a limited rate.
  [[nodiscard]] bool take_notification(std::uint64_t now_ns) {
    return controls_congestion() && notification_tokens_.take(now_ns);
  }
  // Slows down for a notification, for one in an interval. False: not for this one, because congestion
  // control is off, because nothing was sent lately that it could answer, or because another one came just
  // before.
  bool on_notification(std::uint64_t now_ns);

 private:
  // Only a connection has one sender with a settable rate.
  [[nodiscard]] bool controls_congestion() const {
    return type_ != QpType::kUd && config_.congestion_control == CongestionControl::kDcqcn;
  }
  [[nodiscard]] std::uint32_t packets_of_room(const PeerWindow* window, std::uint64_t now_ns) const;
  void set_rate(std::uint64_t now_ns) {
    pace_.set_rate(now_ns, congestion_.limited() ? congestion_.rate_gbps() : 0);
  }

  QpType type_;
  const QpAttributes& attributes_;
  const HcaConfig& config_;
  PeerWindows& windows_;
  wire::Wire& wire_;
  PeerWindow* window_ = nullptr;
  transport::Dcqcn congestion_;
  LinkClock pace_;  // at the rate that congestion control permits
  transport::TokenBucket notification_tokens_{1, transport::kNotificationIntervalNs};
  transport::TokenBucket heeding_tokens_{1, transport::kNotificationIntervalNs};
  std::optional<std::uint64_t> sent_ns_;  // time of the newest packet that took a turn
};

}  // namespace gdx::softhca
