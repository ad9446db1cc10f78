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

bool is_response(roce::Opcode opcode) {
  return opcode >= roce::Opcode::kRcReadResponseFirst && opcode <= roce::Opcode::kRcAtomicAcknowledge;
}

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

Node::Node(std::uint32_t number, const transport::RcConfig& config, std::vector<std::byte> initial_memory,
           ReceivePool& receives, bool advertises, Transmit transmit)
    : config_(config),
      first_key_(first_key_of(number)),
      memory_(std::move(initial_memory)),
      transmit_(std::move(transmit)),
      receives_(receives),
      advertises_(advertises),
      requester_(config, *this),
      responder_(config, *this) {}

void Node::attach(Node& peer, Ledger& own, Ledger& peers) {
  peer_ = &peer;
  own_ = &own;
  peers_ = &peers;
}

void Node::note(std::string problem) {
  if (problem_.empty()) problem_ = std::move(problem);
}

void Node::on_datagram(std::uint64_t now_ns, std::span<const std::byte> datagram) {
  const auto decoded = roce::decode(datagram);
  if (!decoded) return note("a packet of ours does not decode");
  if (in_error()) return;
  now_ns_ = heard_ns_ = now_ns;
  if (is_response(decoded->headers.bth.opcode)) {
    hear(decoded->headers);
    note_answer(decoded->headers);
    count_refusal(now_ns, decoded->headers);
    requester_.on_packet(now_ns, decoded->headers, decoded->payload);
  } else {
    const std::int32_t psns = psns_from(config_.receive_psn, decoded->headers.bth.psn);
    arriving_message_ = peers_->message_at(static_cast<std::uint32_t>(psns));
    answers_waited_ = responder_.can_send();
    responder_.on_packet(now_ns, decoded->headers, decoded->payload);
  }
  note_error(now_ns);
}

void Node::on_timer(std::uint64_t now_ns) {
  now_ns_ = now_ns;
  requester_.on_timer(now_ns);
  check_probe();
  note_error(now_ns);
}

void Node::pump(std::uint64_t now_ns, std::uint32_t max_packets) {
  now_ns_ = now_ns;
  if (!dead_) responder_.pump(now_ns, max_packets);
  requester_.pump(now_ns, max_packets);
  note_error(now_ns);
}

void Node::note_error(std::uint64_t now_ns) {
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
  told_.note(answer, counted.aeth.msn);
}

std::uint32_t Node::messages_to(std::uint32_t msn) const {
  return (msn - config_.first_msn) & roce::kPsnMask;
}

