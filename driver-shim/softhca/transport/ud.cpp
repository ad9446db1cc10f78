#include "driver-shim/softhca/transport/ud.h"

namespace gdx::softhca::transport {

using mlx5::CqeOpcode;
using mlx5::Syndrome;
using mlx5::WqeOpcode;
using roce::Opcode;

UdRequester::UdRequester(const UdConfig& config, RequesterPort& port)
    : UnacknowledgedRequester(port, config.send_psn, config.mtu_bytes), config_(config) {}

Syndrome UdRequester::admit(const WorkRequest& request) const {
  const bool send = request.opcode == WqeOpcode::kSend || request.opcode == WqeOpcode::kSendImmediate;
  if (!send) return Syndrome::kLocalQpOperation;
  return request.length_bytes <= config_.mtu_bytes ? Syndrome::kNone : Syndrome::kLocalLength;
}

void UdRequester::address(const WorkRequest& request, const Segment& /*segment*/,
                          roce::Headers& headers) const {
  headers.bth.opcode =
      request.opcode == WqeOpcode::kSendImmediate ? Opcode::kUdSendOnlyImmediate : Opcode::kUdSendOnly;
  headers.bth.destination_qpn = request.destination_qpn;
  const bool controlled = (request.qkey & kControlledQkey) != 0;
  headers.deth = {controlled ? config_.qkey : request.qkey, config_.local_qpn};
}

UdResponder::UdResponder(const UdConfig& config, ResponderPort& port) : config_(config), port_(port) {}

void UdResponder::on_packet(const roce::Headers& headers, std::span<const std::byte> grh,
                            std::span<const std::byte> payload) {
  ++counters_.packets_received;
  const Opcode opcode = headers.bth.opcode;
  const bool immediate = opcode == Opcode::kUdSendOnlyImmediate;
  if (dead_ || (opcode != Opcode::kUdSendOnly && !immediate)) return;
  if (headers.deth.qkey != config_.qkey) {
    ++counters_.qkey_violations;
    return;
  }
  if (payload.size() > config_.mtu_bytes) return;
  if (!port_.take_receive()) return;
  Syndrome syndrome = port_.scatter_receive(0, grh);
  if (syndrome == Syndrome::kNone && !payload.empty()) {
    syndrome = port_.scatter_receive(static_cast<std::uint32_t>(grh.size()), payload);
  }
  if (syndrome != Syndrome::kNone) {
    dead_ = true;
    port_.complete_receive({.syndrome = syndrome});
    return port_.fatal(syndrome);
  }
  port_.complete_receive(
      {.opcode = immediate ? CqeOpcode::kResponderSendImmediate : CqeOpcode::kResponderSend,
       .byte_count = static_cast<std::uint32_t>(grh.size() + payload.size()),
       .immediate_or_rkey = headers.immediate,
       .solicited = headers.bth.solicited,
       .source_qpn = headers.deth.source_qpn,
       .has_grh = true});
}

}  // namespace gdx::softhca::transport
