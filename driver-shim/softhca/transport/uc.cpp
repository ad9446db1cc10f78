#include "driver-shim/softhca/transport/uc.h"

namespace gdx::softhca::transport {

using mlx5::Syndrome;
using roce::Operation;

UcRequester::UcRequester(const UcConfig& config, RequesterPort& port)
    : UnacknowledgedRequester(port, roce::Service::kUc, config.send_psn, config.mtu_bytes),
      remote_qpn_(config.remote_qpn) {}

Syndrome UcRequester::admit(const WorkRequest& request) const {
  const bool admitted = carries(request.opcode) || request.opcode == mlx5::WqeOpcode::kUmr;
  return admitted ? Syndrome::kNone : Syndrome::kLocalQpOperation;
}

void UcRequester::address(const WorkRequest& request, roce::Headers& headers) const {
  headers.bth.destination_qpn = remote_qpn_;
  headers.reth = {request.remote_address, request.rkey, request.length_bytes};
}

UcResponder::UcResponder(const UcConfig& config, ResponderPort& port)
    : config_(config), port_(port), expected_psn_(config.receive_psn & roce::kPsnMask) {}

void UcResponder::on_packet(const roce::Headers& headers, std::span<const std::byte> payload) {
  ++counters_.packets_received;
  const roce::OpcodeTraits& traits = roce::traits_of(headers.bth.opcode);
  const bool send = traits.operation == Operation::kSend;
  const bool write = traits.operation == Operation::kWrite;
  if (dead_ || (!send && !write)) return;
  if (((expected_psn_ - 1 - headers.bth.psn) & roce::kPsnMask) < kMaxLatePackets) {
    ++counters_.duplicate_requests;
    return;
  }
  if (headers.bth.psn != expected_psn_) {
    ++counters_.out_of_sequence;
    message_ = Message::kNone;
  }
  expected_psn_ = (headers.bth.psn + 1) & roce::kPsnMask;

  const bool continues = message_ == (send ? Message::kSend : Message::kWrite);
  const bool full = payload.size() == config_.mtu_bytes;
  const bool fits =
      traits.last ? payload.size() <= config_.mtu_bytes && (traits.first || !payload.empty()) : full;
  message_ = Message::kNone;
  if (!fits || (!traits.first && !continues)) return;
  if (traits.first) offset_bytes_ = 0;
  if (send) return on_send(headers, traits, payload);
  on_write(headers, traits, payload);
}

void UcResponder::on_send(const roce::Headers& headers, const roce::OpcodeTraits& traits,
                          std::span<const std::byte> payload) {
  if (traits.first && !take_receive()) return;
  if (payload.size() > mlx5::kMaxMessageBytes - offset_bytes_) return;
  const Syndrome syndrome = payload.empty() ? Syndrome::kNone : port_.scatter_receive(offset_bytes_, payload);
  if (syndrome != Syndrome::kNone) {
    complete_receive({.syndrome = syndrome});
    return die(syndrome);
  }
  offset_bytes_ += static_cast<std::uint32_t>(payload.size());
  if (!traits.last) {
    message_ = Message::kSend;
    return;
  }
  complete_receive(completion_of(headers, offset_bytes_));
}

void UcResponder::on_write(const roce::Headers& headers, const roce::OpcodeTraits& traits,
                           std::span<const std::byte> payload) {
  if (traits.first) {
    if (!may_write(headers.reth, payload.size(), traits.last)) return;
    write_ = headers.reth;
  }
  const auto payload_bytes = static_cast<std::uint32_t>(payload.size());
  const std::uint32_t left_bytes = write_.length_bytes - offset_bytes_;
  if (traits.last ? payload_bytes != left_bytes : payload_bytes >= left_bytes) return;
  const bool immediate = traits.has(roce::kHasImmediate);
  // Runs before the payload lands, because a packet without a receive WQE must leave no trace.
  if (immediate && !take_receive()) return;
  if (!payload.empty() && !port_.write(write_.rkey, write_.address + offset_bytes_, payload)) {
    return note_key_fault();
  }
  offset_bytes_ += payload_bytes;
  if (!traits.last) {
    message_ = Message::kWrite;
    return;
  }
  if (!immediate) return;
  complete_receive(completion_of(headers, write_.length_bytes));
}

// Checks the whole range of the message before its first byte. An empty message needs no valid key.
bool UcResponder::may_write(const roce::Reth& reth, std::size_t payload_bytes, bool last) {
  const bool consistent = last ? reth.length_bytes == payload_bytes : reth.length_bytes > payload_bytes;
  if (!consistent || reth.length_bytes > mlx5::kMaxMessageBytes) return false;
  const bool allowed = config_.remote_write &&
                       (reth.length_bytes == 0 ||
                        port_.check(RemoteOperation::kWrite, reth.rkey, reth.address, reth.length_bytes));
  if (!allowed) note_key_fault();
  return allowed;
}

bool UcResponder::take_receive() {
  has_receive_ = has_receive_ || port_.take_receive();
  counters_.out_of_buffer += has_receive_ ? 0 : 1;
  return has_receive_;
}

void UcResponder::complete_receive(const ReceiveCompletion& completion) {
  has_receive_ = false;
  port_.complete_receive(completion);
}

void UcResponder::note_key_fault() {
  if (++counters_.key_faults >= kMaxKeyFaults) die(Syndrome::kRemoteAccess);
}

void UcResponder::die(Syndrome syndrome) {
  dead_ = true;
  port_.fatal(syndrome);
}

}  // namespace gdx::softhca::transport
