// When and how much a queue pair sends: turns, the wire's room, and congestion.
#include <algorithm>
#include <cstring>
#include <limits>

#include "driver-shim/softhca/engine/queue_pair.h"

namespace gdx::softhca {
namespace {

constexpr std::uint64_t kMaxBatch = 128;              // packets between two looks at a queue pair's state
constexpr std::uint64_t kMaxLinkOverheadBytes = 160;  // all headers and the gap of the largest packet

}  // namespace

// As many as the wire has room for: what it must drop comes again only after a timeout. UD has no
// destination of its own, and may lose.
std::uint32_t QueuePair::packets_permitted(std::uint32_t max_packets) const {
  if (spec_.type == QpType::kUd) return max_packets;
  return static_cast<std::uint32_t>(std::min<std::size_t>(max_packets, hca_.wire->room(attributes_.remote)));
}

void QueuePair::follow_congestion(std::uint64_t now_ns) {
  pace_.set_rate(now_ns, congestion_.limited() ? congestion_.rate_gbps() : 0);
}

int QueuePair::attend(std::uint64_t now_ns) {
  int done = 0;
  if (congestion_.limited()) {
    congestion_.advance(now_ns);
    follow_congestion(now_ns);
  }
  if (attributes_.state == QpState::kRts && now_ns >= send_side_.next_deadline_ns()) {
    send_side_.rc()->on_timer(now_ns);
    ++done;
    settle();
  }
  if (receive_side_.can_send(false)) {
    // Held back, an acknowledgement would keep the peer's window shut.
    done += static_cast<int>(receive_side_.pump(now_ns, std::numeric_limits<std::uint32_t>::max(), 0));
    settle();
  }
  if (attributes_.state == QpState::kError) flush_receives();
  return done;
}

// As many as certainly fit, and one at least.
std::uint32_t QueuePair::next_packets(std::uint64_t until_link_bytes) const {
  const std::uint64_t left = until_link_bytes - hca_.link_bytes;
  const std::uint64_t largest = hca_.config.mtu_bytes + kMaxLinkOverheadBytes;
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(left / largest, 1, kMaxBatch));
}

void QueuePair::send_requests(std::uint64_t now_ns, std::uint64_t until_link_bytes) {
  while (attributes_.state == QpState::kRts && hca_.link_bytes < until_link_bytes &&
         send_side_.can_send(now_ns)) {
    const std::uint64_t before = hca_.link_bytes;
    send_side_.pump(now_ns, packets_permitted(next_packets(until_link_bytes)));
    settle();
    if (hca_.link_bytes == before) return;
  }
}

void QueuePair::send_responses(std::uint64_t now_ns, std::uint64_t until_link_bytes) {
  while (hca_.link_bytes < until_link_bytes && receive_side_.can_send()) {
    const std::uint64_t before = hca_.link_bytes;
    const std::uint32_t packets = next_packets(until_link_bytes);
    receive_side_.pump(now_ns, packets, packets_permitted(packets));
    settle();
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
  return sent_bytes;
}

bool QueuePair::busy() const {
  // Of receives that are posted only their record tells.
  if (attributes_.state == QpState::kError || receive_side_.watches_receives()) return true;
  return !send_side_.idle() || receive_side_.can_send();
}

bool QueuePair::can_send(std::uint64_t now_ns) const {
  if (attributes_.state != QpState::kRts && attributes_.state != QpState::kRtr) return false;
  const bool may = !paused(now_ns);
  return (may && send_side_.can_send(now_ns)) || receive_side_.can_send(may);
}

std::uint64_t QueuePair::next_deadline_ns() const {
  if (attributes_.state != QpState::kRts) return transport::kNever;
  const std::uint64_t now_ns = hca_.now_ns;
  const bool waits = paused(now_ns) && (send_side_.can_send(now_ns) || receive_side_.can_send());
  const std::uint64_t timer_ns = send_side_.next_deadline_ns();
  return waits ? std::min(timer_ns, now_ns + pace_.wait_ns(now_ns)) : timer_ns;
}

// Only a connection has one sender whose rate can be set.
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
