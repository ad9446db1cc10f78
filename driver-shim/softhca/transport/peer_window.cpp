#include "driver-shim/softhca/transport/peer_window.h"

#include <algorithm>

namespace gdx::softhca::transport {
namespace {

constexpr std::uint64_t kFirstIntervalNs = 10'000'000;  // before a marker without an answer is repeated
constexpr std::uint64_t kLongestIntervalNs = 200'000'000;
// Markers after which a peer that still sends has ignored them. After fewer its packets may have been in
// flight, or sent before it reached the marker.
constexpr std::uint32_t kIgnoredMarkers = 6;
constexpr std::uint64_t kMarkersPerWindow = 4;
// Part of the capacity that a sender gets first. Who sends little keeps that, and leaves the rest to others.
constexpr std::uint64_t kFirstPart = 32;

}  // namespace

bool SendWindow::on_packet(std::uint64_t now_ns, bool of_our_kind) {
  arrived_since_ = true;
  switch (peer_) {
    case Peer::kUnknown:
    case Peer::kStandard:
      if (!of_our_kind) {
        peer_ = Peer::kStandard;
        end_wait();
        return false;
      }
      peer_ = Peer::kAsking;
      asked_ = false;
      unanswered_ = ignored_ = 0;  // counted against the address's former owner
      interval_ns_ = 0;
      return true;
    case Peer::kBounded:
    case Peer::kAsking:
      // Applies to a new owner of the address.
      if (of_our_kind || !stalled(now_ns)) return false;
      peer_ = Peer::kStandard;
      end_wait();
      return false;
    case Peer::kUnbounded: return false;
  }
  return false;
}

bool SendWindow::on_grant(std::uint64_t now_ns, const roce::WindowGrant& grant) {
  const roce::WindowMarker& marker = grant.marker;
  if (peer_ == Peer::kUnknown || peer_ == Peer::kStandard) return false;
  if (marker.incarnation != incarnation_ || marker.sent_units > sent_units_ || marker.sent_at_ns > now_ns) {
    return false;
  }
  answered_ = true;
  taken_units_ = std::max(taken_units_, marker.sent_units);
  if (marker.sent_at_ns < granted_for_ns_) return false;
  // Takes the larger of two grants for markers of one moment, because the later one permits more.
  const bool same = marker.sent_at_ns == granted_for_ns_ && peer_ == Peer::kBounded;
  limit_units_ = same ? std::max(limit_units_, grant.limit_units) : grant.limit_units;
  granted_for_ns_ = marker.sent_at_ns;
  peer_ = grant.limit_units == roce::kNoWindow ? Peer::kUnbounded : Peer::kBounded;
  unanswered_ = ignored_ = 0;
  interval_ns_ = 0;
  end_wait();
  return true;
}

void SendWindow::end_wait() { waiting_ = false; }

// Returns the minimum after the lease, and without one.
std::uint64_t SendWindow::limit_units(std::uint64_t now_ns) const {
  const std::uint64_t minimum = taken_units_ + kMinimumUnits;
  const bool leased = peer_ == Peer::kBounded && now_ns < granted_for_ns_ + kLeaseNs;
  return leased ? std::max(minimum, limit_units_) : minimum;
}

std::uint64_t SendWindow::room_units(std::uint64_t now_ns) const {
  if (unlimited()) return kNever;
  const std::uint64_t limit = limit_units(now_ns);
  return limit > sent_units_ ? limit - sent_units_ : 0;
}

bool SendWindow::wait(std::uint64_t now_ns) {
  if (waiting_) return false;
  waiting_ = true;
  waiting_since_ns_ = now_ns;
  return true;
}

// Waits for the answer to the last marker, unless much has been sent since. Otherwise a window opened by a
// single packet would advance packet by packet.
bool SendWindow::marker_due(std::uint64_t now_ns) const {
  switch (peer_) {
    case Peer::kUnknown:
    case Peer::kStandard: return false;
    case Peer::kUnbounded: return sent_units_ > marked_units_ && now_ns >= asked_ns_ + kLeaseNs;
    case Peer::kAsking:
    case Peer::kBounded: break;
  }
  if (!asked_ || (waiting_ && now_ns >= ask_again_ns_)) return true;
  if (waiting_ && marked_units_ == taken_units_ && sent_units_ > marked_units_) return true;
  const std::uint64_t window = limit_units(now_ns) - taken_units_;
  return sent_units_ - marked_units_ >= window / kMarkersPerWindow;
}

std::optional<roce::WindowMarker> SendWindow::take_marker(std::uint64_t now_ns) {
  if (!marker_due(now_ns)) return std::nullopt;
  if (asked_ && arrived_since_) ++ignored_;
  arrived_since_ = false;
  if (peer_ == Peer::kAsking && ignored_ >= kIgnoredMarkers) {
    peer_ = Peer::kUnbounded;
    end_wait();
    return std::nullopt;
  }
  asked_ = true;
  asked_ns_ = now_ns;
  interval_ns_ = interval_ns_ == 0 ? kFirstIntervalNs : std::min(2 * interval_ns_, kLongestIntervalNs);
  ask_again_ns_ = now_ns + interval_ns_;
  marked_units_ = sent_units_;
  ++unanswered_;
  return roce::WindowMarker{incarnation_, sent_units_, now_ns};
}

std::uint64_t SendWindow::next_deadline_ns(std::uint64_t now_ns) const {
  if (!waiting_) return kNever;
  if (peer_ != Peer::kUnknown) return ask_again_ns_;
  return stalled(now_ns) ? kNever : waiting_since_ns_ + kStalledNs;
}

// Halves the socket. One quarter may be taken and still charged, because the kernel releases in batches
// (udp_rmem_release). Another quarter is for minima and for packets outside the window: acknowledgements,
// notifications, markers.
ReceiveShares::ReceiveShares(std::uint64_t socket_bytes)
    : socket_bytes_(socket_bytes), capacity_units_(socket_bytes / 2) {}

std::uint64_t ReceiveShares::promised_units() const {
  std::uint64_t sum = 0;
  for (const auto& [peer, share] : shares_) sum += share.promised_units();
  return sum;
}

std::uint64_t ReceiveShares::promised_units(const Key& peer) const {
  const auto found = shares_.find(peer);
  return found == shares_.end() ? 0 : found->second.promised_units();
}

std::optional<roce::WindowGrant> ReceiveShares::on_marker(std::uint64_t now_ns, const Key& peer,
                                                          const roce::WindowMarker& marker) {
  reclaim(now_ns, false);
  if (!shares_.contains(peer) && shares_.size() >= kMaxPeers)
    return roce::WindowGrant{marker, marker.sent_units};
  Share& share = shares_[peer];
  if (share.incarnation != marker.incarnation) {
    // Restarts the share, because packets of the address's former owner came out of the socket before.
    share = Share{};
    share.incarnation = marker.incarnation;
    share.taken_units = marker.sent_units;
  }
  if (marker.sent_units < share.taken_units) return std::nullopt;
  // Twice the window of a sender that uses it up, whose markers are a part of it apart.
  const std::uint64_t wanted =
      std::max(capacity_units_ / kFirstPart, 2 * kMarkersPerWindow * (marker.sent_units - share.taken_units));
  share.taken_units = marker.sent_units;
  share.limit_units = std::max(share.limit_units, share.taken_units);
  const std::uint64_t others = promised_units() - share.promised_units();
  const std::uint64_t fair = std::min(capacity_units_ / shares_.size(), capacity_units_ - others);
  share.limit_units = std::max(share.limit_units, share.taken_units + std::min(fair, wanted));
  share.renewed_ns = now_ns;
  share.ended_at_bytes.reset();
  next_end_ns_ = std::min(next_end_ns_, now_ns + kReclaimNs);
  return roce::WindowGrant{marker, share.limit_units};
}

void ReceiveShares::on_drained(std::uint64_t now_ns) {
  if (now_ns >= next_end_ns_) reclaim(now_ns, true);
}

// Takes back ended leases. Their packets may still be in the socket. They are out once it was empty, or once
// as much was taken as it can hold.
void ReceiveShares::reclaim(std::uint64_t now_ns, bool drained) {
  if (now_ns < next_end_ns_) return;
  next_end_ns_ = kNever;
  for (auto it = shares_.begin(); it != shares_.end();) {
    Share& share = it->second;
    const std::uint64_t end_ns = share.renewed_ns + kReclaimNs;
    if (now_ns >= end_ns && !share.ended_at_bytes) share.ended_at_bytes = taken_bytes_;
    const bool out =
        drained || (share.ended_at_bytes && taken_bytes_ - *share.ended_at_bytes >= socket_bytes_);
    if (now_ns >= end_ns && out) {
      it = shares_.erase(it);
      continue;
    }
    next_end_ns_ = std::min(next_end_ns_, end_ns);
    ++it;
  }
}

}  // namespace gdx::softhca::transport
