#include "driver-shim/softhca/engine/queue_pair.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <limits>
#include <utility>

#include "base/counters.h"
#include "base/log.h"
#include "driver-shim/softhca/engine/planted_fault.h"
#include "driver-shim/softhca/engine/qp_state.h"
#include "driver-shim/softhca/transport/request_opcodes.h"
#include "driver-shim/softhca/wire/addressing.h"
#include "proto/mlx5/doorbell.h"
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

AddressVectorUse vectors_of(QpType type, const HcaConfig& config) {
  if (type != QpType::kUd) return AddressVectorUse::kNone;
  return config.infiniband ? AddressVectorUse::kByLid : AddressVectorUse::kByGid;
}

}  // namespace

QueuePair::QueuePair(std::uint32_t qpn, const QueuePairSpec& spec, HcaParts& hca, CompletionQueue& send_cq,
                     CompletionQueue& receive_cq, ReceiveQueue* shared_receives)
    : qpn_(qpn),
      spec_(spec),
      states_(spec.type, qpn),
      hca_(hca),
      memory_({spec.pd, qpn}, {.keys = hca.memory,
                               .foreign = hca.foreign,
                               .pcie = hca.counters.pcie,
                               .wire = *hca.wire,
                               .device = {hca.device_memory, hca.config.device_memory_bytes},
                               .two_step_atomics = hca.config.strict}),
      send_cq_(send_cq),
      receive_cq_(receive_cq),
      own_receives_({.ring = spec.receive_ring,
                     .entries = shared_receives != nullptr ? 0 : spec.receive_entries,
                     .stride_bytes = spec.receive_stride_bytes,
                     .record = &spec.doorbell_record[mlx5::kReceiveRecord]}),
      receives_(shared_receives != nullptr ? *shared_receives : own_receives_),
      shared_receives_(shared_receives != nullptr),
      sends_({.qpn = qpn,
              .vectors = vectors_of(spec.type, hca.config),
              .ring = spec.send_ring,
              .blocks = spec.send_blocks,
              .record = &spec.doorbell_record[mlx5::kSendRecord],
              .record_use = hca.config.record},
             hca.foreign, hca.staging),
      pacer_(spec.type, states_.attributes(), hca.config, hca.windows, *hca.wire) {}

QueuePair::~QueuePair() {
  hca_.late.land_all();
  forget_sends();
  if (counted_peer_) hca_.windows.disconnect(*counted_peer_);
}

void QueuePair::forget_sends() {
  for (; !sends_.empty(); sends_.pop()) release_staging();
}

Errno QueuePair::modify(std::uint32_t mask, const QpAttributes& attributes) {
  const QpState from = states_.state();
  if ((mask & kQpPkeyIndex) != 0 && attributes.pkey_index >= hca_.config.pkeys.size()) return EINVAL;
  const Errno refused = states_.modify(mask, attributes, hca_.config.mtu_bytes, hca_.wire->local().is_ipv4());
  if (refused != 0) return refused;
  const std::uint32_t qkey = states_.attributes().qkey;
  if (transport::UdRequester* const sender = send_side_.ud()) sender->set_qkey(qkey);
  if (transport::UdResponder* const receiver = receive_side_.ud()) receiver->set_qkey(qkey);
  if (transport::Responder* responder = receive_side_.rc()) responder->reconfigure(rc_config());
  if (transport::UcResponder* responder = receive_side_.uc()) responder->reconfigure(states_.uc_config());
  constexpr std::uint32_t kRequesterAttributes = kQpTimeout | kQpRetryCount | kQpRnrRetry;
  if (transport::Requester* requester = send_side_.rc();
      requester != nullptr && (mask & kRequesterAttributes)) {
    requester->reconfigure(hca_.now_ns, rc_config());
  }
  count_peer();
  if (!(mask & kQpState) || attributes.state == from) return 0;

  set_state(attributes.state);
  switch (attributes.state) {
    case QpState::kReset: reset(); break;
    case QpState::kRtr: start<ReceiveSide, transport::ResponderPort>(receive_side_, *this); break;
    case QpState::kRts:
      if (from == QpState::kSqe) end_send_error();
      start<SendSide, transport::RequesterPort>(send_side_, *this);
      break;
    case QpState::kError: enter_error(); break;
    case QpState::kInit:
    case QpState::kSqd:
    case QpState::kSqe: break;
  }
  return 0;
}

