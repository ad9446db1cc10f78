// Sending of a queue pair: turns, the wire's room, and congestion.
#include <algorithm>
#include <cassert>
#include <cstring>
#include <limits>

#include "driver-shim/softhca/engine/queue_pair.h"

namespace gdx::softhca {
namespace {

constexpr std::uint64_t kMaxBatch = 128;              // packets between two looks at a queue pair's state
constexpr std::uint64_t kMaxLinkOverheadBytes = 160;  // all headers and the gap of the largest packet

}  // namespace

PeerWindow* QueuePair::window_to(const wire::Address& destination) const {
  return hca_.windows.on() && !hca_.wire->holds_back(destination) ? hca_.windows.to(destination) : nullptr;
}

// Looks up the window again, because the wire to the peer may change.
void QueuePair::follow_window() {
  const bool receives = attributes_.state == QpState::kRtr || attributes_.state == QpState::kRts;
  window_ = receives && spec_.type != QpType::kUd ? window_to(attributes_.remote) : nullptr;
}

// Returns the window of the next request; for UD that of the next message's destination.
PeerWindow* QueuePair::request_window() const {
  if (spec_.type != QpType::kUd) return window_;
  return sends_.empty() ? nullptr : window_to(sends_.front().body.destination);
}

// Returns a number of largest packets that certainly fit.
std::uint32_t QueuePair::packets_of_room(const PeerWindow* window, std::uint64_t now_ns) const {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  if (window == nullptr) return kMost;
  const std::uint32_t mtu_bytes = spec_.type == QpType::kUd ? hca_.config.mtu_bytes : attributes_.mtu_bytes;
  const std::uint64_t units = transport::window_units(mtu_bytes + roce::kMaxHeaderBytes + roce::kIcrcBytes);
  return static_cast<std::uint32_t>(std::min(window->window().room_units(now_ns) / units, kMost));
}

// Returns the packets that fit on the wire and in the peer's socket, because a dropped one is resent only
// after a timeout. Towards a silent peer each connection still sends, because its own timer must detect the
// peer's death.
std::uint32_t QueuePair::requests_permitted(std::uint64_t now_ns, std::uint32_t max_packets) const {
  const bool connected = spec_.type != QpType::kUd;
  std::uint64_t most = max_packets;
  if (connected) most = std::min<std::uint64_t>(most, hca_.wire->room(attributes_.remote));
  const PeerWindow* const window = request_window();
  if (window == nullptr) return static_cast<std::uint32_t>(most);
  const bool stalled = window->window().stalled(now_ns);
  const bool acknowledged = spec_.type == QpType::kRc;
  if (!acknowledged && (stalled || !window->window().bounds_datagrams()))
    return static_cast<std::uint32_t>(most);
  std::uint64_t room = packets_of_room(window, now_ns);
  if (room == 0 && stalled && send_side_.next_deadline_ns() == transport::kNever) room = 1;
  if (!connected) room = std::min<std::uint64_t>(room, 1);  // the next one may have another destination
  return static_cast<std::uint32_t>(std::min(most, room));
}

std::uint32_t QueuePair::responses_permitted(std::uint64_t now_ns, std::uint32_t max_packets) const {
  const std::size_t room =
      std::min<std::size_t>(hca_.wire->room(attributes_.remote), packets_of_room(window_, now_ns));
  return static_cast<std::uint32_t>(std::min<std::size_t>(max_packets, room));
}

void QueuePair::charge(PeerWindow* window, std::size_t length_bytes) {
  if (window != nullptr) hca_.windows.charge(*window, length_bytes + roce::kIcrcBytes);
}

void QueuePair::follow_congestion(std::uint64_t now_ns) {
  pace_.set_rate(now_ns, congestion_.limited() ? congestion_.rate_gbps() : 0);
}

int QueuePair::run_unpaced(std::uint64_t now_ns) {
  int done = 0;
  follow_window();
  if (congestion_.limited()) {
    congestion_.advance(now_ns);
    follow_congestion(now_ns);
  }
  if (attributes_.state == QpState::kRts && now_ns >= send_side_.next_deadline_ns()) {
    send_side_.rc()->on_timer(now_ns);
    ++done;
    handle_failure();
  }
  if (receive_side_.can_send(false)) {
    // Sends acknowledgements without a bound, because the peer's window opens only by them.
    done += static_cast<int>(receive_side_.pump(now_ns, std::numeric_limits<std::uint32_t>::max(), 0));
    handle_failure();
  }
  if (attributes_.state == QpState::kError) flush_receives();
  assert(check_invariants() == nullptr);
  return done;
}

// Returns a number of packets that certainly fit, and one at least.
std::uint32_t QueuePair::next_packets(std::uint64_t until_link_bytes) const {
  const std::uint64_t left = until_link_bytes - hca_.link_bytes;
  const std::uint64_t largest = hca_.config.mtu_bytes + kMaxLinkOverheadBytes;
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(left / largest, 1, kMaxBatch));
}

