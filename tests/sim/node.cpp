#include "tests/sim/node.h"

#include <algorithm>
#include <cstring>

#include "proto/roce/codec.h"
#include "tests/sim/datagrams.h"

namespace gdx::sim {

using mlx5::Syndrome;

namespace {

bool is_response(roce::Opcode opcode) {
  return opcode >= roce::Opcode::kRcReadResponseFirst && opcode <= roce::Opcode::kRcAtomicAcknowledge;
}

}  // namespace

Node::Node(std::uint32_t number, const transport::RcConfig& config, std::vector<std::byte> initial_memory,
           ReceivePool& receives, Transmit transmit)
    : config_(config),
      first_key_(first_key_of(number)),
      memory_(std::move(initial_memory)),
      transmit_(std::move(transmit)),
      receives_(receives),
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
  if (is_response(decoded->headers.bth.opcode)) {
    count_refusal(now_ns, decoded->headers);
    requester_.on_packet(now_ns, decoded->headers, decoded->payload);
  } else {
    responder_.on_packet(now_ns, decoded->headers, decoded->payload);
  }
  note_error(now_ns);
}

void Node::on_timer(std::uint64_t now_ns) {
  requester_.on_timer(now_ns);
  note_error(now_ns);
}

void Node::pump(std::uint64_t now_ns, std::uint32_t max_packets) {
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

void Node::check_answer(const roce::Headers& answer) {
  const auto psns_to = [this](std::uint32_t psn) { return (psn - config_.receive_psn) & roce::kPsnMask; };
  note(peers_->check_answer(answer, psns_to(answer.bth.psn), psns_to(responder_.expected_psn() - 1),
                            responder_.counters().duplicate_requests == 0));
}

bool Node::can_send(std::uint64_t now_ns) const {
  return requester_.can_send(now_ns) || (!in_error() && responder_.can_send());
}

Syndrome Node::send(const roce::Headers& headers, const WorkRequest& request, std::uint32_t offset_bytes,
                    std::uint32_t length_bytes) {
  if (broken_request_ == request.cookie && offset_bytes > 0) return Syndrome::kLocalProtection;
  if (offset_bytes + length_bytes > request.length_bytes) note("gathers past the end of a request");
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

std::uint64_t Node::execute(std::uint32_t /*rkey*/, std::uint64_t address,
                            const transport::AtomicOperation& operation) {
  std::uint64_t original;
  std::memcpy(&original, locate(address, sizeof original), sizeof original);
  const std::uint64_t result = operation.result(original);
  std::memcpy(locate(address, sizeof result), &result, sizeof result);
  return original;
}

bool Node::take_receive() {
  if (receives_.taken == receives_.posted) return false;
  ++receives_.taken;
  taken_.emplace_back();
  return true;
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