transport::RcConfig QueuePair::rc_config() const {
  transport::RcConfig config = states_.rc_config(hca_.wire->window_bytes());
  // Differs between queue pairs, and is not 0, because no queue pair has that number.
  if (states_.attributes().any_order || hca_.config.data_order == OrderRule::kAny ||
      planted_fault == PlantedFault::kDroppedForce)
    config.late_writes_seed = hca_.config.udp.faults.seed << kQpnBits | qpn_;
  return config;
}

template <typename Side, typename Port>
void QueuePair::start(Side& side, Port& port) {
  switch (spec_.type) {
    case QpType::kRc: side.start(rc_config(), port); break;
    case QpType::kUc: side.start(states_.uc_config(), port); break;
    case QpType::kUd: side.start(states_.ud_config(hca_.config.mtu_bytes), port); break;
  }
}

// Leaves SQE. Failed sends stay completed; later posts are sent, under the PSNs that follow.
void QueuePair::end_send_error() {
  states_.set_send_psn(send_side_.next_psn(states_.attributes().send_psn));
  add_counters(past_, send_side_.counters());
}

void QueuePair::note(const FlightEvent& event) { flight_.record(hca_.now_ns, event); }

// Flushed WQEs may be more than the recorder holds, and would displace their cause.
FlightRecord QueuePair::flight() const {
  FlightRecord record = flight_.read("engine");
  if (flush_.word != 0) record.events.push_back(flush_);
  return record;
}

void QueuePair::set_state(QpState state) {
  // WQEs that a failure in RTS has flushed come after the state to which it leads.
  if (states_.state() != QpState::kRts && flush_.word != 0) {
    flight_.record(flush_.time_ns, flush_);
    flush_.word = 0;
  }
  states_.move_to(state);
  count_peer();
  note({.kind = FlightKind::kState, .code = static_cast<std::uint8_t>(state)});
}

// Counts the queue pair as one of its peer while packets of that peer may be accepted.
void QueuePair::count_peer() {
  const QpState state = states_.state();
  std::optional<wire::Address> peer;
  if (state == QpState::kRtr || state == QpState::kRts || state == QpState::kSqd || state == QpState::kSqe)
    peer = spec_.type == QpType::kUd ? wire::Address{} : states_.attributes().remote;
  if (peer == counted_peer_) return;
  if (peer) hca_.windows.connect(*peer);
  if (counted_peer_) hca_.windows.disconnect(*counted_peer_);
  counted_peer_ = peer;
}

QpAttributes QueuePair::query() const {
  QpAttributes now = states_.attributes();
  now.send_psn = send_side_.next_psn(now.send_psn);
  now.receive_psn = receive_side_.expected_psn(now.receive_psn);
  return now;
}

void QueuePair::reset() {
  past_ = counters();
  send_side_.stop();
  receive_side_.stop();
  forget_sends();
  sends_.reset();
  taken_receives_.clear();
  pacer_.reset(hca_.now_ns);
  if (!shared_receives_) own_receives_.reset();
  states_.reset();
}

void QueuePair::end_by_failure() {
  const std::optional<QpStates::End> end = states_.take_failure();
  if (!end) return;
  hca_.failed_queue_pairs.fetch_add(1, std::memory_order_relaxed);
  set_state(end->state);
  if (end->state == QpState::kError) enter_error();
  if (end->event_type != QpStates::kNoEvent && spec_.on_event) spec_.on_event(end->event_type);
}

void QueuePair::enter_error() {
  send_side_.fail_all(mlx5::Syndrome::kFlushed);
  states_.forget_failure();
  add_counters(past_, receive_side_.counters());
  receive_side_.stop();
  flush_receives();
  if (shared_receives_) hca_.arrivals.push_back({this, {}, kEventQpLastWqeReached});
}

void QueuePair::flush_receives() {
  const auto flush_taken = [this] {
    while (!taken_receives_.empty()) complete_receive({.syndrome = mlx5::Syndrome::kFlushed});
  };
  flush_taken();
  // Flushes a queue of its own only, because WQEs of a shared queue belong to other queue pairs too.
  while (!shared_receives_ && take_receive()) flush_taken();
}

