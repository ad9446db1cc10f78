#include "tests/sim/node.h"

#include <algorithm>
#include <cstring>

#include "proto/roce/codec.h"

namespace gdx::sim {

using mlx5::Syndrome;

namespace {

// Writes headers, room for the payload, and padding; `payload` is the room.
std::vector<std::byte> make_datagram(const roce::Headers& headers, std::size_t payload_bytes,
                                     std::span<std::byte>& payload) {
  const std::size_t header_bytes = roce::header_bytes(headers.bth.opcode);
  std::vector<std::byte> datagram(header_bytes + payload_bytes + headers.bth.pad_count);
  if (roce::encode(headers, datagram) != header_bytes) datagram.clear();
  payload = std::span(datagram).subspan(header_bytes, payload_bytes);
  return datagram;
}

bool is_response(roce::Opcode opcode) {
  return opcode >= roce::Opcode::kRcReadResponseFirst && opcode <= roce::Opcode::kRcAtomicAcknowledge;
}

}  // namespace

Node::Node(const transport::RcConfig& config, std::vector<std::byte> initial_memory, Transmit transmit)
    : memory_(std::move(initial_memory)),
      transmit_(std::move(transmit)),
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
    requester_.on_packet(now_ns, decoded->headers, decoded->payload);
  } else {
    responder_.on_packet(now_ns, decoded->headers, decoded->payload);
  }
}

void Node::on_timer(std::uint64_t now_ns) { requester_.on_timer(now_ns); }

void Node::pump(std::uint64_t now_ns, std::uint32_t max_packets) {
  if (!dead_) responder_.pump(now_ns, max_packets);
  requester_.pump(now_ns, max_packets);
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
    payload[i] = payload_byte(request.cookie, offset_bytes + i);
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
  std::span<std::byte> payload;
  transmit_(make_datagram(headers, 0, payload));
}

bool Node::send_from_memory(const roce::Headers& headers, std::uint32_t rkey, std::uint64_t address,
                            std::uint32_t length_bytes) {
  if (length_bytes > 0 && !check(transport::RemoteOperation::kRead, rkey, address, length_bytes))
    return false;
  std::span<std::byte> payload;
  auto datagram = make_datagram(headers, length_bytes, payload);
  if (length_bytes > 0) std::copy_n(locate(address, length_bytes), length_bytes, payload.begin());
  transmit_(std::move(datagram));
  return true;
}

bool Node::check(transport::RemoteOperation /*operation*/, std::uint32_t rkey, std::uint64_t address,
                 std::uint32_t length_bytes) {
  return rkey == kRegionRkey && locate(address, length_bytes) != nullptr;
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

std::uint64_t Node::compare_swap(std::uint32_t /*rkey*/, std::uint64_t address, std::uint64_t compare,
                                 std::uint64_t swap) {
  std::uint64_t original;
  std::memcpy(&original, locate(address, sizeof original), sizeof original);
  if (original == compare) std::memcpy(locate(address, sizeof swap), &swap, sizeof swap);
  return original;
}

std::uint64_t Node::fetch_add(std::uint32_t /*rkey*/, std::uint64_t address, std::uint64_t add) {
  std::uint64_t original;
  std::memcpy(&original, locate(address, sizeof original), sizeof original);
  const std::uint64_t sum = original + add;
  std::memcpy(locate(address, sizeof sum), &sum, sizeof sum);
  return original;
}

bool Node::take_receive() {
  if (receive_current_) note("took a receive while one was current");
  if (receives_posted_ == 0) return false;
  --receives_posted_;
  receive_current_ = true;
  receive_buffer_.clear();
  return true;
}

Syndrome Node::scatter_receive(std::uint32_t offset_bytes, std::span<const std::byte> payload) {
  if (!receive_current_ || offset_bytes != receive_buffer_.size()) note("receive data at the wrong offset");
  if (offset_bytes + payload.size() > kReceiveBytes) return Syndrome::kLocalLength;
  receive_buffer_.insert(receive_buffer_.end(), payload.begin(), payload.end());
  return Syndrome::kNone;
}

void Node::complete_receive(const transport::ReceiveCompletion& completion) {
  if (!receive_current_) note("completed a receive that was not taken");
  receive_current_ = false;
  note(peers_->on_receive(completion, receive_buffer_, memory_));
}

// As a queue pair does: both halves stop.
void Node::fatal(Syndrome /*syndrome*/) {
  dead_ = true;
  requester_.fail_all(Syndrome::kFlushed);
}

}  // namespace gdx::sim