void QueuePair::send_requests(std::uint64_t now_ns, std::uint64_t until_link_bytes) {
  while (attributes_.state == QpState::kRts && hca_.link_bytes < until_link_bytes &&
         send_side_.can_send(now_ns)) {
    const std::uint64_t before = hca_.link_bytes;
    send_side_.pump(now_ns, requests_permitted(now_ns, next_packets(until_link_bytes)));
    handle_failure();
    if (hca_.link_bytes == before) return;
  }
}

void QueuePair::send_responses(std::uint64_t now_ns, std::uint64_t until_link_bytes) {
  while (hca_.link_bytes < until_link_bytes && receive_side_.can_send()) {
    const std::uint64_t before = hca_.link_bytes;
    const std::uint32_t packets = next_packets(until_link_bytes);
    receive_side_.pump(now_ns, packets, responses_permitted(now_ns, packets));
    handle_failure();
    if (hca_.link_bytes == before) return;
  }
}

std::uint64_t QueuePair::send_some(std::uint64_t now_ns, std::uint64_t allowance_bytes) {
  const std::uint64_t start = hca_.link_bytes;
  const std::uint64_t paced_bytes = std::min(allowance_bytes, pace_.budget_bytes(now_ns));
  send_requests(now_ns, start + (paced_bytes + 1) / 2);
  send_responses(now_ns, start + paced_bytes);
  send_requests(now_ns, start + paced_bytes);
  const std::uint64_t sent_bytes = hca_.link_bytes - start;
  pace_.charge(now_ns, sent_bytes);
  if (congestion_.limited()) {
    congestion_.on_sent(sent_bytes);
    follow_congestion(now_ns);
  }
  assert(check_invariants() == nullptr);
  return sent_bytes;
}

const char* QueuePair::check_invariants() const {
  if (send_side_.started() && send_side_.idle() != sends_.empty())
    return "WQEs and their work requests do not end together";
  if (sends_.size() > spec_.send_blocks) return "more WQEs are under way than the send queue holds";
  const char* const broken = send_side_.check_invariants();
  return broken != nullptr ? broken : receive_side_.check_invariants();
}

bool QueuePair::busy() const {
  // Polls the record for posted receives, because no doorbell announces them.
  if (attributes_.state == QpState::kError || receive_side_.watches_receives()) return true;
  return !send_side_.idle() || receive_side_.can_send();
}

bool QueuePair::can_send(std::uint64_t now_ns) const {
  if (attributes_.state != QpState::kRts && attributes_.state != QpState::kRtr) return false;
  const bool may = !paused(now_ns);
  const bool requests = may && send_side_.can_send(now_ns);
  PeerWindow* const window = requests ? request_window() : window_;
  if (window == nullptr) return requests || receive_side_.can_send(may);
  const bool reads = may && packets_of_room(window_, now_ns) > 0;
  if ((requests && requests_permitted(now_ns, 1) > 0) || receive_side_.can_send(reads)) return true;
  if (requests || (may && receive_side_.can_send())) hca_.windows.wait(*window, now_ns);
  return false;
}

std::uint64_t QueuePair::next_deadline_ns() const {
  if (attributes_.state != QpState::kRts) return transport::kNever;
  const std::uint64_t now_ns = hca_.now_ns;
  const bool waits = paused(now_ns) && (send_side_.can_send(now_ns) || receive_side_.can_send());
  const std::uint64_t timer_ns = send_side_.next_deadline_ns();
  return waits ? std::min(timer_ns, now_ns + pace_.wait_ns(now_ns)) : timer_ns;
}

// Returns whether congestion control applies: only a connection has one sender with a settable rate.
bool QueuePair::controls_congestion() const {
  return spec_.type != QpType::kUd && hca_.config.congestion_control == CongestionControl::kDcqcn;
}

void QueuePair::on_marked(std::uint64_t now_ns, const roce::Bth& bth) {
  ++hca_.counters.marked_packets;
  if (!controls_congestion()) return;
  if (bth.opcode == roce::Opcode::kCongestionNotification || !notification_tokens_.take(now_ns)) return;
  roce::Headers headers;
  headers.bth.opcode = roce::Opcode::kCongestionNotification;
  headers.bth.pkey = bth.pkey;
  headers.bth.destination_qpn = attributes_.remote_qpn;
  headers.bth.backward_congestion = true;
  const std::span<std::byte> packet = hca_.wire->begin_packet(attributes_.remote);
  const std::size_t header_bytes = roce::encode(headers, packet);
  std::memset(packet.data() + header_bytes, 0, roce::kNotificationBytes);
  commit(attributes_.remote, header_bytes, roce::kNotificationBytes, packet);
  ++hca_.counters.notifications_sent;
}

bool QueuePair::on_notification(std::uint64_t now_ns, const wire::Address& source,
                                const roce::Decoded& packet) {
  const bool expected = controls_congestion() && source == attributes_.remote &&
                        packet.payload.size() == roce::kNotificationBytes &&
                        (attributes_.state == QpState::kRtr || attributes_.state == QpState::kRts);
  if (!expected) return false;
  ++hca_.counters.notifications_heeded;
  congestion_.on_notification(now_ns);
  follow_congestion(now_ns);
  return true;
}

}  // namespace gdx::softhca
