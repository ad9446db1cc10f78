// Ports of a queue pair for its transport: bytes of this process, packets on the wire.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/log.h"
#include "driver-shim/softhca/engine/planted_fault.h"
#include "driver-shim/softhca/engine/queue_pair.h"
#include "driver-shim/softhca/wire/addressing.h"
#include "proto/roce/ip_header.h"

namespace gdx::softhca {
namespace {

using mlx5::Syndrome;

constexpr std::size_t kEthernetBytes = 8 + 14 + 4 + 12;  // preamble, header, check sequence, gap

// Returns the original value of a 4 B atomic in big-endian. Memory holds host order, which an 8 B atomic
// returns. UCX expects big-endian of devices that return 8 B in host order (ext_atomic_arg_sizes_be).
Be32 original_of(SendWqe::AtomicPart part, std::span<const std::byte> payload) {
  std::uint64_t word = 0;
  std::memcpy(&word, payload.data(), std::min(sizeof word, payload.size()));
  return static_cast<std::uint32_t>(part == SendWqe::AtomicPart::kHighHalf ? word >> 32 : word);
}

}  // namespace

template <typename Fill>
std::size_t QueuePair::transmit(const wire::Address& destination, bool global, const roce::Headers& headers,
                                std::size_t payload_bytes, Fill fill) {
  const std::span<std::byte> packet = hca_.wire->begin_packet(destination);
  const std::size_t header_bytes = roce::encode(headers, packet);
  roce::set_path(packet, pkey(), global);
  if (!fill(packet.subspan(header_bytes, payload_bytes))) return 0;
  const std::size_t unpadded = header_bytes + payload_bytes;
  const std::size_t pad = headers.bth.pad_count;
  std::memset(packet.data() + unpadded, 0, pad);
  // Settles first, because a full batch leaves at once, and the packet may acknowledge earlier stores.
  if (!hca_.foreign.empty()) [[unlikely]]
    hca_.foreign.synchronize();
  const bool same_rail = destination.gid.back() % 2 == hca_.wire->local().gid.back() % 2;
  if (planted_fault == PlantedFault::kRails && !same_rail) return unpadded;
  hca_.wire->commit_packet(destination, unpadded + pad);
  const std::size_t network = destination.is_ipv4() ? roce::kIpv4Bytes : roce::kIpv6Bytes;
  hca_.link_bytes += unpadded + pad + roce::kIcrcBytes + roce::kUdpBytes + network + kEthernetBytes;
  return unpadded;
}

template <typename Fill>
std::size_t QueuePair::transmit(const roce::Headers& headers, std::size_t payload_bytes, Fill fill) {
  const QpAttributes& peer = states_.attributes();
  return transmit(peer.remote, peer.global, headers, payload_bytes, fill);
}

Syndrome QueuePair::send(const roce::Headers& headers, const transport::WorkRequest& request,
                         std::uint32_t offset_bytes, std::uint32_t length_bytes) {
  SendSlot& slot = sends_[request.cookie];
  if (slot.body.fault != Syndrome::kNone) return slot.body.fault;
  const roce::Operation operation = roce::traits_of(headers.bth.opcode).operation;
  if (wants_response(operation) && !memory_.can_scatter(slot.body.pieces)) return Syndrome::kLocalProtection;

  const bool datagram = spec_.type == QpType::kUd;
  const wire::Address& destination = datagram ? slot.body.destination : states_.attributes().remote;
  const bool global = datagram ? slot.body.global : states_.attributes().global;
  if (destination.is_ipv4() != hca_.wire->local().is_ipv4()) return Syndrome::kLocalQpOperation;

  Syndrome syndrome = Syndrome::kNone;
  const std::size_t sent_bytes =
      transmit(destination, global, headers, length_bytes, [&](std::span<std::byte> payload) {
        syndrome = memory_.gather(slot.body, offset_bytes, payload);
        return syndrome == Syndrome::kNone;
      });
  if (sent_bytes == 0) return syndrome;
  pacer_.charge(datagram ? pacer_.window_to(destination) : pacer_.window(), sent_bytes);
  if (!std::exchange(slot.sent, true))
    note(
        {.kind = FlightKind::kSend, .wqe = slot.wqe_counter, .bytes = length_bytes, .word = headers.bth.psn});
  return Syndrome::kNone;
}

Syndrome QueuePair::scatter(const transport::WorkRequest& request, std::uint32_t offset_bytes,
                            std::span<const std::byte> payload) {
  const SendBody& body = sends_[request.cookie].body;
  if (body.atomic_part == SendWqe::AtomicPart::kWhole)
    return memory_.scatter(body.pieces, offset_bytes, payload);
  const Be32 original = original_of(body.atomic_part, payload);
  return memory_.scatter(body.pieces, 0, std::as_bytes(std::span(&original, 1)));
}

// Executes a UMR WQE. Any obstacle is one error, as on a ConnectX.
Syndrome QueuePair::apply(const transport::WorkRequest& request) {
  const SendSlot& slot = sends_[request.cookie];
  const UmrRequest& umr = *slot.body.umr;
  std::vector<mlx5::DataSegment> entries(umr.translation_entries);
  const Syndrome fetched = memory_.gather(slot.body, 0, std::as_writable_bytes(std::span(entries)));
  if (fetched != Syndrome::kNone) return fetched;
  const char* const refusal = hca_.memory.update(request.immediate, memory_.user(), umr, entries);
  if (refusal == nullptr) return Syndrome::kNone;
  log::debug("{}: QP 0x{:x} WQE {}: {}", hca_.config.name, qpn_, request.wqe_counter, refusal);
  return Syndrome::kMemoryWindowBind;
}

void QueuePair::note_resend(ResendCause cause, std::uint32_t psn) {
  note({.kind = FlightKind::kResend, .code = static_cast<std::uint8_t>(cause), .word = psn});
}

// Releases the staging memory before the completion becomes visible.
void QueuePair::complete(const transport::WorkRequest& request, Syndrome syndrome) {
  const SendSlot& slot = sends_.front();  // in the order of the queue
  release_staging();
  const bool failed = syndrome != Syndrome::kNone;
  const bool signaled = (request.fm_ce_se & mlx5::kCompletionMask) >= mlx5::kCompletionAlways;
  if (failed) states_.fail();
  if (syndrome == Syndrome::kFlushed) {
    flush_.time_ns = hca_.now_ns;
    flush_.wqe = request.wqe_counter;
    ++flush_.word;
  } else {
    note({.kind = failed || signaled ? FlightKind::kCompletion : FlightKind::kRetirement,
          .code = static_cast<std::uint8_t>(syndrome),
          .wqe = request.wqe_counter,
          .bytes = request.length_bytes});
  }
  if (failed || signaled) {
    hca_.late.land_all();  // completions pass no payload
    write_send_completion(slot, request.length_bytes, syndrome);
  }
  sends_.pop();
}

void QueuePair::send(const roce::Headers& headers) {
  transmit(headers, 0, [](std::span<std::byte>) { return true; });
}

bool QueuePair::send_from_memory(const roce::Headers& headers, std::uint32_t rkey, std::uint64_t address,
                                 std::uint32_t length_bytes) {
  const std::size_t sent_bytes = transmit(headers, length_bytes, [&](std::span<std::byte> payload) {
    hca_.late.land_all();  // a read on PCIe passes no write
    return memory_.load(payload.data(), rkey, address, length_bytes, kRemoteRead);
  });
  if (sent_bytes > 0) pacer_.charge(pacer_.window(), sent_bytes);
  return sent_bytes > 0;
}

void QueuePair::on_marked(std::uint64_t now_ns, const roce::Bth& bth) {
  ++hca_.counters.marked_packets;
  if (bth.opcode == roce::Opcode::kCongestionNotification || !pacer_.take_notification(now_ns)) return;
  roce::Headers headers;
  headers.bth.opcode = roce::Opcode::kCongestionNotification;
  headers.bth.destination_qpn = states_.attributes().remote_qpn;
  headers.bth.backward_congestion = true;
  transmit(headers, roce::kNotificationBytes, [](std::span<std::byte> payload) {
    std::ranges::fill(payload, std::byte{0});
    return true;
  });
  ++hca_.counters.notifications_sent;
}

// Ignores the key of an empty WRITE or READ (IBA 9.7.4.1.5).
bool QueuePair::check(transport::RemoteOperation operation, std::uint32_t rkey, std::uint64_t address,
                      std::uint32_t length_bytes) {
  switch (operation) {
    case transport::RemoteOperation::kWrite:
      return length_bytes == 0 || memory_.permits(rkey, address, length_bytes, kRemoteWrite);
    case transport::RemoteOperation::kRead:
      return length_bytes == 0 || memory_.permits(rkey, address, length_bytes, kRemoteRead);
    case transport::RemoteOperation::kAtomic: return memory_.may_execute(rkey, address);
  }
  return false;
}

// Keeps a WRITE back until the next one comes, which it lets by, as a planted fault says.
struct KeptWrite {
  std::uint32_t rkey = 0;
  std::uint64_t address = 0;
  std::vector<std::byte> payload;
};

bool QueuePair::write(std::uint32_t rkey, std::uint64_t address, std::span<const std::byte> payload) {
  if (planted_fault == PlantedFault::kStalePayload && payload.size() > sizeof(std::uint64_t)) {
    static KeptWrite kept;  // of all queue pairs, under the lock of the only HCA
    const KeptWrite before = std::exchange(kept, {rkey, address, {payload.begin(), payload.end()}});
    static_cast<void>(memory_.store(before.rkey, before.address, before.payload, kRemoteWrite));
    return true;
  }
  const bool may_be_passed =
      planted_fault == PlantedFault::kForceRelax || (hca_.config.strict && memory_.is_relaxed(rkey));
  if (!may_be_passed) hca_.late.land_all();
  const bool lands_late =
      may_be_passed && payload.size() > sizeof(std::uint64_t) &&
      hca_.memory.resolve(rkey, memory_.user(), address, payload.size(), kRemoteWrite) != nullptr;
  if (!lands_late) return memory_.store(rkey, address, payload, kRemoteWrite);
  hca_.late.keep(memory_, rkey, address, payload);
  return true;
}

std::optional<std::uint64_t> QueuePair::execute(std::uint32_t rkey, std::uint64_t address,
                                                const transport::AtomicOperation& operation) {
  if (hca_.config.strict && memory_.is_relaxed(rkey)) report_relaxed_signal(rkey);
  hca_.late.land_all();  // an atomic begins with a read
  return memory_.execute(rkey, address, operation);
}

bool QueuePair::take_receive() {
  if (!receives_.take(current_receive_)) return false;
  ++hca_.counters.pcie.receive_wqe_reads;
  taken_receives_.push_back(current_receive_.wqe_counter);
  return true;
}

std::optional<std::uint32_t> QueuePair::posted_receives() const {
  if (shared_receives_ || !hca_.config.receive_credits) return std::nullopt;
  return receives_.posted();
}

Syndrome QueuePair::scatter_receive(std::uint32_t offset_bytes, std::span<const std::byte> payload) {
  if (offset_bytes + std::uint64_t{payload.size()} > current_receive_.capacity_bytes) {
    return Syndrome::kLocalLength;
  }
  return memory_.scatter(current_receive_.pieces, offset_bytes, payload);
}

void QueuePair::complete_receive(const transport::ReceiveCompletion& received) {
  hca_.late.land_all();  // completions pass no payload
  Completion completion;
  completion.opcode = received.opcode;
  completion.syndrome = received.syndrome;
  completion.solicited = received.solicited;
  completion.wqe_counter = taken_receives_.front();
  completion.qpn = qpn_;
  completion.user_index = spec_.user_index;
  completion.byte_count = received.byte_count;
  completion.immediate = received.immediate_or_rkey;
  completion.source_qpn = received.source_qpn;
  completion.has_grh = received.has_grh;
  if (spec_.type == QpType::kUd && hca_.config.infiniband) {
    completion.source_lid = wire::lid_of(datagram_source_);
  } else if (received.has_grh) {
    const bool ipv4 = hca_.wire->local().is_ipv4();
    completion.roce_type = ipv4 ? mlx5::CqeRoceType::kV2Ipv4 : mlx5::CqeRoceType::kV2Ipv6;
  }
  completion.timestamp_ns = hca_.now_ns;
  taken_receives_.pop_front();
  hca_.arrivals.push_back({this, completion});
}

bool QueuePair::invalidate(std::uint32_t rkey) { return hca_.memory.invalidate(rkey, memory_.user()); }

void QueuePair::fatal(Syndrome syndrome) {
  const bool access = syndrome == Syndrome::kRemoteAccess || syndrome == Syndrome::kLocalAccess;
  states_.fail(access ? kEventQpAccessError : kEventQpRequestError);
}

}  // namespace gdx::softhca