int QueuePair::fetch_sends(std::span<const DoorbellWrite> rings) {
  if (!states_.fetches() || spec_.send_blocks == 0) return 0;
  const std::optional<std::uint16_t> announced = sends_.read_announced(rings);
  if (!announced) {
    if (states_.state() == QpState::kError) return 0;
    log::warn_of_others("{}: QP 0x{:x} announced more WQEs than its send queue holds; it is in error",
                        hca_.config.name, qpn_);
    states_.fail(kEventQpFatal);
    handle_failure();
    return 0;
  }
  const auto is_late = [this](const DoorbellWrite& ring) { return sends_.is_late(ring); };
  if (planted_fault == PlantedFault::kBackwardDoorbell && std::ranges::any_of(rings, is_late)) {
    // Goes on, so that what a newer doorbell beside the old one announces is flushed.
    states_.fail(kEventQpFatal);
    handle_failure();
  }
  if (*announced != 0 && states_.state() == QpState::kRts)
    note({.kind = FlightKind::kDoorbell, .wqe = sends_.announced(), .word = *announced});
  SendQueue::Fetched fetched;
  while (sends_.fetch(rings, fetched, hca_.taken)) post(hca_.taken, fetched.newest_is_copy);
  sends_.count(rings, fetched, hca_.counters.pcie);
  hca_.counters.wqes += static_cast<std::uint64_t>(fetched.taken);
  handle_failure();
  return fetched.taken;
}

void QueuePair::post(SendWqe& wqe, bool copied) {
  if (wqe.request.length_bytes > states_.attributes().max_message_bytes) {
    wqe.fault = mlx5::Syndrome::kLocalLength;
    wqe.reason = "longer than its connection's messages may be";
  }
  transport::WorkRequest request = wqe.request;
  if (states_.state() == QpState::kRts)
    note({.kind = FlightKind::kFetch,
          .code = static_cast<std::uint8_t>(request.opcode),
          .wqe = request.wqe_counter,
          .bytes = request.length_bytes,
          .word = copied ? 1u : 0u});
  SendSlot& slot = sends_.push(wqe);
  request.cookie = sends_.newest();
  if (slot.body.fault == mlx5::Syndrome::kNone) {
    if (transport::traits_of(request.opcode).has(roce::kHasPayload)) hold_staging(slot);
  } else {
    log::debug("{}: QP 0x{:x} WQE {}: {}", hca_.config.name, qpn_, request.wqe_counter, wqe.reason);
    // Takes its turn as an empty message, which send() then refuses with the fault.
    request.opcode = spec_.type == QpType::kUd ? mlx5::WqeOpcode::kSend : mlx5::WqeOpcode::kRdmaWrite;
    request.length_bytes = 0;
  }
  if (send_side_.started()) {
    send_side_.post(request);
  } else {
    complete(request, mlx5::Syndrome::kFlushed);
  }
}

bool QueuePair::accepts(const wire::Address& source, const roce::Bth& bth) const {
  if (!roce::may_talk(bth.pkey, pkey()) || (hca_.config.grh_required && !bth.has_grh) ||
      roce::traits_of(bth.opcode).service != service_of(spec_.type))
    return false;
  return spec_.type == QpType::kUd || source == states_.attributes().remote;
}

bool QueuePair::on_packet(std::uint64_t now_ns, const wire::Address& source, const roce::Decoded& packet) {
  if (packet.headers.bth.opcode == roce::Opcode::kCongestionNotification) {
    return on_notification(now_ns, source, packet);
  }
  if (!accepts(source, packet.headers.bth) || !dispatch(now_ns, source, packet)) return false;
  if (states_.establish() && spec_.on_event) spec_.on_event(kEventCommunicationEstablished);
  handle_failure();
  return true;
}

// Gives a packet to the transport. False: this queue pair's state has no use for it.
bool QueuePair::dispatch(std::uint64_t now_ns, const wire::Address& source, const roce::Decoded& packet) {
  if (is_response(roce::traits_of(packet.headers.bth.opcode).operation)) {
    transport::Requester* const requester = send_side_.rc();
    if (requester == nullptr || states_.state() != QpState::kRts) return false;
    requester->on_packet(now_ns, packet.headers, packet.payload);
    return true;
  }
  if (transport::Responder* const rc = receive_side_.rc()) {
    rc->on_packet(now_ns, packet.headers, packet.payload);
  } else if (transport::UcResponder* const uc = receive_side_.uc()) {
    uc->on_packet(packet.headers, packet.payload);
  } else if (transport::UdResponder* const ud = receive_side_.ud()) {
    datagram_source_ = source;
    ud->on_packet(packet.headers, grh_of(source, packet), packet.payload);
  } else {
    return false;
  }
  return true;
}

