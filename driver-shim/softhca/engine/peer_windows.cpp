#include "driver-shim/softhca/engine/peer_windows.h"

#include <algorithm>
#include <cassert>

namespace gdx::softhca {

PeerWindow* PeerWindows::find(const wire::Address& peer) {
  const auto found = windows_.find(peer.gid);
  return found == windows_.end() ? nullptr : &found->second;
}

PeerWindow* PeerWindows::to(const wire::Address& peer) {
  if (!on_) return nullptr;
  if (last_destination_.window != nullptr && last_destination_.peer == peer) return last_destination_.window;
  PeerWindow* window = find(peer);
  if (window == nullptr) {
    if (windows_.size() >= kMaxPeers) return nullptr;
    const std::uint64_t incarnation = std::uint64_t{random_()} << 32 | random_();
    window = &windows_.try_emplace(peer.gid, peer, incarnation).first->second;
    last_source_ = {};
  }
  last_destination_ = {peer, window};
  return window;
}

void PeerWindows::wait(PeerWindow& window, std::uint64_t now_ns) {
  if (window.window_.wait(now_ns)) ++counters_.waits;
  list(window);
}

void PeerWindows::disconnect(const wire::Address& peer) {
  const auto found = queue_pairs_.find(peer.gid);
  assert(found != queue_pairs_.end());
  if (--found->second > 0) return;
  queue_pairs_.erase(found);
  if (PeerWindow* const window = find(peer)) window->window_.doubt();
}

// Distinguishes by port: software HCAs send from 4791, Soft-RoCE and hardware from ports above 49151.
bool PeerWindows::on_taken(const wire::Address& source, std::uint16_t port, std::size_t length_bytes,
                           std::uint64_t now_ns) {
  if (!on_ || port == 0) return true;
  shares_.on_taken(length_bytes);
  if (!(last_source_.peer == source)) last_source_ = {source, find(source)};
  PeerWindow* const window = last_source_.window;
  if (window == nullptr) return true;
  const bool of_our_kind = port == roce::kUdpPort;
  if (!of_our_kind && window->window_.answered() && queue_pairs_.contains(source.gid)) return false;
  if (window->window_.on_packet(now_ns, of_our_kind)) list(*window);
  return true;
}

// Gives no part to invented addresses. Queue pairs of UD have no peer: theirs are those to which they send.
bool PeerWindows::gets_share(const wire::Address& peer) {
  const wire::Address any;
  return queue_pairs_.contains(peer.gid) || (queue_pairs_.contains(any.gid) && find(peer) != nullptr);
}

bool PeerWindows::on_packet(const wire::Address& source, const roce::Decoded& packet, std::uint64_t now_ns) {
  const roce::Opcode opcode = packet.headers.bth.opcode;
  const bool marker = opcode == roce::Opcode::kWindowMarker;
  if (!marker && opcode != roce::Opcode::kWindowGrant) return false;
  const auto body = roce::decode_window(packet.payload);
  if (!body) return true;
  if (!marker) {
    PeerWindow* const window = find(source);
    if (window != nullptr) window->window_.on_grant(now_ns, *body);
    return true;
  }
  std::optional<roce::WindowGrant> grant = roce::WindowGrant{body->marker, roce::kNoWindow};
  if (on_) {
    grant = gets_share(source) ? shares_.on_marker(now_ns, source.gid, body->marker)
                               : roce::WindowGrant{body->marker, body->marker.sent_units};
  }
  if (grant) answers_.push_back({source, *grant});
  return true;
}

void PeerWindows::send_due(std::uint64_t now_ns, const Send& send) {
  for (const Answer& answer : answers_) {
    send(answer.peer, roce::Opcode::kWindowGrant, answer.grant);
    ++counters_.grants;
  }
  answers_.clear();
  std::erase_if(listed_, [&](PeerWindow* peer) {
    if (const auto marker = peer->window_.take_marker(now_ns)) {
      send(peer->peer_, roce::Opcode::kWindowMarker, {.marker = *marker, .limit_units = 0});
      ++counters_.markers;
    }
    peer->listed_ = peer->window_.waiting();
    return !peer->listed_;
  });
}

std::uint64_t PeerWindows::next_deadline_ns(std::uint64_t now_ns) const {
  std::uint64_t deadline_ns = transport::kNever;
  for (const PeerWindow* peer : listed_) {
    deadline_ns = std::min(deadline_ns, peer->window_.next_deadline_ns(now_ns));
  }
  return deadline_ns;
}

const char* PeerWindows::check_invariants() const {
  std::size_t listed = 0;
  for (const auto& [gid, peer] : windows_) {
    if (const char* const broken = peer.window_.check_invariants()) return broken;
    if (peer.window_.waiting() && !peer.listed_) return "a window waits whose markers are not looked for";
    listed += peer.listed_ ? 1 : 0;
  }
  if (listed != listed_.size()) return "the list of windows is not that of the listed";
  return shares_.check_invariants();
}

}  // namespace gdx::softhca
