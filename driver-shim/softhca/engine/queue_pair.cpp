#include "driver-shim/softhca/engine/queue_pair.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <limits>

#include "base/counters.h"
#include "base/log.h"
#include "driver-shim/softhca/engine/planted_fault.h"
#include "driver-shim/softhca/wire/addressing.h"
#include "proto/roce/ip_header.h"

namespace gdx::softhca {
namespace {

constexpr std::uint64_t kMaxBatch = 128;              // packets between two looks at a queue pair's state
constexpr std::uint64_t kMaxLinkOverheadBytes = 160;  // all headers and the gap of the largest packet
constexpr unsigned kQpnBits = 24;

roce::Service service_of(QpType type) {
  switch (type) {
    case QpType::kRc: return roce::Service::kRc;
    case QpType::kUc: return roce::Service::kUc;
    case QpType::kUd: return roce::Service::kUd;
  }
  return roce::Service::kOther;
}

transport::RcConfig rc_config(const QpParts& parts) {
  const HcaConfig& hca = parts.hca.config;
  transport::RcConfig config = parts.states.rc_config(parts.hca.wire->window_bytes());
  // Differs between queue pairs, and is not 0, because no queue pair has that number.
  if (parts.states.attributes().any_order || hca.data_order == OrderRule::kAny ||
      planted_fault == PlantedFault::kDroppedForce)
    config.late_writes_seed = hca.udp.faults.seed << kQpnBits | parts.qpn;
  return config;
}

template <typename Side, typename Port>
void start(const QpParts& parts, Side& side, Port& port) {
  switch (parts.spec.type) {
    case QpType::kRc: side.start(rc_config(parts), port); break;
    case QpType::kUc: side.start(parts.states.uc_config(), port); break;
    case QpType::kUd: side.start(parts.states.ud_config(parts.hca.config.mtu_bytes), port); break;
  }
}

bool accepts(const QpParts& parts, const wire::Address& source, const roce::Bth& bth) {
  const QpType type = parts.spec.type;
  if (!roce::may_talk(bth.pkey, parts.pkey()) || (parts.hca.config.grh_required && !bth.has_grh) ||
      roce::traits_of(bth.opcode).service != service_of(type))
    return false;
  return type == QpType::kUd || source == parts.states.attributes().remote;
}

// Returns what precedes the payload of a UD receive. On InfiniBand without a GRH it means nothing.
std::array<std::byte, roce::kGrhBytes> grh_of(const HcaParts& hca, const wire::Address& source,
                                              const roce::Decoded& packet) {
  const wire::Address& local = hca.wire->local();
  const std::size_t ib_bytes = roce::header_bytes(packet.headers.bth.opcode) + packet.payload.size() +
                               packet.headers.bth.pad_count + roce::kIcrcBytes;
  if (hca.config.infiniband)
    return roce::infiniband_grh(wire::gid_of(source, 0), wire::gid_of(local, 0), ib_bytes);
  return roce::grh(source.gid, local.gid, local.is_ipv4(), roce::kUdpBytes + ib_bytes);
}

// Returns a number of packets that certainly fit, and one at least.
std::uint32_t next_packets(const HcaParts& hca, std::uint64_t until_link_bytes) {
  const std::uint64_t left = until_link_bytes - hca.link_bytes;
  const std::uint64_t largest = hca.config.mtu_bytes + kMaxLinkOverheadBytes;
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(left / largest, 1, kMaxBatch));
}

}  // namespace

QueuePair::QueuePair(std::uint32_t qpn, const QueuePairSpec& spec, HcaParts& hca, CompletionQueue& send_cq,
                     CompletionQueue& receive_cq, ReceiveQueue* shared_receives)
    : parts_(qpn, spec, hca),
      packets_(parts_),
      completions_(parts_, *this, send_cq, receive_cq, shared_receives),
      request_port_(parts_, packets_, completions_),
      response_port_(parts_, packets_, completions_) {}

QueuePair::~QueuePair() {
  parts_.hca.late.land_all();
  completions_.forget_sends();
  if (counted_peer_) parts_.hca.windows.disconnect(*counted_peer_);
}

