#include "tests/sim/node.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <utility>

#include "proto/roce/codec.h"
#include "tests/sim/datagrams.h"

namespace gdx::sim {

using mlx5::Syndrome;

namespace {

bool acknowledges(const roce::Headers& answer) {
  return answer.bth.opcode != roce::Opcode::kRcReadResponseMiddle &&
         (answer.aeth.syndrome & roce::kAethKindMask) == roce::kAethKindAck;
}

bool is_send(mlx5::WqeOpcode opcode) {
  return opcode == mlx5::WqeOpcode::kSend || opcode == mlx5::WqeOpcode::kSendImmediate ||
         opcode == mlx5::WqeOpcode::kSendInvalidate;
}

// The specification's table, by code. The code above tells of nothing.
constexpr std::array<std::uint32_t, 31> kCredits{
    0,   1,   2,   3,   4,    6,    8,    12,   16,   24,   32,   48,    64,    96,    128,  192,
    256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768};

std::uint32_t credit_code_of(const roce::Headers& answer) { return answer.aeth.syndrome & 0x1f; }

// PSNs from `first` to `psn`; -1 for the one before it.
std::int32_t psns_from(std::uint32_t first, std::uint32_t psn) {
  const std::uint32_t psns = (psn - first) & roce::kPsnMask;
  return psns == roce::kPsnMask ? -1 : static_cast<std::int32_t>(psns);
}

}  // namespace

void ReceiveBooks::note(const roce::Headers& answer, std::uint32_t messages) {
  if (!acknowledges(answer)) return;
  const std::uint32_t code = credit_code_of(answer);
  const bool unbounded = code == kCredits.size();
  newest_ = std::max(newest(), unbounded ? ~0u : messages + kCredits[code]);
}

Node::Node(std::uint32_t number, const transport::RcConfig& config, const LinkFaults& faults,
           std::vector<std::byte> initial_memory, ReceivePool& receives, bool advertises, Transmit transmit)
    : config_(config),
      first_key_(first_key_of(number)),
      memory_(std::move(initial_memory)),
      transmit_(std::move(transmit)),
      receives_(receives),
      advertises_(advertises),
      tries_(config_, faults.delay_ns),
      requester_(config, *this),
      responder_(config, *this) {}

void Node::attach(Node& peer, Ledger& own, Ledger& peers) {
  peer_ = &peer;
  own_ = &own;
  peers_ = &peers;
  tries_.attach(own);
}

void Node::note(std::string problem) {
  if (problem_.empty()) problem_ = std::move(problem);
}

void Node::on_datagram(std::uint64_t now_ns, std::uint64_t sent_ns, std::span<const std::byte> datagram) {
  const auto decoded = roce::decode(datagram);
  if (!decoded) return note("a packet of ours does not decode");
  if (in_error()) return;
  now_ns_ = now_ns;
  if (is_response(roce::traits_of(decoded->headers.bth.opcode).operation)) {
    record_answer(decoded->headers);
    tries_.on_answer(now_ns, sent_ns, answer_of(decoded->headers, config_.send_psn));
    count_refusal(now_ns, decoded->headers);
    requester_.on_packet(now_ns, decoded->headers, decoded->payload);
  } else {
    const std::int32_t psns = psns_from(config_.receive_psn, decoded->headers.bth.psn);
    arriving_message_ = peers_->message_at(static_cast<std::uint32_t>(psns));
    answers_waited_ = responder_.can_send();
    const auto before = fates_of_requests();
    responder_.on_packet(now_ns, decoded->headers, decoded->payload);
    // A NAK may wait behind READ responses.
    if (fates_of_requests() == before && !responder_.can_send())
      note("dropped a request and counted nothing");
  }
  note_error(now_ns);
}

std::array<std::uint64_t, 5> Node::fates_of_requests() const {
  const transport::TransportCounters& counters = responder_.counters();
  return {responder_.expected_psn(), counters.duplicate_requests, counters.out_of_sequence,
          counters.naks_sent, counters.naks_withheld};
}

void Node::on_timer(std::uint64_t now_ns) {
  now_ns_ = now_ns;
  const std::uint64_t timeouts = requester_.counters().timeouts;
  tries_.on_time(now_ns);
  requester_.on_timer(now_ns);
  if (requester_.counters().timeouts != timeouts) note(tries_.on_timeout(now_ns));
  check_probe();
  note_error(now_ns);
}

void Node::pump(std::uint64_t now_ns, std::uint32_t max_packets) {
  now_ns_ = now_ns;
  if (!dead_) responder_.pump(now_ns, max_packets);
  requester_.pump(now_ns, max_packets);
  note_error(now_ns);
}

void Node::check_invariants() {
  for (const char* const broken : {requester_.check_invariants(), responder_.check_invariants()}) {
    if (broken != nullptr) note(std::string("between two events: ") + broken);
  }
}

void Node::note_error(std::uint64_t now_ns) {
  check_invariants();
  if (in_error() && error_ns_ == transport::kNever) error_ns_ = now_ns;
}

void Node::count_refusal(std::uint64_t now_ns, const roce::Headers& headers) {
  const bool refuses = headers.bth.opcode == roce::Opcode::kRcAcknowledge &&
                       (headers.aeth.syndrome & roce::kAethKindMask) == roce::kAethKindRnr;
  if (!refuses) return;
  const std::uint32_t ahead = (headers.bth.psn - refused_psn_) & roce::kPsnMask;
  const bool repeats = refusals_in_a_row_ > 0 && ahead == 0;
  const bool late = refusals_in_a_row_ > 0 && ahead >= transport::kPsnHalfSpace;  // a copy of an older one
  if (late || (repeats && now_ns < refused_until_ns_)) return;
  refusals_in_a_row_ = repeats ? refusals_in_a_row_ + 1 : 1;
  refused_psn_ = headers.bth.psn;
  refused_until_ns_ = now_ns + transport::rnr_timer_ns(headers.aeth.syndrome & 0x1f);
}

// An answer that names nothing new is about receives, or a copy.
void Node::check_answer(const roce::Headers& answer) {
  const auto psns_to = [this](std::uint32_t psn) { return psns_from(config_.receive_psn, psn); };
  const std::int32_t psns = psns_to(answer.bth.psn);
  const bool exact = responder_.counters().duplicate_requests == 0 && psns > newest_answer_;
  roce::Headers counted = answer;
  counted.aeth.msn = messages_to(answer.aeth.msn);
  note(peers_->check_answer(counted, psns, psns_to(responder_.expected_psn() - 1), exact));
  check_refusal(answer);
  check_credits(answer);
  if (acknowledges(answer)) newest_answer_ = std::max(newest_answer_, psns);
  permitted_peer_.note(answer, counted.aeth.msn);
}

std::uint32_t Node::messages_to(std::uint32_t msn) const {
  return (msn - config_.first_msn) & roce::kPsnMask;
}

// A refusal may wait behind READ responses that promise receives posted since. So the promises made before
// its decision count.
void Node::check_refusal(const roce::Headers& answer) {
  const bool refuses = answer.bth.opcode == roce::Opcode::kRcAcknowledge &&
                       (answer.aeth.syndrome & roce::kAethKindMask) == roce::kAethKindRnr;
  if (refuses && advertises_ && messages_to(answer.aeth.msn) + 1 <= told_at_refusal_) {
    note("refuses a message for which it promised a receive");
  }
}

// The largest count of the table that is not above what is posted.
void Node::check_credits(const roce::Headers& answer) {
  if (!acknowledges(answer)) return;
  const std::optional<std::uint32_t> receives = posted_receives();
  const auto above = std::upper_bound(kCredits.begin(), kCredits.end(), receives.value_or(~0u));
  const auto code = receives ? above - kCredits.begin() - 1 : std::ssize(kCredits);
  if (credit_code_of(answer) != code) note("tells of another number of receives than it has");
}

// Advances the READ or atomic whose next response this is. A requester takes responses in order only.
void Node::record_response(std::int32_t psns) {
  if (lacks_response_before(psns)) return;
  const auto request = unanswered_.upper_bound(psns);
  if (request == unanswered_.end() || request->second != psns) return;
  if (++request->second == request->first) unanswered_.erase(request);
}

bool Node::lacks_response_before(std::int32_t psns) const {
  return !unanswered_.empty() && unanswered_.begin()->second < psns;
}

// A requester that lacks a response takes no answer behind it, a refusal included.
void Node::record_answer(const roce::Headers& answer) {
  const std::int32_t psns = psns_from(config_.send_psn, answer.bth.psn);
  if (answer.bth.opcode != roce::Opcode::kRcAcknowledge) record_response(psns);
  if (acknowledges(answer)) {
    const std::uint32_t before = permitted_.newest();
    permitted_.note(answer, messages_to(answer.aeth.msn));
    if (permitted_.newest() > before) ask_after_ns_ = now_ns_ + probe_interval_ns();
    newest_acknowledged_ = std::max(newest_acknowledged_, psns);
  } else if (answer.bth.opcode != roce::Opcode::kRcReadResponseMiddle) {
    const bool refuses = (answer.aeth.syndrome & roce::kAethKindMask) == roce::kAethKindRnr;
    if (refuses && psns > newest_acknowledged_ && !lacks_response_before(psns)) refused_ = true;
    newest_acknowledged_ = std::max(newest_acknowledged_, psns - 1);
  }
}

std::uint64_t Node::probe_interval_ns() const {
  constexpr std::uint64_t kLongestNs = 40'000'000;
  return std::min(std::uint64_t{4096} << config_.ack_timeout, kLongestNs);
}

Answer Node::answer_of(const roce::Headers& headers, std::uint32_t first_psn) {
  Answer answer{.psn = psns_from(first_psn, headers.bth.psn)};
  if (headers.bth.opcode != roce::Opcode::kRcAcknowledge) {
    answer.kind = Answer::Kind::kData;
  } else if ((headers.aeth.syndrome & roce::kAethKindMask) == roce::kAethKindRnr) {
    answer.kind = Answer::Kind::kRnrNak;
    answer.wait_ns = transport::rnr_timer_ns(headers.aeth.syndrome & 0x1f);
  } else if (!acknowledges(headers)) {
    const bool sequence = headers.aeth.syndrome == roce::kNakSequenceError;
    answer.kind = sequence ? Answer::Kind::kSequenceNak : Answer::Kind::kOtherNak;
  }
  return answer;
}

// Beyond its limit a requester sends one message's packets until they are answered: a SEND's first, a WRITE's
// all. The first one may ask at once, and as long as no ACK has come; else it must have waited.
void Node::check_request(const roce::Headers& headers, const WorkRequest& request,
                         std::uint32_t offset_bytes) {
  if (!is_send(request.opcode) && request.opcode != mlx5::WqeOpcode::kRdmaWriteImmediate) return;
  const std::int32_t psns = psns_from(config_.send_psn, headers.bth.psn);
  const std::uint32_t message = own_->message_at(static_cast<std::uint32_t>(psns));
  if (permitted_.promises(message)) return;
  if (offset_bytes > 0 && is_send(request.opcode)) {
    const std::int32_t first = psns - static_cast<std::int32_t>(offset_bytes / config_.mtu_bytes);
    if (newest_acknowledged_ < first) note("goes on beyond its limit without an answer");
    return;
  }
  const bool goes_on = message == asking_message_ && !refused_;
  const bool may_ask = asking_message_ == 0 || (refused_ && !permitted_.told()) || now_ns_ >= ask_after_ns_;
  if (!goes_on && !may_ask) note("sends a message beyond its limit");
  if (!goes_on) ask_after_ns_ = now_ns_ + probe_interval_ns();
  asking_message_ = message;
  refused_ = false;
}

void Node::check_probe() {
  if (requester_.counters().credit_probes == probes_seen_) return;
  probes_seen_ = requester_.counters().credit_probes;
  if (permitted_.promises(own_->message_at(static_cast<std::uint32_t>(newest_acknowledged_ + 1)))) {
    note("asked for a receive of which it had been told");
  }
}

bool Node::can_send(std::uint64_t now_ns) const {
  return requester_.can_send(now_ns) || (!in_error() && responder_.can_send());
}

Syndrome Node::send(const roce::Headers& headers, const WorkRequest& request, std::uint32_t offset_bytes,
                    std::uint32_t length_bytes) {
  if (broken_request_ == request.cookie && offset_bytes > 0) return Syndrome::kLocalProtection;
  if (offset_bytes + length_bytes > request.length_bytes) note("gathers past the end of a request");
  check_request(headers, request, offset_bytes);
  std::span<std::byte> payload;
  auto datagram = make_datagram(headers, length_bytes, payload);
  for (std::uint32_t i = 0; i < length_bytes; ++i) {
    payload[i] = own_->payload_byte(request, offset_bytes + i);
  }
  const roce::Operation operation = roce::traits_of(headers.bth.opcode).operation;
  const bool reads = operation == roce::Operation::kRead;
  const std::int32_t psns = psns_from(config_.send_psn, headers.bth.psn);
  const std::uint32_t packets =
      reads ? transport::packets_of(headers.reth.length_bytes, config_.mtu_bytes) : 1;
  const Fate fate = transmit_(std::move(datagram));
  if (wants_response(operation)) {
    unanswered_.try_emplace(psns + static_cast<std::int32_t>(packets), psns);
  }
  tries_.on_request(now_ns_, psns, psns + static_cast<std::int32_t>(packets), headers.bth.ack_request, fate);
  return Syndrome::kNone;
}

Syndrome Node::scatter(const WorkRequest& request, std::uint32_t offset_bytes,
                       std::span<const std::byte> payload) {
  note(own_->on_scatter(request, offset_bytes, payload));
  return Syndrome::kNone;
}

Syndrome Node::apply(const WorkRequest& request) {
  note(own_->on_apply(request));
  return Syndrome::kNone;
}

void Node::complete(const WorkRequest& request, Syndrome syndrome) {
  note(own_->on_complete(request, syndrome, peer_->memory_));
}

void Node::send(const roce::Headers& headers) {
  check_answer(headers);
  std::span<std::byte> payload;
  transmit_answer(headers, make_datagram(headers, 0, payload));
}

void Node::transmit_answer(const roce::Headers& headers, std::vector<std::byte> datagram) {
  const Fate fate = transmit_(std::move(datagram));
  peer_->tries_.on_answer_sent(now_ns_, answer_of(headers, config_.receive_psn), fate);
}

bool Node::send_from_memory(const roce::Headers& headers, std::uint32_t rkey, std::uint64_t address,
                            std::uint32_t length_bytes) {
  if (length_bytes > 0 && !check(transport::RemoteOperation::kRead, rkey, address, length_bytes))
    return false;
  if (headers.bth.opcode != roce::Opcode::kRcReadResponseMiddle) check_answer(headers);
  std::span<std::byte> payload;
  auto datagram = make_datagram(headers, length_bytes, payload);
  if (length_bytes > 0) std::copy_n(locate(address, length_bytes), length_bytes, payload.begin());
  transmit_answer(headers, std::move(datagram));
  return true;
}

bool Node::check(transport::RemoteOperation /*operation*/, std::uint32_t rkey, std::uint64_t address,
                 std::uint32_t length_bytes) {
  const std::uint32_t key = rkey - first_key_;
  return key < kRegionKeys && (keys_ >> key & 1) != 0 && locate(address, length_bytes) != nullptr;
}

bool Node::invalidate(std::uint32_t rkey) {
  const std::uint32_t key = rkey - first_key_;
  if (key == 0 || key >= kRegionKeys || (keys_ >> key & 1) == 0) return false;
  keys_ &= ~(1u << key);
  return true;
}

std::byte* Node::locate(std::uint64_t address, std::size_t length_bytes) {
  const std::uint64_t offset = address - kRegionAddress;
  if (offset > kRegionBytes || length_bytes > kRegionBytes - offset) return nullptr;
  return memory_.data() + offset;
}

bool Node::write(std::uint32_t rkey, std::uint64_t address, std::span<const std::byte> payload) {
  if (!check(transport::RemoteOperation::kWrite, rkey, address, static_cast<std::uint32_t>(payload.size()))) {
    note("a write that was never checked");
    return false;
  }
  std::copy(payload.begin(), payload.end(), locate(address, payload.size()));
  return true;
}

std::optional<std::uint64_t> Node::execute(std::uint32_t /*rkey*/, std::uint64_t address,
                                           const transport::AtomicOperation& operation) {
  std::uint64_t original;
  std::memcpy(&original, locate(address, sizeof original), sizeof original);
  const std::uint64_t result = operation.result(original);
  std::memcpy(locate(address, sizeof result), &result, sizeof result);
  return original;
}

bool Node::take_receive() {
  const bool first = !std::exchange(receives_wanted_, true);
  if (receives_.taken == receives_.posted) {
    told_at_refusal_ = permitted_peer_.newest();
    return false;
  }
  if (advertises_ && !first && !answers_waited_ && !permitted_peer_.promises(arriving_message_)) {
    note("had a receive of which its peer was not told");
  }
  ++receives_.taken;
  taken_.emplace_back();
  return true;
}

std::optional<std::uint32_t> Node::posted_receives() const {
  if (!advertises_) return std::nullopt;
  return static_cast<std::uint32_t>(receives_.posted - receives_.taken);
}

Syndrome Node::scatter_receive(std::uint32_t offset_bytes, std::span<const std::byte> payload) {
  if (taken_.empty() || offset_bytes != taken_.back().size()) {
    note("receive data at the wrong offset");
    return Syndrome::kLocalLength;
  }
  std::vector<std::byte>& buffer = taken_.back();
  if (offset_bytes + payload.size() > kReceiveBytes) return Syndrome::kLocalLength;
  buffer.insert(buffer.end(), payload.begin(), payload.end());
  return Syndrome::kNone;
}

void Node::complete_receive(const transport::ReceiveCompletion& completion) {
  if (taken_.empty()) return note("completed a receive that was not taken");
  note(peers_->on_receive(completion, taken_.front(), memory_));
  taken_.pop_front();
}

// As a queue pair does: both halves stop, and what was taken is flushed.
void Node::fatal(Syndrome /*syndrome*/) {
  dead_ = true;
  taken_.clear();
  requester_.fail_all(Syndrome::kFlushed);
}

}  // namespace gdx::sim
