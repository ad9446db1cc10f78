#include "driver-shim/softhca/transport/ud.h"

namespace gdx::softhca::transport {

using mlx5::Syndrome;

UdRequester::UdRequester(const UdConfig& config, RequesterPort& port)
    : UnacknowledgedRequester(port, roce::Service::kUd, config.send_psn, config.mtu_bytes), config_(config) {}

Syndrome UdRequester::admit(const WorkRequest& request) const {
  if (!carries(request.opcode)) return Syndrome::kLocalQpOperation;
  return request.length_bytes <= config_.mtu_bytes ? Syndrome::kNone : Syndrome::kLocalLength;
}

void UdRequester::address(const WorkRequest& request, roce::Headers& headers) const {
  headers.bth.destination_qpn = request.destination_qpn;
  const bool controlled = (request.qkey & kControlledQkey) != 0;
  headers.deth = {controlled ? config_.qkey : request.qkey, config_.local_qpn};
}

UdResponder::UdResponder(const UdConfig& config, ResponderPort& port) : config_(config), port_(port) {}

void UdResponder::on_packet(const roce::Headers& headers, std::span<const std::byte> grh,
                            std::span<const std::byte> payload) {
  ++counters_.packets_received;
  if (dead_ || roce::traits_of(headers.bth.opcode).service != roce::Service::kUd) return;
  if (headers.deth.qkey != config_.qkey) {
    ++counters_.qkey_violations;
    return;
  }
  if (payload.size() > config_.mtu_bytes) return;
  if (!port_.take_receive()) {
    ++counters_.out_of_buffer;
    return;
  }
  Syndrome syndrome = port_.scatter_receive(0, grh);
  if (syndrome == Syndrome::kNone && !payload.empty()) {
    syndrome = port_.scatter_receive(static_cast<std::uint32_t>(grh.size()), payload);
  }
  if (syndrome != Syndrome::kNone) {
    dead_ = true;
    port_.complete_receive({.syndrome = syndrome});
    return port_.fatal(syndrome);
  }
  ReceiveCompletion completion =
      completion_of(headers, static_cast<std::uint32_t>(grh.size() + payload.size()));
  completion.source_qpn = headers.deth.source_qpn;
  completion.has_grh = headers.bth.has_grh;
  port_.complete_receive(completion);
}

}  // namespace gdx::softhca::transport