Errno QueuePair::modify(std::uint32_t mask, const QpAttributes& attributes) {
  const QpState from = parts_.states.state();
  if ((mask & kQpPkeyIndex) != 0 && attributes.pkey_index >= parts_.hca.config.pkeys.size()) return EINVAL;
  const Errno refused =
      parts_.states.modify(mask, attributes, parts_.hca.config.mtu_bytes, parts_.hca.wire->local().is_ipv4());
  if (refused != 0) return refused;
  const std::uint32_t qkey = parts_.states.attributes().qkey;
  if (transport::UdRequester* const sender = send_side_.ud()) sender->set_qkey(qkey);
  if (transport::UdResponder* const receiver = receive_side_.ud()) receiver->set_qkey(qkey);
  if (transport::Responder* responder = receive_side_.rc()) responder->reconfigure(rc_config(parts_));
  if (transport::UcResponder* responder = receive_side_.uc())
    responder->reconfigure(parts_.states.uc_config());
  constexpr std::uint32_t kRequesterAttributes = kQpTimeout | kQpRetryCount | kQpRnrRetry;
  if (transport::Requester* requester = send_side_.rc();
      requester != nullptr && (mask & kRequesterAttributes)) {
    requester->reconfigure(parts_.hca.now_ns, rc_config(parts_));
  }
  count_peer();
  if (!(mask & kQpState) || attributes.state == from) return 0;

  set_state(attributes.state);
  switch (attributes.state) {
    case QpState::kReset:
      past_ = counters();
      send_side_.stop();
      receive_side_.stop();
      completions_.forget_sends();
      parts_.sends.reset();
      completions_.reset_receives();
      parts_.pacer.reset(parts_.hca.now_ns);
      parts_.states.reset();
      break;
    case QpState::kRtr: start(parts_, receive_side_, response_port_); break;
    case QpState::kRts:
      if (from == QpState::kSqe) {
        // Failed sends stay completed; later posts are sent, under the PSNs that follow.
        parts_.states.set_send_psn(send_side_.next_psn(parts_.states.attributes().send_psn));
        add_counters(past_, send_side_.counters());
      }
      start(parts_, send_side_, request_port_);
      break;
    case QpState::kError: enter_error(); break;
    case QpState::kInit:
    case QpState::kSqd:
    case QpState::kSqe: break;
  }
  return 0;
}

void QueuePair::set_state(QpState state) {
  // WQEs that a failure in RTS has flushed come after the state to which it leads.
  if (parts_.states.state() != QpState::kRts) parts_.flight.end_flush();
  parts_.states.move_to(state);
  count_peer();
  parts_.note({.kind = FlightKind::kState, .code = static_cast<std::uint8_t>(state)});
}

// Counts the queue pair as one of its peer while packets of that peer may be accepted.
void QueuePair::count_peer() {
  const QpState state = parts_.states.state();
  std::optional<wire::Address> peer;
  if (state == QpState::kRtr || state == QpState::kRts || state == QpState::kSqd || state == QpState::kSqe)
    peer = parts_.spec.type == QpType::kUd ? wire::Address{} : parts_.states.attributes().remote;
  if (peer == counted_peer_) return;
  if (peer) parts_.hca.windows.connect(*peer);
  // Begins the wait for a peer's answer now, so that its first packet need not.
  wire::Wire& wire = *parts_.hca.wire;
  if (peer && parts_.spec.type != QpType::kUd && !wire.lost()) static_cast<void>(wire.awaits(*peer));
  if (counted_peer_) parts_.hca.windows.disconnect(*counted_peer_);
  counted_peer_ = peer;
}

QpAttributes QueuePair::query() const {
  QpAttributes now = parts_.states.attributes();
  now.send_psn = send_side_.next_psn(now.send_psn);
  now.receive_psn = receive_side_.expected_psn(now.receive_psn);
  return now;
}

void QueuePair::end_by_failure() {
  const std::optional<QpStates::End> end = parts_.states.take_failure();
  if (!end) return;
  parts_.hca.failed_queue_pairs.fetch_add(1, std::memory_order_relaxed);
  set_state(end->state);
  if (end->state == QpState::kError) enter_error();
  if (end->event_type != QpStates::kNoEvent && parts_.spec.on_event) parts_.spec.on_event(end->event_type);
}

void QueuePair::enter_error() {
  send_side_.fail_all(mlx5::Syndrome::kFlushed);
  parts_.states.forget_failure();
  add_counters(past_, receive_side_.counters());
  receive_side_.stop();
  completions_.end_receives();
}

