#include "driver-shim/softhca/engine/qp_packets.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "driver-shim/softhca/engine/planted_fault.h"
#include "proto/roce/codec.h"
#include "proto/roce/ip_header.h"

namespace gdx::softhca {
namespace {

using mlx5::Syndrome;

constexpr std::size_t kEthernetBytes = 8 + 14 + 4 + 12;  // preamble, header, check sequence, gap

}  // namespace

template <typename Fill>
std::size_t PacketOut::transmit(const wire::Address& destination, bool global, const roce::Headers& headers,
                                std::size_t payload_bytes, Fill fill) {
  HcaParts& hca = parts_.hca;
  const std::span<std::byte> packet = hca.wire->begin_packet(destination);
  const std::size_t header_bytes = roce::encode(headers, packet);
  roce::set_path(packet, parts_.pkey(), global);
  if (!fill(packet.subspan(header_bytes, payload_bytes))) return 0;
  const std::size_t unpadded = header_bytes + payload_bytes;
  const std::size_t pad = headers.bth.pad_count;
  std::memset(packet.data() + unpadded, 0, pad);
  // Settles first, because a full batch leaves at once, and the packet may acknowledge earlier stores.
  if (!hca.foreign.empty()) [[unlikely]]
    hca.foreign.synchronize();
  const bool same_rail = destination.gid.back() % 2 == hca.wire->local().gid.back() % 2;
  if (planted_fault == PlantedFault::kRails && !same_rail) return unpadded;
  hca.wire->commit_packet(destination, unpadded + pad);
  const std::size_t network = destination.is_ipv4() ? roce::kIpv4Bytes : roce::kIpv6Bytes;
  hca.link_bytes += unpadded + pad + roce::kIcrcBytes + roce::kUdpBytes + network + kEthernetBytes;
  return unpadded;
}

template <typename Fill>
std::size_t PacketOut::transmit(const roce::Headers& headers, std::size_t payload_bytes, Fill fill) {
  const QpAttributes& peer = parts_.states.attributes();
  return transmit(peer.remote, peer.global, headers, payload_bytes, fill);
}

Syndrome PacketOut::send_request(const roce::Headers& headers, const transport::WorkRequest& request,
                                 std::uint32_t offset_bytes, std::uint32_t length_bytes) {
  SendSlot& slot = parts_.sends[request.cookie];
  if (slot.body.fault != Syndrome::kNone) return slot.body.fault;
  const roce::Operation operation = roce::traits_of(headers.bth.opcode).operation;
  if (wants_response(operation) && !parts_.memory.can_scatter(slot.body.pieces))
    return Syndrome::kLocalProtection;

  const bool datagram = parts_.spec.type == QpType::kUd;
  const QpAttributes& peer = parts_.states.attributes();
  const wire::Address& destination = datagram ? slot.body.destination : peer.remote;
  const bool global = datagram ? slot.body.global : peer.global;
  if (destination.is_ipv4() != parts_.hca.wire->local().is_ipv4()) return Syndrome::kLocalQpOperation;

  Syndrome syndrome = Syndrome::kNone;
  const std::size_t sent_bytes =
      transmit(destination, global, headers, length_bytes, [&](std::span<std::byte> payload) {
        syndrome = parts_.memory.gather(slot.body, offset_bytes, payload);
        return syndrome == Syndrome::kNone;
      });
  if (sent_bytes == 0) return syndrome;
  Pacer& pacer = parts_.pacer;
  pacer.charge(datagram ? pacer.window_to(destination) : pacer.window(), sent_bytes);
  if (!std::exchange(slot.sent, true))
    parts_.note(
        {.kind = FlightKind::kSend, .wqe = slot.wqe_counter, .bytes = length_bytes, .word = headers.bth.psn});
  return Syndrome::kNone;
}

void PacketOut::send_answer(const roce::Headers& headers) {
  transmit(headers, 0, [](std::span<std::byte>) { return true; });
}

bool PacketOut::send_read_data(const roce::Headers& headers, std::uint32_t rkey, std::uint64_t address,
                               std::uint32_t length_bytes) {
  const std::size_t sent_bytes = transmit(headers, length_bytes, [&](std::span<std::byte> payload) {
    parts_.hca.late.land_all();  // a read on PCIe passes no write
    return parts_.memory.load(payload.data(), rkey, address, length_bytes, kRemoteRead);
  });
  if (sent_bytes > 0) parts_.pacer.charge(parts_.pacer.window(), sent_bytes);
  return sent_bytes > 0;
}

void PacketOut::on_marked(std::uint64_t now_ns, const roce::Bth& bth) {
  ++parts_.hca.counters.marked_packets;
  if (bth.opcode == roce::Opcode::kCongestionNotification || !parts_.pacer.take_notification(now_ns)) return;
  roce::Headers headers;
  headers.bth.opcode = roce::Opcode::kCongestionNotification;
  headers.bth.destination_qpn = parts_.states.attributes().remote_qpn;
  headers.bth.backward_congestion = true;
  transmit(headers, roce::kNotificationBytes, [](std::span<std::byte> payload) {
    std::ranges::fill(payload, std::byte{0});
    return true;
  });
  ++parts_.hca.counters.notifications_sent;
}

bool PacketOut::on_notification(std::uint64_t now_ns, const wire::Address& source,
                                const roce::Decoded& packet) {
  const bool expected = source == parts_.states.attributes().remote &&
                        packet.payload.size() == roce::kNotificationBytes && parts_.states.sends();
  if (!expected || !parts_.pacer.on_notification(now_ns)) return false;
  ++parts_.hca.counters.notifications_heeded;
  return true;
}

PeerWindow* PacketOut::request_window() const {
  const Pacer& pacer = parts_.pacer;
  if (parts_.spec.type != QpType::kUd) return pacer.window();
  return parts_.sends.empty() ? nullptr : pacer.window_to(parts_.sends.front().body.destination);
}

bool PacketOut::request_awaits_peer() const {
  wire::Wire& wire = *parts_.hca.wire;
  if (parts_.spec.type != QpType::kUd) return wire.awaits(parts_.states.attributes().remote);
  return !parts_.sends.empty() && wire.awaits(parts_.sends.front().body.destination);
}

std::uint32_t PacketOut::requests_permitted(std::uint64_t now_ns, std::uint32_t max_packets,
                                            const SendSide& side) const {
  if (request_awaits_peer()) return 0;
  const PeerWindow* const window = request_window();
  // A running timer of the transport counts only towards a stalled peer, whose death it detects.
  const bool timed =
      window != nullptr && window->window().stalled(now_ns) && side.next_deadline_ns() != transport::kNever;
  return parts_.pacer.requests_permitted(now_ns, max_packets, window, timed);
}

}  // namespace gdx::softhca