// Returns what precedes the payload of a UD receive. On InfiniBand without a GRH it means nothing.
std::array<std::byte, roce::kGrhBytes> QueuePair::grh_of(const wire::Address& source,
                                                         const roce::Decoded& packet) const {
  const wire::Address& local = hca_.wire->local();
  const std::size_t ib_bytes = roce::header_bytes(packet.headers.bth.opcode) + packet.payload.size() +
                               packet.headers.bth.pad_count + roce::kIcrcBytes;
  if (hca_.config.infiniband)
    return roce::infiniband_grh(wire::gid_of(source, 0), wire::gid_of(local, 0), ib_bytes);
  return roce::grh(source.gid, local.gid, local.is_ipv4(), roce::kUdpBytes + ib_bytes);
}

// Returns the window of the next request; for UD that of the next message's destination.
PeerWindow* QueuePair::request_window() const {
  if (spec_.type != QpType::kUd) return pacer_.window();
  return sends_.empty() ? nullptr : pacer_.window_to(sends_.front().body.destination);
}

std::uint32_t QueuePair::requests_permitted(std::uint64_t now_ns, std::uint32_t max_packets) const {
  const PeerWindow* const window = request_window();
  // The timer counts only towards a stalled peer.
  const bool timed = window != nullptr && window->window().stalled(now_ns) &&
                     send_side_.next_deadline_ns() != transport::kNever;
  return pacer_.requests_permitted(now_ns, max_packets, window, timed);
}