int QueuePair::fetch_sends(std::span<const DoorbellWrite> rings) {
  if (!parts_.states.fetches() || parts_.spec.send_blocks == 0) return 0;
  const std::optional<std::uint16_t> announced = parts_.sends.read_announced(rings);
  if (!announced) {
    if (parts_.states.state() == QpState::kError) return 0;
    log::warn_of_others("{}: QP 0x{:x} announced more WQEs than its send queue holds; it is in error",
                        parts_.hca.config.name, parts_.qpn);
    parts_.states.fail(kEventQpFatal);
    handle_failure();
    return 0;
  }
  const auto is_late = [this](const DoorbellWrite& ring) { return parts_.sends.is_late(ring); };
  if (planted_fault == PlantedFault::kBackwardDoorbell && std::ranges::any_of(rings, is_late)) {
    // Goes on, so that what a newer doorbell beside the old one announces is flushed.
    parts_.states.fail(kEventQpFatal);
    handle_failure();
  }
  if (*announced != 0 && parts_.states.state() == QpState::kRts)
    parts_.note({.kind = FlightKind::kDoorbell, .wqe = parts_.sends.announced(), .word = *announced});
  SendQueue::Fetched fetched;
  while (parts_.sends.fetch(rings, fetched, parts_.hca.taken)) {
    const transport::WorkRequest request = completions_.take_send(parts_.hca.taken, fetched.newest_is_copy);
    if (send_side_.started()) {
      send_side_.post(request);
    } else {
      completions_.complete(request, mlx5::Syndrome::kFlushed);
    }
  }
  parts_.sends.count(rings, fetched, parts_.hca.counters.pcie);
  parts_.hca.counters.wqes += static_cast<std::uint64_t>(fetched.taken);
  handle_failure();
  return fetched.taken;
}

bool QueuePair::on_packet(std::uint64_t now_ns, const wire::Address& source, const roce::Decoded& packet,
                          bool marked) {
  const roce::Bth& bth = packet.headers.bth;
  if (bth.opcode == roce::Opcode::kCongestionNotification) {
    if (!packets_.on_notification(now_ns, source, packet)) return false;
  } else {
    if (!accepts(parts_, source, bth)) return false;
    const auto grh = [&] {
      completions_.set_datagram_source(source);
      return grh_of(parts_.hca, source, packet);
    };
    const bool taken = is_response(roce::traits_of(bth.opcode).operation)
                           ? parts_.states.state() == QpState::kRts && send_side_.on_packet(now_ns, packet)
                           : receive_side_.on_packet(now_ns, packet, grh);
    if (!taken) return false;
    if (parts_.states.establish() && parts_.spec.on_event)
      parts_.spec.on_event(kEventCommunicationEstablished);
    handle_failure();
  }
  if (marked) packets_.on_marked(now_ns, bth);
  return true;
}

int QueuePair::run_unpaced(std::uint64_t now_ns) {
  int done = 0;
  parts_.pacer.advance(now_ns);
  if (parts_.states.state() == QpState::kRts && now_ns >= send_side_.next_deadline_ns()) {
    send_side_.rc()->on_timer(now_ns);
    ++done;
    handle_failure();
  }
  if (now_ns >= receive_side_.next_deadline_ns()) {
    receive_side_.rc()->on_timer();
    ++done;
    handle_failure();
  }
  if (receive_side_.can_send(false)) {
    // Sends acknowledgements without a bound, because the peer's window opens only by them.
    done += static_cast<int>(receive_side_.pump(now_ns, std::numeric_limits<std::uint32_t>::max(), 0));
    handle_failure();
  }
  if (parts_.states.state() == QpState::kError) completions_.flush_receives();
  assert(check_invariants() == nullptr);
  return done;
}

void QueuePair::send_requests(std::uint64_t now_ns, std::uint64_t until_link_bytes) {
  const HcaParts& hca = parts_.hca;
  while (parts_.states.state() == QpState::kRts && hca.link_bytes < until_link_bytes &&
         send_side_.can_send(now_ns)) {
    const std::uint64_t before = hca.link_bytes;
    send_side_.pump(now_ns,
                    packets_.requests_permitted(now_ns, next_packets(hca, until_link_bytes), send_side_));
    handle_failure();
    if (hca.link_bytes == before) return;
  }
}