void Node::check_refusal(const roce::Headers& answer) {
  const bool refuses = answer.bth.opcode == roce::Opcode::kRcAcknowledge &&
                       (answer.aeth.syndrome & roce::kAethKindMask) == roce::kAethKindRnr;
  if (refuses && advertises_ && told_.promises(messages_to(answer.aeth.msn) + 1)) {
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

void Node::hear(const roce::Headers& answer) {
  const std::int32_t psns = psns_from(config_.send_psn, answer.bth.psn);
  if (acknowledges(answer)) {
    const std::uint32_t before = heard_.newest();
    heard_.note(answer, messages_to(answer.aeth.msn));
    if (heard_.newest() > before) ask_after_ns_ = now_ns_ + probe_interval_ns();
    newest_heard_ = std::max(newest_heard_, psns);
  } else if (answer.bth.opcode != roce::Opcode::kRcReadResponseMiddle) {
    const bool refuses = (answer.aeth.syndrome & roce::kAethKindMask) == roce::kAethKindRnr;
    if (refuses && psns > newest_heard_) refused_ = true;
    newest_heard_ = std::max(newest_heard_, psns - 1);
  }
}

std::uint64_t Node::probe_interval_ns() const {
  constexpr std::uint64_t kLongestNs = 40'000'000;
  return std::min(std::uint64_t{4096} << config_.ack_timeout, kLongestNs);
}

// Whoever goes back tries again, from where it goes back to.
void Node::count_try(std::int32_t psns) {
  if (static_cast<std::size_t>(psns) >= faults_before_.size()) faults_before_.resize(psns + 1, faults_);
  const bool goes_back = psns <= newest_sent_;
  newest_sent_ = psns;
  if (!goes_back) return;
  tries_ = psns == tried_psn_ ? tries_ + 1 : 2;
  tried_psn_ = psns;
}

// An answer to what is tried ends the tries. An ACK behind a READ without its data does not.
void Node::note_answer(const roce::Headers& answer) {
  const std::int32_t psns = psns_from(config_.send_psn, answer.bth.psn);
  const bool data = answer.bth.opcode != roce::Opcode::kRcAcknowledge;
  const bool refuses = !data && (answer.aeth.syndrome & roce::kAethKindMask) != roce::kAethKindAck;
  const std::int32_t newest = refuses ? psns - 1 : psns;
  const bool wants_data = own_->wants_response(static_cast<std::uint32_t>(tried_psn_));
  if (wants_data ? !data || psns != tried_psn_ : newest < tried_psn_) return;
  tries_ = 1;
  tried_psn_ = newest + 1;
}

std::uint32_t Node::faults_met() const {
  const auto tried = static_cast<std::size_t>(tried_psn_);
  const bool fresh = tries_ == 1 || tried >= faults_before_.size();
  return faults_ - (fresh ? 0 : faults_before_[tried]);
}

// Of more tries some may have been refused for want of a receive, which refills the retries.
bool Node::out_of_retries() const {
  return tries_ > config_.retry_count && faults_met() > config_.retry_count;
}

std::string Node::tries() const {
  return std::to_string(tries_) + " tries at PSN " + std::to_string(tried_psn_) + " after the first, " +
         std::to_string(faults_met()) + " faults";
}

// Beyond its limit a requester sends one message's packets until they are answered: a SEND's first, a WRITE's
// all. The first one may ask at once, and as long as no ACK has come; else it must have waited.
void Node::check_request(const roce::Headers& headers, const WorkRequest& request,
                         std::uint32_t offset_bytes) {
  if (!is_send(request.opcode) && request.opcode != mlx5::WqeOpcode::kRdmaWriteImmediate) return;
  const std::int32_t psns = psns_from(config_.send_psn, headers.bth.psn);
  const std::uint32_t message = own_->message_at(static_cast<std::uint32_t>(psns));
  if (heard_.promises(message)) return;
  if (offset_bytes > 0 && is_send(request.opcode)) {
    const std::int32_t first = psns - static_cast<std::int32_t>(offset_bytes / config_.mtu_bytes);
    if (newest_heard_ < first) note("goes on beyond its limit without an answer");
    return;
  }
  const bool goes_on = message == asking_message_ && !refused_;
  const bool may_ask = asking_message_ == 0 || (refused_ && !heard_.told()) || now_ns_ >= ask_after_ns_;
  if (!goes_on && !may_ask) note("sends a message beyond its limit");
  if (!goes_on) ask_after_ns_ = now_ns_ + probe_interval_ns();
  asking_message_ = message;
  refused_ = false;
}

void Node::check_probe() {
  if (requester_.counters().credit_probes == probes_seen_) return;
  probes_seen_ = requester_.counters().credit_probes;
  if (heard_.promises(own_->message_at(static_cast<std::uint32_t>(newest_heard_ + 1)))) {
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
  count_try(psns_from(config_.send_psn, headers.bth.psn));
  if (headers.bth.opcode == roce::Opcode::kRcReadRequest && headers.reth.length_bytes > 0) {
    newest_sent_ += static_cast<std::int32_t>((headers.reth.length_bytes - 1) / config_.mtu_bytes);
    const std::size_t sent = static_cast<std::size_t>(newest_sent_) + 1;
    faults_before_.resize(std::max(faults_before_.size(), sent), faults_);
  }
  std::span<std::byte> payload;
  auto datagram = make_datagram(headers, length_bytes, payload);
  for (std::uint32_t i = 0; i < length_bytes; ++i) {
    payload[i] = own_->payload_byte(request, offset_bytes + i);
  }
  transmit_(std::move(datagram));
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
  transmit_(make_datagram(headers, 0, payload));
}

bool Node::send_from_memory(const roce::Headers& headers, std::uint32_t rkey, std::uint64_t address,
                            std::uint32_t length_bytes) {
  if (length_bytes > 0 && !check(transport::RemoteOperation::kRead, rkey, address, length_bytes))
    return false;
  if (headers.bth.opcode != roce::Opcode::kRcReadResponseMiddle) check_answer(headers);
  std::span<std::byte> payload;
  auto datagram = make_datagram(headers, length_bytes, payload);
  if (length_bytes > 0) std::copy_n(locate(address, length_bytes), length_bytes, payload.begin());
  transmit_(std::move(datagram));
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
  if (receives_.taken == receives_.posted) return false;
  if (advertises_ && !first && !answers_waited_ && !told_.promises(arriving_message_)) {
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