int QueuePair::run_unpaced(std::uint64_t now_ns) {
  int done = 0;
  pacer_.advance(now_ns);
  if (states_.state() == QpState::kRts && now_ns >= send_side_.next_deadline_ns()) {
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
  if (states_.state() == QpState::kError) flush_receives();
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
  while (states_.state() == QpState::kRts && hca_.link_bytes < until_link_bytes &&
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
    receive_side_.pump(now_ns, packets, pacer_.responses_permitted(now_ns, packets));
    handle_failure();
    if (hca_.link_bytes == before) return;
  }
}

std::uint64_t QueuePair::send_some(std::uint64_t now_ns, std::uint64_t allowance_bytes) {
  const std::uint64_t start = hca_.link_bytes;
  const std::uint64_t paced_bytes = std::min(allowance_bytes, pacer_.budget_bytes(now_ns));
  const std::uint64_t half = start + (paced_bytes + 1) / 2;
  const std::uint64_t end = start + paced_bytes;
  // Alternates the first to send, because an allowance may be less than a packet.
  if (!responses_first_) send_requests(now_ns, half);
  send_responses(now_ns, responses_first_ ? half : end);
  send_requests(now_ns, end);
  send_responses(now_ns, end);
  const std::uint64_t sent_bytes = hca_.link_bytes - start;
  if (sent_bytes > 0) responses_first_ = !responses_first_;
  pacer_.on_sent(now_ns, sent_bytes);
  assert(check_invariants() == nullptr);
  return sent_bytes;
}

const char* QueuePair::check_invariants() const {
  if (send_side_.started() && send_side_.idle() != sends_.empty())
    return "WQEs and their work requests do not end together";
  for (const char* const broken :
       {sends_.check_invariants(), send_side_.check_invariants(), receive_side_.check_invariants(),
        shared_receives_ ? nullptr : receives_.check_invariants(taken_receives_), send_cq_.check_invariants(),
        receive_cq_.check_invariants()}) {
    if (broken != nullptr) return broken;
  }
  return nullptr;
}

bool QueuePair::busy() const {
  // Polls the record for posted receives, because no doorbell announces them.
  if (states_.state() == QpState::kError || receive_side_.watches_receives()) return true;
  return !send_side_.idle() || receive_side_.can_send() ||
         receive_side_.next_deadline_ns() != transport::kNever;
}

bool QueuePair::can_send(std::uint64_t now_ns) const {
  if (!states_.sends()) return false;
  const bool may = !pacer_.paused(now_ns);
  const bool requests = may && send_side_.can_send(now_ns);
  PeerWindow* const window = requests ? request_window() : pacer_.window();
  if (window == nullptr) return requests || receive_side_.can_send(may);
  const bool reads = may && pacer_.window_has_room(now_ns);
  if ((requests && requests_permitted(now_ns, 1) > 0) || receive_side_.can_send(reads)) return true;
  if (requests || (may && receive_side_.can_send())) hca_.windows.wait(*window, now_ns);
  return false;
}

std::uint64_t QueuePair::next_deadline_ns() const {
  const std::uint64_t landing_ns = receive_side_.next_deadline_ns();
  if (states_.state() != QpState::kRts) return landing_ns;
  const std::uint64_t now_ns = hca_.now_ns;
  const bool waits = pacer_.paused(now_ns) && (send_side_.can_send(now_ns) || receive_side_.can_send());
  const std::uint64_t timer_ns = std::min(landing_ns, send_side_.next_deadline_ns());
  return waits ? std::min(timer_ns, now_ns + pacer_.wait_ns(now_ns)) : timer_ns;
}

bool QueuePair::on_notification(std::uint64_t now_ns, const wire::Address& source,
                                const roce::Decoded& packet) {
  const bool expected = source == states_.attributes().remote &&
                        packet.payload.size() == roce::kNotificationBytes && states_.sends();
  if (!expected || !pacer_.on_notification(now_ns)) return false;
  ++hca_.counters.notifications_heeded;
  return true;
}

transport::TransportCounters QueuePair::counters() const {
  transport::TransportCounters sum = past_;
  add_counters(sum, send_side_.counters());
  add_counters(sum, receive_side_.counters());
  if (hca_.config.strict && states_.attributes().counter_set != kPortCounterSet) {
    // Those that a ConnectX counts by set.
    sum.timeouts = sum.naks_received = sum.out_of_sequence = 0;
    sum.duplicate_requests = sum.rnr_naks_received = sum.out_of_buffer = 0;
  }
  return sum;
}

void QueuePair::hold_staging(SendSlot& slot) {
  if (!sends_.hold(slot, memory_))
    report_violation("gathers from device memory that another WQE holds", slot.wqe_counter);
  if (!slot.holds.empty()) ++hca_.counters.staging_sends;
}

void QueuePair::release_staging() {
  if (sends_.release_front()) return;
  report_violation("had its device memory overwritten before it completed", sends_.front().wqe_counter);
}

void QueuePair::report_violation(const char* what, std::uint16_t wqe_counter) {
  ++hca_.counters.staging_violations;
  if (violation_reported_) return;
  violation_reported_ = true;
  log::warn_of_others("{}: QP 0x{:x} WQE {} {}: a slot was used without its credit", hca_.config.name, qpn_,
                      wqe_counter, what);
}

void QueuePair::report_relaxed_signal(std::uint32_t rkey) {
  if (std::exchange(relaxed_signal_reported_, true)) return;
  log::warn_of_others(
      "{}: QP 0x{:x} got an atomic under key 0x{:x}, which permits relaxed ordering: a signal there may pass "
      "its payload; register signals without IBV_ACCESS_RELAXED_ORDERING",
      hca_.config.name, qpn_, rkey);
}

void QueuePair::write_send_completion(const SendSlot& slot, std::uint32_t length_bytes,
                                      mlx5::Syndrome syndrome) {
  Completion completion;
  completion.syndrome = syndrome;
  if (planted_fault == PlantedFault::kSyndrome && syndrome == mlx5::Syndrome::kRemoteAccess)
    completion.syndrome = mlx5::Syndrome::kRemoteOperation;
  completion.send_opcode = static_cast<std::uint8_t>(slot.opcode);
  completion.wqe_counter = slot.wqe_counter;
  if (planted_fault == PlantedFault::kCqeCounter) ++completion.wqe_counter;
  completion.qpn = qpn_;
  completion.user_index = spec_.user_index;
  completion.byte_count = length_bytes;
  completion.timestamp_ns = hca_.now_ns;
  write_completion(send_cq_, completion);
}

void QueuePair::deliver(const HcaParts::Arrival& arrival) {
  if (arrival.event_type >= 0) {
    if (spec_.on_event) spec_.on_event(arrival.event_type);
    return;
  }
  write_completion(receive_cq_, arrival.completion);
  handle_failure();
}

void QueuePair::write_completion(CompletionQueue& cq, const Completion& completion) {
  if (cq.write(completion)) {
    ++hca_.counters.cqes;
    return;
  }
  log::debug("{}: QP 0x{:x} has nowhere to put a completion", hca_.config.name, qpn_);
  states_.fail(kEventQpFatal);
}

}  // namespace gdx::softhca