void QueuePair::send_responses(std::uint64_t now_ns, std::uint64_t until_link_bytes) {
  const HcaParts& hca = parts_.hca;
  while (hca.link_bytes < until_link_bytes && receive_side_.can_send()) {
    const std::uint64_t before = hca.link_bytes;
    const std::uint32_t packets = next_packets(hca, until_link_bytes);
    receive_side_.pump(now_ns, packets, parts_.pacer.responses_permitted(now_ns, packets));
    handle_failure();
    if (hca.link_bytes == before) return;
  }
}

std::uint64_t QueuePair::send_some(std::uint64_t now_ns, std::uint64_t allowance_bytes) {
  const std::uint64_t start = parts_.hca.link_bytes;
  const std::uint64_t paced_bytes = std::min(allowance_bytes, parts_.pacer.budget_bytes(now_ns));
  const std::uint64_t half = start + (paced_bytes + 1) / 2;
  const std::uint64_t end = start + paced_bytes;
  // Alternates the first to send, because an allowance may be less than a packet.
  if (!responses_first_) send_requests(now_ns, half);
  send_responses(now_ns, responses_first_ ? half : end);
  send_requests(now_ns, end);
  send_responses(now_ns, end);
  const std::uint64_t sent_bytes = parts_.hca.link_bytes - start;
  if (sent_bytes > 0) responses_first_ = !responses_first_;
  parts_.pacer.on_sent(now_ns, sent_bytes);
  assert(check_invariants() == nullptr);
  return sent_bytes;
}

const char* QueuePair::check_invariants() const {
  if (send_side_.started() && send_side_.idle() != parts_.sends.empty())
    return "WQEs and their work requests do not end together";
  for (const char* const broken : {parts_.sends.check_invariants(), send_side_.check_invariants(),
                                   receive_side_.check_invariants(), completions_.check_invariants()}) {
    if (broken != nullptr) return broken;
  }
  return nullptr;
}

bool QueuePair::busy() const {
  // Polls the record for posted receives, because no doorbell announces them.
  if (parts_.states.state() == QpState::kError || receive_side_.watches_receives()) return true;
  return !send_side_.idle() || receive_side_.can_send() ||
         receive_side_.next_deadline_ns() != transport::kNever;
}

bool QueuePair::can_send(std::uint64_t now_ns) const {
  if (!parts_.states.sends()) return false;
  const bool may = !parts_.pacer.paused(now_ns);
  const bool requests = may && send_side_.can_send(now_ns) && !packets_.request_awaits_peer();
  PeerWindow* const window = requests ? packets_.request_window() : parts_.pacer.window();
  if (window == nullptr) return requests || receive_side_.can_send(may);
  const bool reads = may && parts_.pacer.window_has_room(now_ns);
  if ((requests && packets_.requests_permitted(now_ns, 1, send_side_) > 0) || receive_side_.can_send(reads))
    return true;
  if (requests || (may && receive_side_.can_send())) parts_.hca.windows.wait(*window, now_ns);
  return false;
}

std::uint64_t QueuePair::next_deadline_ns() const {
  const std::uint64_t landing_ns = receive_side_.next_deadline_ns();
  if (parts_.states.state() != QpState::kRts) return landing_ns;
  const std::uint64_t now_ns = parts_.hca.now_ns;
  const bool waits = parts_.pacer.paused(now_ns) && (send_side_.can_send(now_ns) || receive_side_.can_send());
  const std::uint64_t timer_ns = std::min(landing_ns, send_side_.next_deadline_ns());
  return waits ? std::min(timer_ns, now_ns + parts_.pacer.wait_ns(now_ns)) : timer_ns;
}

transport::TransportCounters QueuePair::counters() const {
  transport::TransportCounters sum = past_;
  add_counters(sum, send_side_.counters());
  add_counters(sum, receive_side_.counters());
  if (parts_.hca.config.strict && parts_.states.attributes().counter_set != kPortCounterSet) {
    // Leaves out what a ConnectX counts in the queue pair's own set of counters instead.
    sum.timeouts = sum.naks_received = sum.out_of_sequence = 0;
    sum.duplicate_requests = sum.rnr_naks_received = sum.out_of_buffer = 0;
  }
  return sum;
}

void QueuePair::deliver(const HcaParts::HeldCompletion& held) {
  completions_.deliver(held);
  handle_failure();
}

}  // namespace gdx::softhca
