#include "driver-shim/softhca/transport/requester.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "proto/roce/codec.h"

namespace gdx::softhca::transport {
namespace {

using mlx5::Syndrome;
using mlx5::WqeOpcode;
using roce::Opcode;

constexpr std::uint64_t kAckTimeoutUnitNs = 4096;
constexpr std::uint32_t kAckEveryPackets = 32;
constexpr std::uint8_t kEndlessRnrRetry = 7;
constexpr std::size_t kAtomicBytes = 8;
// A held message asks after the ACK timeout: longer than this the loss of one ACK shall not be felt.
constexpr std::uint64_t kLongestProbeWaitNs = 40'000'000;

struct PacketOpcodes {
  Opcode first, middle, last, only;
};

// For operations that carry payload; null for the others.
const PacketOpcodes* packet_opcodes(WqeOpcode opcode) {
  using enum Opcode;
  static constexpr PacketOpcodes kSend{kRcSendFirst, kRcSendMiddle, kRcSendLast, kRcSendOnly};
  static constexpr PacketOpcodes kSendImm{kRcSendFirst, kRcSendMiddle, kRcSendLastImmediate,
                                          kRcSendOnlyImmediate};
  static constexpr PacketOpcodes kSendInv{kRcSendFirst, kRcSendMiddle, kRcSendLastInvalidate,
                                          kRcSendOnlyInvalidate};
  static constexpr PacketOpcodes kWrite{kRcWriteFirst, kRcWriteMiddle, kRcWriteLast, kRcWriteOnly};
  static constexpr PacketOpcodes kWriteImm{kRcWriteFirst, kRcWriteMiddle, kRcWriteLastImmediate,
                                           kRcWriteOnlyImmediate};
  switch (opcode) {
    case WqeOpcode::kSend: return &kSend;
    case WqeOpcode::kSendImmediate: return &kSendImm;
    case WqeOpcode::kSendInvalidate: return &kSendInv;
    case WqeOpcode::kRdmaWrite: return &kWrite;
    case WqeOpcode::kRdmaWriteImmediate: return &kWriteImm;
    default: return nullptr;
  }
}

bool is_send(WqeOpcode opcode) {
  switch (opcode) {
    case WqeOpcode::kSend:
    case WqeOpcode::kSendImmediate:
    case WqeOpcode::kSendInvalidate: return true;
    default: return false;
  }
}

bool is_atomic(WqeOpcode opcode) {
  switch (opcode) {
    case WqeOpcode::kAtomicCompareSwap:
    case WqeOpcode::kAtomicFetchAdd:
    case WqeOpcode::kAtomicMaskedCompareSwap:
    case WqeOpcode::kAtomicMaskedFetchAdd: return true;
    default: return false;
  }
}

Opcode atomic_opcode(WqeOpcode opcode) {
  switch (opcode) {
    case WqeOpcode::kAtomicCompareSwap: return Opcode::kRcCompareSwap;
    case WqeOpcode::kAtomicMaskedCompareSwap: return Opcode::kMaskedCompareSwap;
    case WqeOpcode::kAtomicMaskedFetchAdd: return Opcode::kMaskedFetchAdd;
    default: return Opcode::kRcFetchAdd;
  }
}

std::uint64_t timeout_ns(const RcConfig& config) {
  return config.ack_timeout == 0 ? kNever : kAckTimeoutUnitNs << (config.ack_timeout & 31);
}

enum class Fence { kNone, kResponses, kAcknowledgements };

// What a request waits for. The mode is one number of three bits. Changes of keys, which the small fences are
// about, are over before the next request has its turn.
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
  // In units of 10 us.
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
  const bool is_read = request.opcode == WqeOpcode::kRdmaRead;
  entry.wants_response = is_read || is_atomic(request.opcode);
  entry.changes_key = request.opcode == WqeOpcode::kUmr;
  if (request.opcode == WqeOpcode::kNop || entry.changes_key) {
    entry.packets = 0;
  } else if (!entry.wants_response && packet_opcodes(request.opcode) == nullptr) {
    entry.failure = Syndrome::kLocalQpOperation;
  } else if (entry.wants_response && config_.max_rd_atomic == 0) {
    entry.failure = Syndrome::kLocalQpOperation;
  } else if (is_atomic(request.opcode)) {
    entry.packets = 1;
  } else if (request.length_bytes > mlx5::kMaxMessageBytes) {
    entry.failure = Syndrome::kLocalLength;
  } else {
    entry.packets = packets_of(request.length_bytes, config_.mtu_bytes);
  }
  if (entry.packets == 0) return;
  posted_end_ += entry.packets;
  entry.message = ++newest_message_;
  entry.takes_receive = is_send(request.opcode) || request.opcode == WqeOpcode::kRdmaWriteImmediate;
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

// Beyond the limit a message may only ask: a SEND with its first packet, which takes the receive, a WRITE
// with all of it, since its last packet does. Nobody watches for receives before a message has needed one, so
// the first one asks at once. Where no ACK has come yet the peer may be one that advertises nothing, and only
// the RNR timer counts.
bool Requester::receive_permits(const Entry& entry) const {
  if (!entry.takes_receive || limit_.permits(entry.message)) return true;
  const bool asks_at_once = limit_.known() ? !asked_ && send_psn_ == unacked_ : probing_ == 0;
  const bool may_ask = asks_at_once || probing_ == entry.message;
  if (!is_send(entry.request.opcode)) return may_ask;
  return unacked_ > entry.first_psn || (may_ask && send_psn_ == entry.first_psn);
}

bool Requester::held() const { return send_index_ != queue_.end() && !receive_permits(queue_[send_index_]); }

// While packets are outstanding, their acknowledgements bring what is to be known.
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
  // What is before it may have to be sent again, from where its keys lead now.
  if (entry.changes_key) return send_index_ == queue_.first();
  if (entry.packets == 0) return may_start(entry);
  if (config_.max_unacked_packets != 0 && unacked_requests() >= config_.max_unacked_packets) return false;
  const ExtendedPsn end = entry.wants_response ? entry.end_psn() : send_psn_ + 1;
  if (end - unacked_ >= kPsnHalfSpace || !receive_permits(entry)) return false;
  // A message that has begun goes on; a READ that resumes in its middle counts as a start.
  return (send_psn_ != entry.first_psn && !entry.wants_response) || may_start(entry);
}

std::uint32_t Requester::pump(std::uint64_t now_ns, std::uint32_t max_packets) {
  std::uint32_t sent = 0;
  while (sent < max_packets && can_send(now_ns)) {
    if (tail_packets_due_ > 0) {
      sent += send_tail(now_ns);
      retire_settled();
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
    retire_settled();
  }
  note_held();
  return sent;
}

// What needs no packet. After a loss the cursor comes again to what is still queued: never to a change of a
// key, which is over when it is made.
void Requester::pass(Entry& entry) {
  if (entry.changes_key) entry.failure = port_.apply(entry.request);
  if (entry.failure == Syndrome::kNone) ++send_index_;
}

Syndrome Requester::transmit(const Entry& entry) {
  return entry.wants_response ? transmit_request(entry) : transmit_segment(entry);
}

// One packet of a SEND or WRITE.
Syndrome Requester::transmit_segment(const Entry& entry) {
  const WorkRequest& request = entry.request;
  const PacketOpcodes& opcodes = *packet_opcodes(request.opcode);
  const auto index = static_cast<std::uint32_t>(send_psn_ - entry.first_psn);
  const bool first = index == 0;
  const bool last = index + 1 == entry.packets;
  const std::uint32_t offset_bytes = index * config_.mtu_bytes;
  const std::uint32_t length_bytes = std::min(config_.mtu_bytes, request.length_bytes - offset_bytes);

  // The packet that fills the window must ask, or nothing would ever open it again.
  const bool fills_window =
      config_.max_unacked_packets != 0 && unacked_requests() + 1 >= config_.max_unacked_packets;
  roce::Headers headers;
  headers.bth = {
      .opcode = last ? (first ? opcodes.only : opcodes.last) : (first ? opcodes.first : opcodes.middle),
      .solicited = last && (request.fm_ce_se & mlx5::kSolicited) != 0,
      .migration = false,
      .pad_count = roce::pad_count_for(length_bytes),
      .pkey = roce::kDefaultPkey,
      .destination_qpn = config_.remote_qpn,
      // The first one of all too: who it is that answers decides how much may be sent.
      .ack_request = last || fills_window || unrequested_acks_ + 1 >= kAckEveryPackets ||
                     (!heard_ && sent_end_ == unacked_),
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

// A READ request, for all that is still missing, or an atomic.
Syndrome Requester::transmit_request(const Entry& entry) {
  const WorkRequest& request = entry.request;
  roce::Headers headers;
  headers.bth.pkey = roce::kDefaultPkey;
  headers.bth.destination_qpn = config_.remote_qpn;
  headers.bth.ack_request = true;
  headers.bth.psn = wire_psn(send_psn_);
  if (request.opcode == WqeOpcode::kRdmaRead) {
    const auto received_bytes = static_cast<std::uint32_t>(send_psn_ - entry.first_psn) * config_.mtu_bytes;
    headers.bth.opcode = Opcode::kRcReadRequest;
    headers.reth = {request.remote_address + received_bytes, request.rkey,
                    request.length_bytes - received_bytes};
  } else {
    const bool add =
        request.opcode == WqeOpcode::kAtomicFetchAdd || request.opcode == WqeOpcode::kAtomicMaskedFetchAdd;
    headers.bth.opcode = atomic_opcode(request.opcode);
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
  // Only what asks is answered. The others may wait behind them for their queue pair's next turn, which on a
  // slow link comes late; the message's last packet asks at the latest.
  if (unrequested_acks_ != 0) return;
  asked_end_ = send_psn_;
  if (!again) round_trip_.begin(now_ns, send_psn_);
  if (ack_deadline_ns_ == kNever) start_timers(now_ns);
}

// One to four timeouts, as IBA 1.4, 9.7.6.1.3 allows: the first loss is mended soon, and a peer whose
// processor is busy elsewhere is not given up at once.
void Requester::start_timers(std::uint64_t now_ns) {
  const bool runs = awaits_acknowledge() && ack_timeout_ns_ != kNever;
  const std::uint32_t doublings = std::min(2u, config_.retry_count - retries_left_);
  ack_deadline_ns_ = runs ? now_ns + (ack_timeout_ns_ << doublings) : kNever;
  tail_deadline_ns_ = runs ? now_ns + round_trip_.wait_ns(tail_resends_) : kNever;
}

// The oldest packet without an ACK mends the loss of one; the newest that asked draws a NAK where more is
// missing. To go back instead would send all twice that is only late.
std::uint32_t Requester::send_tail(std::uint64_t now_ns) {
  const bool oldest = tail_packets_due_ == 2;
  --tail_packets_due_;
  Entry& entry = queue_[oldest ? queue_.first() : newest_asked()];
  const bool resumes = oldest || entry.wants_response;
  const ExtendedPsn psn = resumes ? std::max(entry.first_psn, unacked_) : asked_end_ - 1;
  if (!oldest) tail_deadline_ns_ = now_ns + round_trip_.wait_ns(++tail_resends_);
  if (!oldest && psn == unacked_) return 0;  // that was the oldest
  round_trip_.forget();
  const ExtendedPsn cursor = std::exchange(send_psn_, psn);
  const std::uint32_t unrequested = std::exchange(unrequested_acks_, kAckEveryPackets);  // so it asks
  entry.failure = transmit(entry);
  send_psn_ = cursor;
  unrequested_acks_ = unrequested;
  if (entry.failure != Syndrome::kNone) return 0;
  ++counters_.packets_sent;
  ++counters_.retransmitted_packets;
  ++counters_.tail_resends;
  return 1;
}

// The entry of the newest packet that asked.
std::uint64_t Requester::newest_asked() const {
  std::uint64_t number = std::min(send_index_, queue_.end() - 1);
  while (queue_[number].packets == 0 || queue_[number].first_psn >= asked_end_) --number;
  return number;
}

void Requester::on_packet(std::uint64_t now_ns, const roce::Headers& headers,
                          std::span<const std::byte> payload) {
  ++counters_.packets_received;
  if (in_error_) return;
  heard_ = true;
  const ExtendedPsn psn = extend_psn(headers.bth.psn, unacked_);
  if (psn >= sent_end_) return;  // an answer to nothing we sent
  learn_credits(headers);
  if (psn < unacked_) return;  // a late duplicate, or word of receives
  switch (headers.bth.opcode) {
    case Opcode::kRcAcknowledge: on_acknowledge(now_ns, headers.aeth, psn); break;
    case Opcode::kRcReadResponseFirst:
    case Opcode::kRcReadResponseMiddle:
    case Opcode::kRcReadResponseLast:
    case Opcode::kRcReadResponseOnly:
    case Opcode::kRcAtomicAcknowledge: on_response(now_ns, headers, psn, payload); break;
    default: break;
  }
}

void Requester::on_acknowledge(std::uint64_t now_ns, const roce::Aeth& aeth, ExtendedPsn psn) {
  const std::uint8_t kind = aeth.syndrome & roce::kAethKindMask;
  if (kind != roce::kAethKindAck && kind != roce::kAethKindRnr && kind != roce::kAethKindNak) return;
  if (kind == roce::kAethKindNak) ++counters_.naks_received;
  if (kind == roce::kAethKindRnr) probing_ = 0;
  // An ACK covers its own PSN, a NAK only those before it.
  const bool caught_up = acknowledge_before(now_ns, kind == roce::kAethKindAck ? psn + 1 : psn);
  if (in_error_) return;
  if (!caught_up) {
    recover_once();
  } else if (kind == roce::kAethKindRnr) {
    on_receiver_not_ready(now_ns, aeth.syndrome & 0x1f);
  } else if (kind == roce::kAethKindNak && aeth.syndrome == roce::kNakSequenceError) {
    recover_once();
  } else if (kind == roce::kAethKindNak) {
    fail_all(syndrome_of_nak(aeth.syndrome));
  }
}

// A NAK's syndrome has no room for them.
void Requester::learn_credits(const roce::Headers& headers) {
  const bool acknowledges = (headers.aeth.syndrome & roce::kAethKindMask) == roce::kAethKindAck;
  if (headers.bth.opcode == Opcode::kRcReadResponseMiddle || !acknowledges) return;
  if (limit_.learn(headers.aeth, newest_message_)) probe_deadline_ns_ = kNever;
}

void Requester::on_receiver_not_ready(std::uint64_t now_ns, std::uint8_t timer_code) {
  ++counters_.rnr_naks_received;
  if (rnr_deadline_ns_ != kNever) return;
  // The peer lives. Lost packets of a long wait must not add up to its death.
  retries_left_ = config_.retry_count;
  if (config_.rnr_retry != kEndlessRnrRetry) {
    if (rnr_retries_left_ == 0) return fail_all(Syndrome::kRnrRetryExceeded);
    --rnr_retries_left_;
  }
  go_back();
  rnr_deadline_ns_ = now_ns + rnr_timer_ns(timer_code);
}

// Accepted by PSN, not by FIRST/MIDDLE/LAST: Soft-RoCE answers a READ retry with MIDDLE or LAST.
void Requester::on_response(std::uint64_t now_ns, const roce::Headers& headers, ExtendedPsn psn,
                            std::span<const std::byte> payload) {
  const bool caught_up = acknowledge_before(now_ns, psn);
  if (in_error_) return;
  if (!caught_up) return recover_once();
  const Entry& entry = queue_.front();
  if (!entry.wants_response) return fail_all(Syndrome::kBadResponse);
  const Syndrome syndrome = accept_response(entry, headers, psn, payload);
  if (syndrome != Syndrome::kNone) return fail_all(syndrome);

  const bool counted = queue_.first() < send_index_;
  if (counted) --response_psns_pending_;
  unacked_ = psn + 1;
  if (unacked_ == entry.end_psn()) retire_front(Syndrome::kNone);
  note_progress(now_ns);
  retire_settled();
}

Syndrome Requester::accept_response(const Entry& entry, const roce::Headers& headers, ExtendedPsn psn,
                                    std::span<const std::byte> payload) {
  const bool atomic_response = headers.bth.opcode == Opcode::kRcAtomicAcknowledge;
  if (atomic_response != is_atomic(entry.request.opcode)) return Syndrome::kBadResponse;
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

// Takes everything before `end` as acknowledged, up to the first READ or atomic that lacks its response.
// False when there is one: its response was lost, which is an implied NAK (IBA 1.4, 9.7.5.2.4).
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
    retire_settled();
  }
  return in_error_ || unacked_ >= end;
}

void Requester::note_progress(std::uint64_t now_ns) {
  if (send_psn_ < unacked_) {
    // What we were about to resend has arrived after all.
    send_psn_ = unacked_;
    send_index_ = queue_.first();
  }
  retries_left_ = config_.retry_count;
  rnr_retries_left_ = config_.rnr_retry;
  rnr_deadline_ns_ = kNever;
  tail_packets_due_ = 0;
  // Karn's rule: only the answer to what was sent once ends the longer waits.
  tail_resends_ = round_trip_.end(now_ns, unacked_) ? 0 : std::min(tail_resends_, RoundTrip::kKeptDoublings);
  start_timers(now_ns);
}

// Completes what needs no packet once it has come to the front: NOPs, UMRs, and failures found here.
void Requester::retire_settled() {
  while (!queue_.empty()) {
    const Entry& entry = queue_.front();
    if (entry.failure != Syndrome::kNone) return fail_all(entry.failure);
    // The cursor may have gone back behind one that it had passed before.
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

// The answer to a NAK, spoken or implied. Once per PSN: everything that was behind the lost packet may
// draw another NAK, and going back for each would multiply the traffic. A second loss is the timer's.
void Requester::recover_once() {
  if (rnr_deadline_ns_ != kNever || recovered_psn_ == unacked_) return;
  recovered_psn_ = unacked_;
  if (take_retry()) go_back();
}

bool Requester::take_retry() {
  if (retries_left_ == 0) {
    fail_all(Syndrome::kRetryExceeded);
    return false;
  }
  --retries_left_;
  return true;
}

void Requester::go_back() {
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
  if (take_retry()) go_back();
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
