#include "driver-shim/softhca/transport/responder.h"

#include <algorithm>

#include "proto/roce/codec.h"

namespace gdx::softhca::transport {

namespace {

using mlx5::Syndrome;
using roce::Opcode;
using roce::Operation;

constexpr std::uint64_t kAtomicAlignment = 8;
constexpr std::uint32_t kAtomicBytes = 8;
constexpr std::uint64_t kAllBits = ~std::uint64_t{0};

Syndrome syndrome_of_nak(std::uint8_t nak) {
  switch (nak) {
    case roce::kNakRemoteAccess: return Syndrome::kRemoteAccess;
    case roce::kNakRemoteOperation: return Syndrome::kRemoteOperation;
    default: return Syndrome::kRemoteInvalidRequest;
  }
}

AtomicOperation operation_of(const roce::Headers& headers) {
  const roce::AtomicEth& atomic = headers.atomic;
  const roce::OpcodeTraits& traits = roce::traits_of(headers.bth.opcode);
  const bool masked = traits.has(roce::kHasAtomicMaskEth);
  const roce::AtomicMaskEth& mask = headers.atomic_mask;
  if (traits.operation == Operation::kFetchAdd) {
    return {true, atomic.swap_or_add, 0, masked ? mask.swap_mask_or_boundaries : 0, 0};
  }
  return {false, atomic.swap_or_add, atomic.compare, masked ? mask.swap_mask_or_boundaries : kAllBits,
          masked ? mask.compare_mask : kAllBits};
}

}  // namespace

Responder::Responder(const RcConfig& config, ResponderPort& port)
    : config_(config),
      port_(port),
      expected_(first_psn(config.receive_psn)),
      executed_(expected_ - 1),
      msn_(config.first_msn),
      late_(config.late_writes_seed),
      served_(config.max_dest_rd_atomic) {}

void Responder::reconfigure(const RcConfig& config) {
  config_.min_rnr_timer = config.min_rnr_timer;
  config_.remote_write = config.remote_write;
  config_.remote_read = config.remote_read;
  config_.remote_atomic = config.remote_atomic;
}

void Responder::on_packet(std::uint64_t now_ns, const roce::Headers& headers,
                          std::span<const std::byte> payload) {
  ++counters_.packets_received;
  now_ns_ = now_ns;
  const roce::OpcodeTraits& traits = roce::traits_of(headers.bth.opcode);
  if (dead_ || !is_request(traits.operation)) return;
  const ExtendedPsn psn = extend_psn(headers.bth.psn, expected_);
  if (psn < expected_) return on_duplicate(headers, traits, psn);
  if (psn > expected_) {
    ++counters_.out_of_sequence;
    if (!gap_reported_) queue_nak(roce::kNakSequenceError);
    return;
  }
  gap_reported_ = false;
  if (!sequence_permits(traits) || !length_permits(traits, payload.size())) {
    return refuse(roce::kNakInvalidRequest);
  }
  const bool is_plain_write = traits.operation == Operation::kWrite && !traits.has(roce::kHasImmediate);
  if (!is_plain_write && !land_late_writes()) return;
  switch (traits.operation) {
    case Operation::kSend: return on_send(headers, traits, payload);
    case Operation::kWrite: return on_write(headers, traits, payload);
    case Operation::kRead: return on_read(headers);
    case Operation::kCompareSwap:
    case Operation::kFetchAdd: return on_atomic(headers);
    default: return;
  }
}

bool Responder::sequence_permits(const roce::OpcodeTraits& traits) const {
  switch (message_) {
    case Message::kNone: return traits.first;
    case Message::kSend: return !traits.first && traits.operation == Operation::kSend;
    case Message::kWrite: return !traits.first && traits.operation == Operation::kWrite;
  }
  return false;
}

// Returns whether the length fits the opcode: FIRST and MIDDLE are full, LAST is not empty. Source: IBA 1.4,
// 9.7.4.1.6.
bool Responder::length_permits(const roce::OpcodeTraits& traits, std::size_t payload_bytes) const {
  if (!traits.last) return payload_bytes == config_.mtu_bytes;
  return payload_bytes <= config_.mtu_bytes && (traits.first || payload_bytes > 0);
}

// Answers a duplicate request again, and executes it only if that changes nothing. Source: IBA 1.4, 9.7.5.1.2
// to 9.7.5.1.3.
void Responder::on_duplicate(const roce::Headers& headers, const roce::OpcodeTraits& traits,
                             ExtendedPsn psn) {
  ++counters_.duplicate_requests;
  const bool atomic = is_atomic(traits.operation);
  if (!atomic && traits.operation != Operation::kRead) return queue_ack(std::nullopt);
  const Served* const known = find_served(psn, atomic);
  if (known == nullptr) return;
  if (!atomic) return on_duplicate_read(headers.reth, psn, *known);
  if (!admits_duplicate(psn, psn + 1)) return;
  Response response;
  response.kind = Response::Kind::kAtomic;
  response.remaining_packets = 1;
  response.duplicate = true;
  response.msn = msn_;
  response.psn = psn;
  response.original = known->original;
  responses_.push_back(response);
  send_control_responses();
}

// Reads memory afresh, within the range of the first request. A key that has gone draws no NAK, because the
// duplicate may be of a READ answered long ago.
void Responder::on_duplicate_read(const roce::Reth& reth, ExtendedPsn psn, const Served& served) {
  const std::uint64_t skipped_bytes = (psn - served.first_psn) * config_.mtu_bytes;
  const bool covered = reth.rkey == served.range.rkey &&
                       reth.address == served.range.address + skipped_bytes &&
                       skipped_bytes + reth.length_bytes <= served.range.length_bytes;
  if (!config_.remote_read || !covered) return;
  if (reth.length_bytes > 0 &&
      !port_.check(RemoteOperation::kRead, reth.rkey, reth.address, reth.length_bytes)) {
    return;
  }
  Response again = read_response(reth, psn);
  again.duplicate = true;
  if (rewind(again)) return;
  if (admits_duplicate(psn, psn + again.remaining_packets)) responses_.push_back(again);
}

// Moves a pending answer back to the duplicate's first PSN. A peer that lacks that PSN has no use for the
// rest, and must not get it twice. Not if an answer to an earlier request waits, because that must come
// first.
bool Responder::rewind(const Response& again) {
  if (responses_.empty()) return false;
  for (std::uint64_t i = responses_.first() + 1; i != responses_.end(); ++i) {
    const Response& queued = responses_[i];
    if (queued.is_answer() && queued.psn < again.psn) return false;
  }
  Response& current = responses_.front();
  const bool same_end = current.psn + current.remaining_packets == again.psn + again.remaining_packets;
  if (current.kind != Response::Kind::kRead || !same_end || again.psn >= current.psn) return false;
  current.psn = again.psn;
  current.address = again.address;
  current.remaining_bytes = again.remaining_bytes;
  current.remaining_packets = again.remaining_packets;
  current.started = false;
  return true;
}

const Responder::Served* Responder::find_served(ExtendedPsn psn, bool atomic) const {
  const auto found = std::find_if(served_.begin(), served_.end(), [psn, atomic](const Served& served) {
    return served.first_psn <= psn && psn < served.end_psn && served.atomic == atomic;
  });
  return found == served_.end() ? nullptr : &*found;
}

void Responder::remember(const Served& served) {
  served_[next_served_] = served;
  next_served_ = (next_served_ + 1) % served_.size();
}

// Returns whether to answer a repeated READ or atomic of [psn, end). Not if its answer is pending. Not beyond
// the peer's outstanding limit, because it then repeats faster than this side answers.
bool Responder::admits_duplicate(ExtendedPsn psn, ExtendedPsn end) const {
  std::uint32_t duplicates = 0;
  for (std::uint64_t i = responses_.first(); i != responses_.end(); ++i) {
    const Response& queued = responses_[i];
    if (!queued.is_answer()) continue;
    if (queued.psn <= psn && end <= queued.psn + queued.remaining_packets) return false;
    duplicates += queued.duplicate ? 1 : 0;
  }
  return duplicates < config_.max_dest_rd_atomic;
}

void Responder::on_send(const roce::Headers& headers, const roce::OpcodeTraits& traits,
                        std::span<const std::byte> payload) {
  if (traits.first) {
    if (!take_receive()) return;
    offset_bytes_ = 0;
  }
  if (payload.size() > mlx5::kMaxMessageBytes - offset_bytes_) return refuse(roce::kNakInvalidRequest);
  const Syndrome syndrome = payload.empty() ? Syndrome::kNone : port_.scatter_receive(offset_bytes_, payload);
  if (syndrome != Syndrome::kNone) {
    const bool too_long = syndrome == Syndrome::kLocalLength;
    return refuse(too_long ? roce::kNakInvalidRequest : roce::kNakRemoteOperation,
                  ReceiveCompletion{.syndrome = syndrome});
  }
  offset_bytes_ += static_cast<std::uint32_t>(payload.size());
  message_ = traits.last ? Message::kNone : Message::kSend;
  if (!traits.last) return finish_packet(headers, traits, std::nullopt);
  if (traits.has(roce::kHasIeth) && !port_.invalidate(headers.immediate)) {
    return refuse(roce::kNakRemoteAccess, ReceiveCompletion{.syndrome = Syndrome::kRemoteInvalidRequest});
  }
  finish_packet(headers, traits, completion_of(headers, offset_bytes_));
}

void Responder::on_write(const roce::Headers& headers, const roce::OpcodeTraits& traits,
                         std::span<const std::byte> payload) {
  if (traits.first && !begin_write(headers, traits, payload.size())) return;
  const auto payload_bytes = static_cast<std::uint32_t>(payload.size());
  const bool fits =
      traits.last ? payload_bytes == write_remaining_bytes_ : payload_bytes < write_remaining_bytes_;
  if (!fits) return refuse(roce::kNakInvalidRequest);
  // Runs before the payload lands, because a packet without a receive WQE must leave no trace.
  if (traits.has(roce::kHasImmediate) && !take_receive()) return;
  if (!payload.empty() && !place(payload)) return refuse(roce::kNakRemoteAccess);
  offset_bytes_ += payload_bytes;
  write_remaining_bytes_ -= payload_bytes;
  message_ = traits.last ? Message::kNone : Message::kWrite;
  if (!traits.has(roce::kHasImmediate)) return finish_packet(headers, traits, std::nullopt);
  finish_packet(headers, traits, completion_of(headers, write_.length_bytes));
}

// Checks the whole range of the message before its first byte. An empty message needs no valid key.
bool Responder::begin_write(const roce::Headers& headers, const roce::OpcodeTraits& traits,
                            std::size_t payload_bytes) {
  const roce::Reth& reth = headers.reth;
  const bool length_consistent =
      traits.last ? reth.length_bytes == payload_bytes : reth.length_bytes > payload_bytes;
  if (!config_.remote_write || !length_consistent || reth.length_bytes > mlx5::kMaxMessageBytes) {
    refuse(roce::kNakInvalidRequest);
    return false;
  }
  if (reth.length_bytes > 0 &&
      !port_.check(RemoteOperation::kWrite, reth.rkey, reth.address, reth.length_bytes)) {
    refuse(roce::kNakRemoteAccess);
    return false;
  }
  write_ = reth;
  write_remaining_bytes_ = reth.length_bytes;
  offset_bytes_ = 0;
  return true;
}

// Stores the payload of a WRITE, or keeps it for later. False: access denied.
bool Responder::place(std::span<const std::byte> payload) {
  const std::uint64_t address = write_.address + offset_bytes_;
  return late_.keep(now_ns_, {expected_, write_.rkey, address, payload}) ||
         port_.write(write_.rkey, address, payload);
}

// False: the memory of one has gone, and the queue pair is dead.
bool Responder::land_late_writes() {
  if (late_.empty()) return true;
  const std::optional<ExtendedPsn> refused = late_.land(port_);
  if (refused) refuse_executed(*refused, msn_);
  return !refused;
}

// Ends the queue pair for memory that has gone since its request was executed, and before it was
// acknowledged.
void Responder::refuse_executed(ExtendedPsn psn, std::uint32_t msn) {
  responses_.clear();
  dead_ = true;
  ++counters_.key_faults;
  Response nak;
  nak.kind = Response::Kind::kNak;
  nak.syndrome = roce::kNakRemoteAccess;
  nak.msn = msn;
  nak.psn = psn;
  nak.fatal = Syndrome::kRemoteAccess;
  send_control(nak);
}

void Responder::on_timer() { land_late_writes(); }

void Responder::on_read(const roce::Headers& headers) {
  const roce::Reth& reth = headers.reth;
  if (!config_.remote_read || reth.length_bytes > mlx5::kMaxMessageBytes ||
      requests_pending_ >= config_.max_dest_rd_atomic) {
    return refuse(roce::kNakInvalidRequest);
  }
  if (reth.length_bytes > 0 &&
      !port_.check(RemoteOperation::kRead, reth.rkey, reth.address, reth.length_bytes)) {
    return refuse(roce::kNakRemoteAccess);
  }
  msn_ = (msn_ + 1) & roce::kPsnMask;
  const Response response = read_response(reth, expected_);
  remember({.first_psn = expected_, .end_psn = expected_ + response.remaining_packets, .range = reth});
  expected_ += response.remaining_packets;
  ++requests_pending_;
  responses_.push_back(response);
}

void Responder::on_atomic(const roce::Headers& headers) {
  const roce::AtomicEth& atomic = headers.atomic;
  if (!config_.remote_atomic || requests_pending_ >= config_.max_dest_rd_atomic ||
      atomic.address % kAtomicAlignment != 0) {
    return refuse(roce::kNakInvalidRequest);
  }
  if (!port_.check(RemoteOperation::kAtomic, atomic.rkey, atomic.address, kAtomicBytes)) {
    return refuse(roce::kNakRemoteAccess);
  }
  const auto original = port_.execute(atomic.rkey, atomic.address, operation_of(headers));
  if (!original) return refuse(roce::kNakRemoteAccess);
  Response response;
  response.kind = Response::Kind::kAtomic;
  response.remaining_packets = 1;
  response.original = *original;
  remember({.first_psn = expected_, .end_psn = expected_ + 1, .atomic = true, .original = response.original});
  msn_ = (msn_ + 1) & roce::kPsnMask;
  response.msn = msn_;
  response.psn = expected_++;
  ++requests_pending_;
  responses_.push_back(response);
  send_control_responses();
}

// Takes a receive WQE, or answers that there is none.
bool Responder::take_receive() {
  receives_wanted_ = receives_wanted_ || port_.posted_receives().has_value();
  if (port_.take_receive()) return true;
  ++counters_.out_of_buffer;
  queue_nak(static_cast<std::uint8_t>(roce::kAethKindRnr | (config_.min_rnr_timer & 0x1f)));
  return false;
}

// Returns whether new receives need an ACK of their own: every permitted message has come, or none was
// permitted yet. While one is outstanding, its own ACK will advertise more.
bool Responder::watches_receives() const {
  if (!receives_wanted_ || dead_) return false;
  const std::uint32_t left = (advertised_.value_or(msn_) - msn_) & roce::kPsnMask;
  return left == 0 || left >= kPsnHalfSpace;
}

// Returns whether to advertise credits. Zero receives are advertised once, so that the peer can expect a
// later update.
bool Responder::owes_credits() const {
  if (!watches_receives() || !responses_.empty() || message_ == Message::kSend) return false;
  return !advertised_ || port_.posted_receives().value_or(0) > 0;
}

void Responder::note_advertised(const roce::Aeth& aeth) {
  const std::uint8_t code = aeth.syndrome & kCreditCodeMask;
  if ((aeth.syndrome & roce::kAethKindMask) != roce::kAethKindAck || code == kNoCreditsCode) return;
  const std::uint32_t newest = (aeth.msn + credits_of(code)) & roce::kPsnMask;
  const bool more = !advertised_ || ((newest - *advertised_) & roce::kPsnMask) < kPsnHalfSpace;
  if (more) advertised_ = newest;
}

// Ends the execution of a SEND or WRITE packet.
void Responder::finish_packet(const roce::Headers& headers, const roce::OpcodeTraits& traits,
                              const std::optional<ReceiveCompletion>& completion) {
  executed_ = expected_++;
  if (traits.last) msn_ = (msn_ + 1) & roce::kPsnMask;
  if (headers.bth.ack_request || completion) queue_ack(completion);
}

// Queues an ACK of a SEND or WRITE, for duplicates too, although newer READs may have been executed.
// Responses acknowledge READs, and Soft-RoCE reads an ACK with a READ's PSN as the READ's end.
void Responder::queue_ack(const std::optional<ReceiveCompletion>& completion) {
  const bool merges =
      !responses_.empty() && responses_.back().kind == Response::Kind::kAck && !responses_.back().completion;
  if (!merges) responses_.push_back(Response{});
  Response& response = responses_.back();
  response.psn = executed_;
  response.msn = msn_;
  response.completion = completion;
  if (completion) send_control_responses();
}

// Queues a NAK after which the peer resends: sequence error or receiver not ready.
void Responder::queue_nak(std::uint8_t syndrome) {
  const auto repeats = [&](const Response& last) {
    return last.kind == Response::Kind::kNak && last.syndrome == syndrome && last.psn == expected_;
  };
  const bool waiting = !responses_.empty() && repeats(responses_.back());
  if (waiting || !nak_tokens_.take(now_ns_)) {
    ++counters_.naks_withheld;
    return;
  }
  gap_reported_ = true;
  Response response;
  response.kind = Response::Kind::kNak;
  response.syndrome = syndrome;
  response.msn = msn_;
  response.psn = expected_;
  responses_.push_back(response);
  send_control_responses();
}

// Queues a fatal NAK. The queue pair stays until it has been sent, but takes no more packets.
void Responder::refuse(std::uint8_t nak, const std::optional<ReceiveCompletion>& completion) {
  dead_ = true;
  if (nak == roce::kNakRemoteAccess) ++counters_.key_faults;
  Response response;
  response.kind = Response::Kind::kNak;
  response.syndrome = nak;
  response.msn = msn_;
  response.psn = expected_;
  response.completion = completion;
  response.fatal = syndrome_of_nak(nak);
  responses_.push_back(response);
  send_control_responses();
}

Responder::Response Responder::read_response(const roce::Reth& reth, ExtendedPsn psn) const {
  Response response;
  response.kind = Response::Kind::kRead;
  response.msn = msn_;
  response.psn = psn;
  response.address = reth.address;
  response.rkey = reth.rkey;
  response.remaining_bytes = reth.length_bytes;
  response.remaining_packets = packets_of(reth.length_bytes, config_.mtu_bytes);
  return response;
}

std::uint32_t Responder::pump(std::uint64_t /*now_ns*/, std::uint32_t max_packets,
                              std::uint32_t max_read_packets) {
  if (owes_credits()) {
    ++counters_.credit_updates;
    queue_ack(std::nullopt);
  }
  std::uint32_t sent = 0;
  for (; sent < max_packets && !responses_.empty(); ++sent) {
    Response& response = responses_.front();
    if (response.kind == Response::Kind::kRead) {
      if (max_read_packets-- == 0) break;
      send_read_packet(response);
    } else if (!late_.empty()) {
      break;  // the ACK waits for what it acknowledges
    } else {
      const Response control = response;
      responses_.pop_front();
      send_control(control);
    }
  }
  return sent;
}

// Sends responses at the front of the queue that need no pacing.
void Responder::send_control_responses() {
  while (!responses_.empty() && responses_.front().kind != Response::Kind::kRead) {
    const Response control = responses_.front();
    responses_.pop_front();
    send_control(control);
  }
}

void Responder::send_control(const Response& response) {
  if (!land_late_writes()) return;
  const bool atomic = response.kind == Response::Kind::kAtomic;
  roce::Headers headers =
      response_headers(atomic ? Opcode::kRcAtomicAcknowledge : Opcode::kRcAcknowledge, response);
  headers.atomic_original = response.original;
  ++counters_.packets_sent;
  if (response.kind == Response::Kind::kNak) ++counters_.naks_sent;
  if (atomic && !response.duplicate) --requests_pending_;
  port_.send(headers);
  note_advertised(headers.aeth);
  if (response.completion) port_.complete_receive(*response.completion);
  if (response.fatal != Syndrome::kNone) {
    responses_.clear();
    port_.fatal(response.fatal);
  }
}

void Responder::send_read_packet(Response& response) {
  if (!land_late_writes()) return;
  const bool last = response.remaining_packets == 1;
  const Opcode opcode = response.started
                            ? (last ? Opcode::kRcReadResponseLast : Opcode::kRcReadResponseMiddle)
                            : (last ? Opcode::kRcReadResponseOnly : Opcode::kRcReadResponseFirst);
  const std::uint32_t length_bytes = std::min(config_.mtu_bytes, response.remaining_bytes);
  roce::Headers headers = response_headers(opcode, response);
  headers.bth.pad_count = roce::pad_count_for(length_bytes);
  if (!port_.send_from_memory(headers, response.rkey, response.address, length_bytes)) {
    // Handles a region that went away under the READ. A duplicate may be a stray one, so it just ends.
    const Response refused = response;
    responses_.pop_front();
    return refused.duplicate ? send_control_responses() : refuse_executed(refused.psn, refused.msn);
  }
  ++counters_.packets_sent;
  if (roce::traits_of(opcode).has(roce::kHasAeth)) note_advertised(headers.aeth);
  response.started = true;
  response.address += length_bytes;
  response.remaining_bytes -= length_bytes;
  --response.remaining_packets;
  ++response.psn;
  if (!last) return;
  if (!response.duplicate) --requests_pending_;
  responses_.pop_front();
  send_control_responses();
}

roce::Headers Responder::response_headers(Opcode opcode, const Response& response) const {
  roce::Headers headers;
  headers.bth.opcode = opcode;
  headers.bth.destination_qpn = config_.remote_qpn;
  headers.bth.psn = wire_psn(response.psn);
  headers.aeth = {response.syndrome, response.msn};
  if (response.kind == Response::Kind::kNak) return headers;
  // Combines a current count with a perhaps older MSN, which never promises more than there is.
  if (const auto receives = port_.posted_receives()) {
    headers.aeth.syndrome = roce::kAethKindAck | credit_code(*receives);
  }
  return headers;
}

bool Responder::can_send(bool reads) const {
  if (responses_.empty()) return owes_credits();
  if (!late_.empty() && responses_[responses_.first()].kind == Response::Kind::kAck) return false;
  return reads || responses_[responses_.first()].kind != Response::Kind::kRead;
}
std::uint32_t Responder::expected_psn() const { return wire_psn(expected_); }
const TransportCounters& Responder::counters() const { return counters_; }

}  // namespace gdx::softhca::transport
