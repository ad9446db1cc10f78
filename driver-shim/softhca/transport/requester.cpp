#include "driver-shim/softhca/transport/requester.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "driver-shim/softhca/transport/request_opcodes.h"
#include "proto/roce/codec.h"

namespace gdx::softhca::transport {
namespace {

using mlx5::Syndrome;
using mlx5::WqeOpcode;
using roce::Operation;

constexpr std::uint64_t kAckTimeoutUnitNs = 4096;
constexpr std::uint64_t kLongestGrownTimeoutNs = 1'000'000'000;
constexpr std::uint32_t kAckEveryPackets = 32;
constexpr std::uint8_t kEndlessRnrRetry = 7;
constexpr std::size_t kAtomicBytes = 8;
// Bound on the wait before a held message probes, because the wait delays recovery from a lost ACK. The ACK
// timeout applies where it is shorter.
constexpr std::uint64_t kLongestProbeWaitNs = 40'000'000;

std::uint64_t timeout_ns(const RcConfig& config) {
  return config.ack_timeout == 0 ? kNever : kAckTimeoutUnitNs << (config.ack_timeout & 31);
}

enum class Fence { kNone, kResponses, kAcknowledgements };

// Returns the fence of a request. The mode is one number of three bits. The small fences concern changes of
// keys, which end before the next request's turn.
Fence fence_of(const WorkRequest& request) {
  switch (request.fm_ce_se >> mlx5::kFenceShift << mlx5::kFenceShift) {
    case mlx5::kFenceReads:
    case mlx5::kFence: return Fence::kResponses;
    case mlx5::kFenceStrongOrdering: return Fence::kAcknowledgements;
    default: return Fence::kNone;
  }
}

Syndrome syndrome_of_nak(std::uint8_t aeth_syndrome) {
  switch (aeth_syndrome) {
    case roce::kNakInvalidRequest: return Syndrome::kRemoteInvalidRequest;
    case roce::kNakRemoteAccess: return Syndrome::kRemoteAccess;
    case roce::kNakRemoteOperation: return Syndrome::kRemoteOperation;
    default: return Syndrome::kBadResponse;
  }
}

}  // namespace

std::uint64_t rnr_timer_ns(std::uint8_t code) {
  // Durations of the 32 codes, in units of 10 us.
  static constexpr std::array<std::uint32_t, 32> kTimers{
      65536, 1,   2,   3,   4,    6,    8,    12,   16,   24,   32,   48,    64,    96,    128,   192,
      256,   384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
  return kTimers[code % kTimers.size()] * 10'000ull;
}

Requester::Requester(const RcConfig& config, RequesterPort& port)
    : config_(config),
      port_(port),
      ack_timeout_ns_(timeout_ns(config)),
      unacked_(first_psn(config.send_psn)),
      send_psn_(unacked_),
      sent_end_(unacked_),
      asked_end_(unacked_),
      posted_end_(unacked_),
      limit_(config.first_msn),
      newest_message_(first_psn(config.first_msn)),
      retries_left_(config.retry_count),
      rnr_retries_left_(config.rnr_retry) {}

void Requester::reconfigure(std::uint64_t now_ns, const RcConfig& config) {
  config_.ack_timeout = config.ack_timeout;
  config_.retry_count = config.retry_count;
  config_.rnr_retry = config.rnr_retry;
  ack_timeout_ns_ = timeout_ns(config);
  retries_left_ = config.retry_count;
  rnr_retries_left_ = config.rnr_retry;
  start_timers(now_ns);
}

void Requester::post(const WorkRequest& request) {
  if (in_error_) {
    port_.complete(request, Syndrome::kFlushed);
    return;
  }
  Entry& entry = queue_.extend();
  entry = Entry{.request = request, .first_psn = posted_end_};
  const roce::OpcodeTraits& traits = traits_of(request.opcode);
  const bool atomic = is_atomic(traits.operation);
  entry.wants_response = wants_response(traits.operation);
  entry.changes_key = request.opcode == WqeOpcode::kUmr;
  if (request.opcode == WqeOpcode::kNop || entry.changes_key) {
    entry.packets = 0;
  } else if (traits.operation == Operation::kNone || (entry.wants_response && config_.max_rd_atomic == 0)) {
    entry.failure = Syndrome::kLocalQpOperation;
  } else if (atomic) {
    entry.packets = 1;
  } else if (request.length_bytes > mlx5::kMaxMessageBytes) {
    entry.failure = Syndrome::kLocalLength;
  } else {
    entry.packets = packets_of(request.length_bytes, config_.mtu_bytes);
  }
  if (entry.packets == 0) return;
  posted_end_ += entry.packets;
  entry.message = ++newest_message_;
  entry.takes_receive = traits.operation == Operation::kSend || traits.has(roce::kHasImmediate);
}

std::uint64_t Requester::unacked_requests() const { return send_psn_ - unacked_ - response_psns_pending_; }

bool Requester::may_start(const Entry& entry) const {
  switch (fence_of(entry.request)) {
    case Fence::kNone: break;
    case Fence::kResponses:
      if (responses_pending_ > 0) return false;
      break;
    case Fence::kAcknowledgements:
      if (send_index_ != queue_.first()) return false;
      break;
  }
  return !entry.wants_response || responses_pending_ < config_.max_rd_atomic;
}

// Returns whether receives permit an entry's next packet. Beyond the limit a message may only probe: a SEND
// with its first packet, which takes the receive; a WRITE whole, because its last packet takes it. The first
// such message probes at once, because the peer starts to report receives only then. Before any ACK the peer
// may advertise nothing, so only the RNR timer counts.
bool Requester::receive_permits(const Entry& entry) const {
  if (!entry.takes_receive || limit_.permits(entry.message)) return true;
  const bool asks_at_once = limit_.known() ? !asked_ && send_psn_ == unacked_ : probing_ == 0;
  const bool may_ask = asks_at_once || probing_ == entry.message;
  if (traits_of(entry.request.opcode).operation != Operation::kSend) return may_ask;
  return unacked_ > entry.first_psn || (may_ask && send_psn_ == entry.first_psn);
}

bool Requester::held() const { return send_index_ != queue_.end() && !receive_permits(queue_[send_index_]); }

// Outstanding packets need no probe, because their acknowledgements carry the receives.
bool Requester::wants_probe_timer() const {
  return probe_deadline_ns_ == kNever && send_psn_ == unacked_ && held();
}

void Requester::note_held() {
  if (!held() || newest_held_ >= queue_[send_index_].message) return;
  newest_held_ = queue_[send_index_].message;
  ++counters_.credit_waits;
}

bool Requester::can_send(std::uint64_t now_ns) const {
  if (in_error_) return false;
  if (tail_packets_due_ > 0) return true;
  if (send_index_ == queue_.end()) return false;
  if (rnr_deadline_ns_ != kNever && now_ns < rnr_deadline_ns_) return false;
  const Entry& entry = queue_[send_index_];
  if (entry.failure != Syndrome::kNone) return send_index_ == queue_.first();
  // Waits for the front, because earlier requests may be resent and must use the old keys.
  if (entry.changes_key) return send_index_ == queue_.first();
  if (entry.packets == 0) return may_start(entry);
  if (config_.max_unacked_packets != 0 && unacked_requests() >= config_.max_unacked_packets) return false;
  const ExtendedPsn end = entry.wants_response ? entry.end_psn() : send_psn_ + 1;
  if (end - unacked_ >= kPsnHalfSpace || !receive_permits(entry)) return false;
  // Continues a message that has begun; a READ that resumes in its middle counts as a start.
  return (send_psn_ != entry.first_psn && !entry.wants_response) || may_start(entry);
}

std::uint32_t Requester::pump(std::uint64_t now_ns, std::uint32_t max_packets) {
  std::uint32_t sent = 0;
  while (sent < max_packets && can_send(now_ns)) {
    if (tail_packets_due_ > 0) {
      sent += send_tail(now_ns);
      retire_local();
      continue;
    }
    rnr_deadline_ns_ = kNever;
    Entry& entry = queue_[send_index_];
    if (entry.failure == Syndrome::kNone && entry.packets > 0) {
      entry.failure = transmit(entry);
      if (entry.failure == Syndrome::kNone) {
        account_sent(now_ns, entry);
        ++sent;
      }
    } else if (entry.failure == Syndrome::kNone) {
      pass(entry);
    }
    retire_local();
  }
  note_held();
  return sent;
}

// Passes an entry without packets. After a loss the cursor returns to queued entries. It never returns to a
// change of a key, because that ends when it is made.
void Requester::pass(Entry& entry) {
  if (entry.changes_key) entry.failure = port_.apply(entry.request);
  if (entry.failure == Syndrome::kNone) ++send_index_;
}

Syndrome Requester::transmit(const Entry& entry) {
  return entry.wants_response ? transmit_request(entry) : transmit_segment(entry);
}

// Sends one packet of a SEND or WRITE.
Syndrome Requester::transmit_segment(const Entry& entry) {
  const WorkRequest& request = entry.request;
  const auto index = static_cast<std::uint32_t>(send_psn_ - entry.first_psn);
  const bool first = index == 0;
  const bool last = index + 1 == entry.packets;
  const std::uint32_t offset_bytes = index * config_.mtu_bytes;
  const std::uint32_t length_bytes = std::min(config_.mtu_bytes, request.length_bytes - offset_bytes);

  // Requests an ACK in the packet that fills the window, because otherwise none would open it again.
  const bool fills_window =
      config_.max_unacked_packets != 0 && unacked_requests() + 1 >= config_.max_unacked_packets;
  roce::Headers headers;
  headers.bth = {
      .opcode = packet_opcodes(request.opcode).at(first, last),
      .solicited = last && (request.fm_ce_se & mlx5::kSolicited) != 0,
      .migration = false,
      .pad_count = roce::pad_count_for(length_bytes),
      .destination_qpn = config_.remote_qpn,
      // Requests an ACK of the first packet too, because the answer's sender decides how much may be sent.
      .ack_request = last || fills_window || unrequested_acks_ + 1 >= kAckEveryPackets ||
                     (!answered_ && sent_end_ == unacked_),
      .psn = wire_psn(send_psn_)};
  headers.reth = {request.remote_address, request.rkey, request.length_bytes};
  headers.immediate = request.immediate;
  if (entry.takes_receive && !limit_.permits(entry.message)) {
    probing_ = entry.message;
    asked_ = true;
    headers.bth.ack_request = headers.bth.ack_request || first;
  }
  const Syndrome syndrome = port_.send(headers, request, offset_bytes, length_bytes);
  if (syndrome == Syndrome::kNone) unrequested_acks_ = headers.bth.ack_request ? 0 : unrequested_acks_ + 1;
  return syndrome;
}

// Sends a READ request, for all that is still missing, or an atomic.
Syndrome Requester::transmit_request(const Entry& entry) {
  const WorkRequest& request = entry.request;
  const Operation operation = traits_of(request.opcode).operation;
  roce::Headers headers;
  headers.bth.opcode = packet_opcodes(request.opcode).only;
  headers.bth.destination_qpn = config_.remote_qpn;
  headers.bth.ack_request = true;
  headers.bth.psn = wire_psn(send_psn_);
  if (operation == Operation::kRead) {
    const auto received_bytes = static_cast<std::uint32_t>(send_psn_ - entry.first_psn) * config_.mtu_bytes;
    headers.reth = {request.remote_address + received_bytes, request.rkey,
                    request.length_bytes - received_bytes};
  } else {
    const bool add = operation == Operation::kFetchAdd;
    headers.atomic = {request.remote_address, request.rkey, request.swap_or_add, add ? 0 : request.compare};
    headers.atomic_mask = {request.swap_mask_or_boundaries, add ? 0 : request.compare_mask};
  }
  const Syndrome syndrome = port_.send(headers, request, 0, 0);
  if (syndrome == Syndrome::kNone) unrequested_acks_ = 0;
  return syndrome;
}

void Requester::account_sent(std::uint64_t now_ns, const Entry& entry) {
  ++counters_.packets_sent;
  const bool again = send_psn_ < sent_end_;
  if (again) ++counters_.retransmitted_packets;
  if (entry.wants_response) {
    ++responses_pending_;
    response_psns_pending_ += entry.end_psn() - send_psn_;
    send_psn_ = entry.end_psn();
  } else {
    ++send_psn_;
  }
  sent_end_ = std::max(sent_end_, send_psn_);
  if (send_psn_ == entry.end_psn()) ++send_index_;
  // Times only packets that request an ACK, because only they are answered. The others may wait behind them
  // for their queue pair's next turn, which comes late on a slow link. The message's last packet requests an
  // ACK at the latest.
  if (unrequested_acks_ != 0) return;
  asked_end_ = send_psn_;
  if (!again) round_trip_.begin(now_ns, send_psn_);
  if (ack_deadline_ns_ == kNever) start_timers(now_ns);
}

// Waits one to four timeouts, as IBA 1.4, 9.7.6.1.3 allows. So the first loss is mended soon, and a peer with
// a busy processor gets time. Time beyond a second would not help such a peer more.
void Requester::start_timers(std::uint64_t now_ns) {
  const bool runs = awaits_acknowledge() && ack_timeout_ns_ != kNever;
  const std::uint32_t doublings = std::min(2u, config_.retry_count - retries_left_);
  const std::uint64_t grown_ns = std::min(ack_timeout_ns_ << doublings, kLongestGrownTimeoutNs);
  ack_deadline_ns_ = runs ? now_ns + std::max(ack_timeout_ns_, grown_ns) : kNever;
  tail_deadline_ns_ = runs ? now_ns + round_trip_.wait_ns(tail_resends_) : kNever;
}

// Resends the tail. The oldest packet without an ACK mends the loss of one. The newest that requested an ACK
// draws a NAK if more is missing. Going back instead would send merely late packets twice.
std::uint32_t Requester::send_tail(std::uint64_t now_ns) {
  const bool oldest = tail_packets_due_ == 2;
  --tail_packets_due_;
  Entry& entry = queue_[oldest ? queue_.first() : newest_asked()];
  const bool resumes = oldest || entry.wants_response;
  const ExtendedPsn psn = resumes ? std::max(entry.first_psn, unacked_) : asked_end_ - 1;
  if (!oldest) tail_deadline_ns_ = now_ns + round_trip_.wait_ns(++tail_resends_);
  if (!oldest && psn == unacked_) return 0;  // the oldest has been resent
  port_.note_resend(ResendCause::kTail, wire_psn(psn));
  round_trip_.forget();
  const ExtendedPsn cursor = std::exchange(send_psn_, psn);
  // Makes the packet request an ACK.
  const std::uint32_t unrequested = std::exchange(unrequested_acks_, kAckEveryPackets);
  entry.failure = transmit(entry);
  send_psn_ = cursor;
  unrequested_acks_ = unrequested;
  if (entry.failure != Syndrome::kNone) return 0;
  ++counters_.packets_sent;
  ++counters_.retransmitted_packets;
  ++counters_.tail_resends;
  return 1;
}

// Returns the entry of the newest packet that requested an ACK.
std::uint64_t Requester::newest_asked() const {
  std::uint64_t number = std::min(send_index_, queue_.end() - 1);
  while (queue_[number].packets == 0 || queue_[number].first_psn >= asked_end_) --number;
  return number;
}

void Requester::on_packet(std::uint64_t now_ns, const roce::Headers& headers,
                          std::span<const std::byte> payload) {
  ++counters_.packets_received;
  if (in_error_) return;
  answered_ = true;
  const ExtendedPsn psn = extend_psn(headers.bth.psn, unacked_);
  if (psn >= sent_end_) return;  // an answer to no packet of this requester
  read_credits(headers);
  if (psn < unacked_) return;  // a late duplicate, or an update of receives
  const Operation operation = roce::traits_of(headers.bth.opcode).operation;
  if (operation == Operation::kAcknowledge) return on_acknowledge(now_ns, headers.aeth, psn);
  if (is_response(operation)) on_response(now_ns, headers, psn, payload);
}

void Requester::on_acknowledge(std::uint64_t now_ns, const roce::Aeth& aeth, ExtendedPsn psn) {
  const std::uint8_t kind = aeth.syndrome & roce::kAethKindMask;
  if (kind != roce::kAethKindAck && kind != roce::kAethKindRnr && kind != roce::kAethKindNak) return;
  if (kind == roce::kAethKindNak) ++counters_.naks_received;
  // An ACK covers its own PSN, a NAK only those before it.
  const bool caught_up = acknowledge_before(now_ns, kind == roce::kAethKindAck ? psn + 1 : psn);
  if (in_error_) return;
  if (!caught_up) {
    recover_once(ResendCause::kLostResponse);
  } else if (kind == roce::kAethKindRnr) {
    on_receiver_not_ready(now_ns, aeth.syndrome & 0x1f);
  } else if (kind == roce::kAethKindNak && aeth.syndrome == roce::kNakSequenceError) {
    recover_once(ResendCause::kNak);
  } else if (kind == roce::kAethKindNak) {
    fail_all(syndrome_of_nak(aeth.syndrome));
  }
}

// Reads credits from ACKs only, because a NAK's syndrome has no room for them.
void Requester::read_credits(const roce::Headers& headers) {
  const bool acknowledges = (headers.aeth.syndrome & roce::kAethKindMask) == roce::kAethKindAck;
  if (!roce::traits_of(headers.bth.opcode).has(roce::kHasAeth) || !acknowledges) return;
  if (limit_.update(headers.aeth, newest_message_)) probe_deadline_ns_ = kNever;
}

void Requester::on_receiver_not_ready(std::uint64_t now_ns, std::uint8_t timer_code) {
  ++counters_.rnr_naks_received;
  probing_ = 0;
  if (rnr_deadline_ns_ != kNever) return;
  // Restores the retries, because the peer is alive. Lost packets of a long wait must not sum up to its
  // death.
  retries_left_ = config_.retry_count;
  if (config_.rnr_retry != kEndlessRnrRetry) {
    if (rnr_retries_left_ == 0) return fail_all(Syndrome::kRnrRetryExceeded);
    --rnr_retries_left_;
  }
  tail_resends_ = 0;
  go_back(ResendCause::kNotReady);
  rnr_deadline_ns_ = now_ns + rnr_timer_ns(timer_code);
}

// Accepts by PSN, not by FIRST/MIDDLE/LAST, because Soft-RoCE answers a READ retry with MIDDLE or LAST.
void Requester::on_response(std::uint64_t now_ns, const roce::Headers& headers, ExtendedPsn psn,
                            std::span<const std::byte> payload) {
  const bool caught_up = acknowledge_before(now_ns, psn);
  if (in_error_) return;
  if (!caught_up) return recover_once(ResendCause::kLostResponse);
  const Entry& entry = queue_.front();
  if (!entry.wants_response) return fail_all(Syndrome::kBadResponse);
  const Syndrome syndrome = accept_response(entry, headers, psn, payload);
  if (syndrome != Syndrome::kNone) return fail_all(syndrome);

  const bool counted = queue_.first() < send_index_;
  if (counted) --response_psns_pending_;
  unacked_ = psn + 1;
  if (unacked_ == entry.end_psn()) retire_front(Syndrome::kNone);
  note_progress(now_ns);
  retire_local();
}

Syndrome Requester::accept_response(const Entry& entry, const roce::Headers& headers, ExtendedPsn psn,
                                    std::span<const std::byte> payload) {
  const Operation operation = roce::traits_of(headers.bth.opcode).operation;
  const bool atomic_response = operation == Operation::kAtomicAcknowledge;
  if (atomic_response != is_atomic(traits_of(entry.request.opcode).operation)) return Syndrome::kBadResponse;
  if (atomic_response) {
    std::array<std::byte, kAtomicBytes> original;
    std::memcpy(original.data(), &headers.atomic_original, original.size());
    return port_.scatter(entry.request, 0, original);
  }
  const auto offset_bytes = static_cast<std::uint32_t>(psn - entry.first_psn) * config_.mtu_bytes;
  if (payload.size() != std::min(config_.mtu_bytes, entry.request.length_bytes - offset_bytes)) {
    return Syndrome::kBadResponse;
  }
  return payload.empty() ? Syndrome::kNone : port_.scatter(entry.request, offset_bytes, payload);
}

// Takes everything before `end` as acknowledged, up to the first READ or atomic without its response. Returns
// false there: the lost response is an implied NAK (IBA 1.4, 9.7.5.2.4).
bool Requester::acknowledge_before(std::uint64_t now_ns, ExtendedPsn end) {
  bool moved = false;
  while (unacked_ < end && !queue_.empty()) {
    const Entry& entry = queue_.front();
    if (entry.packets > 0 && entry.wants_response) break;
    const ExtendedPsn entry_end = entry.end_psn();
    unacked_ = std::min(end, entry_end);
    moved = true;
    if (unacked_ == entry_end) retire_front(Syndrome::kNone);
  }
  if (moved) {
    note_progress(now_ns);
    retire_local();
  }
  return in_error_ || unacked_ >= end;
}

void Requester::note_progress(std::uint64_t now_ns) {
  if (send_psn_ < unacked_) {
    // Skips the resend of packets that have arrived after all.
    send_psn_ = unacked_;
    send_index_ = queue_.first();
  }
  retries_left_ = config_.retry_count;
  rnr_retries_left_ = config_.rnr_retry;
  rnr_deadline_ns_ = kNever;
  tail_packets_due_ = 0;
  // Applies Karn's rule: only the answer to a packet sent once ends the longer waits.
  tail_resends_ = round_trip_.end(now_ns, unacked_) ? 0 : std::min(tail_resends_, RoundTrip::kKeptDoublings);
  start_timers(now_ns);
}

// Completes entries at the front that need no packet: NOPs, UMRs, and failures found here.
void Requester::retire_local() {
  while (!queue_.empty()) {
    const Entry& entry = queue_.front();
    if (entry.failure != Syndrome::kNone) return fail_all(entry.failure);
    // Checks sent_end_ too, because the cursor may have gone back before an entry that it had passed.
    const bool passed = queue_.first() < send_index_ || entry.first_psn < sent_end_;
    if (entry.packets > 0 || !passed) return;
    retire_front(Syndrome::kNone);
  }
}

void Requester::retire_front(Syndrome syndrome) {
  const Entry& entry = queue_.front();
  if (entry.wants_response && queue_.first() < send_index_) --responses_pending_;
  queue_.pop_front();
  send_index_ = std::max(send_index_, queue_.first());
  port_.complete(entry.request, syndrome);
}

// Goes back after a NAK, explicit or implied. Does so once per PSN, because each packet behind the lost one
// may draw a NAK. More returns would multiply the traffic. A second loss is left to the timer.
void Requester::recover_once(ResendCause cause) {
  if (rnr_deadline_ns_ != kNever || recovered_psn_ == unacked_) return;
  recovered_psn_ = unacked_;
  tail_resends_ = 0;  // resent packets start new waits
  if (take_retry()) go_back(cause);
}

bool Requester::take_retry() {
  if (retries_left_ == 0) {
    fail_all(Syndrome::kRetryExceeded);
    return false;
  }
  --retries_left_;
  return true;
}

void Requester::go_back(ResendCause cause) {
  port_.note_resend(cause, wire_psn(unacked_));
  send_psn_ = asked_end_ = unacked_;
  send_index_ = queue_.first();
  responses_pending_ = 0;
  response_psns_pending_ = 0;
  ack_deadline_ns_ = tail_deadline_ns_ = kNever;
  tail_packets_due_ = 0;
  round_trip_.forget();
}

void Requester::on_timer(std::uint64_t now_ns) {
  if (in_error_) return;
  if (now_ns >= rnr_deadline_ns_) rnr_deadline_ns_ = kNever;
  if (wants_probe_timer()) {
    probe_deadline_ns_ = now_ns + std::min(ack_timeout_ns_, kLongestProbeWaitNs);
    note_held();
  } else if (now_ns >= probe_deadline_ns_) {
    probe_deadline_ns_ = kNever;
    if (wants_probe_timer()) {
      probing_ = queue_[send_index_].message;
      ++counters_.credit_probes;
    }
  }
  if (now_ns < ack_deadline_ns_) {
    if (now_ns < tail_deadline_ns_) return;
    tail_deadline_ns_ = kNever;
    tail_packets_due_ = 2;
    return;
  }
  ++counters_.timeouts;
  recovered_psn_.reset();
  if (take_retry()) go_back(ResendCause::kTimeout);
}

std::uint64_t Requester::next_deadline_ns() const {
  if (in_error_) return kNever;
  if (wants_probe_timer()) return 0;  // on_timer() starts it
  return std::min({ack_deadline_ns_, tail_deadline_ns_, rnr_deadline_ns_, probe_deadline_ns_});
}

void Requester::fail_all(Syndrome first) {
  in_error_ = true;
  Syndrome syndrome = first;
  while (!queue_.empty()) {
    retire_front(syndrome);
    syndrome = Syndrome::kFlushed;
  }
}

bool Requester::idle() const { return queue_.empty(); }
bool Requester::in_error() const { return in_error_; }
std::uint32_t Requester::next_psn() const { return wire_psn(sent_end_); }
const TransportCounters& Requester::counters() const { return counters_; }

}  // namespace gdx::softhca::transport
