#include "driver-shim/softhca/engine/qp_completions.h"

#include <utility>

#include "base/log.h"
#include "driver-shim/softhca/engine/planted_fault.h"
#include "driver-shim/softhca/transport/request_opcodes.h"
#include "driver-shim/softhca/wire/addressing.h"
#include "proto/mlx5/doorbell.h"

namespace gdx::softhca {

using mlx5::Syndrome;

Completions::Completions(QpParts& parts, QueuePair& owner, CompletionQueue& send_cq,
                         CompletionQueue& receive_cq, ReceiveQueue* shared_receives)
    : parts_(parts),
      owner_(owner),
      send_cq_(send_cq),
      receive_cq_(receive_cq),
      own_receives_({.ring = parts.spec.receive_ring,
                     .entries = shared_receives != nullptr ? 0 : parts.spec.receive_entries,
                     .stride_bytes = parts.spec.receive_stride_bytes,
                     .record = &parts.spec.doorbell_record[mlx5::kReceiveRecord]}),
      receives_(shared_receives != nullptr ? *shared_receives : own_receives_),
      shared_receives_(shared_receives != nullptr) {}

transport::WorkRequest Completions::take_send(SendWqe& wqe, bool copied) {
  if (wqe.request.length_bytes > parts_.states.attributes().max_message_bytes) {
    wqe.fault = Syndrome::kLocalLength;
    wqe.reason = "longer than its connection's messages may be";
  }
  transport::WorkRequest request = wqe.request;
  if (parts_.states.state() == QpState::kRts)
    parts_.note({.kind = FlightKind::kFetch,
                 .code = static_cast<std::uint8_t>(request.opcode),
                 .wqe = request.wqe_counter,
                 .bytes = request.length_bytes,
                 .word = copied ? 1u : 0u});
  SendSlot& slot = parts_.sends.push(wqe);
  request.cookie = parts_.sends.newest();
  if (slot.body.fault == Syndrome::kNone) {
    if (transport::traits_of(request.opcode).has(roce::kHasPayload)) hold_staging(slot);
  } else {
    log::debug("{}: QP 0x{:x} WQE {}: {}", parts_.hca.config.name, parts_.qpn, request.wqe_counter,
               wqe.reason);
    // Takes its turn as an empty message, which send_request() then refuses with the fault.
    const bool datagram = parts_.spec.type == QpType::kUd;
    request.opcode = datagram ? mlx5::WqeOpcode::kSend : mlx5::WqeOpcode::kRdmaWrite;
    request.length_bytes = 0;
  }
  return request;
}

void Completions::complete(const transport::WorkRequest& request, Syndrome syndrome) {
  const SendSlot& slot = parts_.sends.front();  // in the order of the queue
  release_staging();
  const bool failed = syndrome != Syndrome::kNone;
  const bool signaled = (request.fm_ce_se & mlx5::kCompletionMask) >= mlx5::kCompletionAlways;
  if (failed) parts_.states.fail();
  if (syndrome == Syndrome::kFlushed) {
    parts_.flight.note_flushed(parts_.hca.now_ns, request.wqe_counter);
  } else {
    parts_.note({.kind = failed || signaled ? FlightKind::kCompletion : FlightKind::kRetirement,
                 .code = static_cast<std::uint8_t>(syndrome),
                 .wqe = request.wqe_counter,
                 .bytes = request.length_bytes});
  }
  if (failed || signaled) {
    parts_.hca.late.land_all();  // completions pass no payload
    write_send(slot, request.length_bytes, syndrome);
  }
  parts_.sends.pop();
}

void Completions::forget_sends() {
  for (; !parts_.sends.empty(); parts_.sends.pop()) release_staging();
}

void Completions::hold_staging(SendSlot& slot) {
  if (!parts_.sends.hold(slot, parts_.memory))
    report_violation("gathers from device memory that another WQE holds", slot.wqe_counter);
  if (!slot.holds.empty()) ++parts_.hca.counters.staging_sends;
}

void Completions::release_staging() {
  if (parts_.sends.release_front()) return;
  report_violation("had its device memory overwritten before it completed", parts_.sends.front().wqe_counter);
}

void Completions::report_violation(const char* what, std::uint16_t wqe_counter) {
  ++parts_.hca.counters.staging_violations;
  if (std::exchange(violation_reported_, true)) return;
  log::warn_of_others("{}: QP 0x{:x} WQE {} {}: a slot was used without its credit", parts_.hca.config.name,
                      parts_.qpn, wqe_counter, what);
}

bool Completions::take_receive() {
  if (!receives_.take(current_receive_)) return false;
  ++parts_.hca.counters.pcie.receive_wqe_reads;
  taken_receives_.push_back(current_receive_.wqe_counter);
  return true;
}

std::optional<std::uint32_t> Completions::posted_receives() const {
  if (shared_receives_ || !parts_.hca.config.receive_credits) return std::nullopt;
  return receives_.posted();
}

Syndrome Completions::scatter_receive(std::uint32_t offset_bytes, std::span<const std::byte> payload) {
  if (offset_bytes + std::uint64_t{payload.size()} > current_receive_.capacity_bytes) {
    return Syndrome::kLocalLength;
  }
  return parts_.memory.scatter(current_receive_.pieces, offset_bytes, payload);
}

void Completions::complete_receive(const transport::ReceiveCompletion& received) {
  const HcaParts& hca = parts_.hca;
  parts_.hca.late.land_all();  // completions pass no payload
  Completion completion;
  completion.opcode = received.opcode;
  completion.syndrome = received.syndrome;
  completion.solicited = received.solicited;
  completion.wqe_counter = taken_receives_.front();
  completion.qpn = parts_.qpn;
  completion.user_index = parts_.spec.user_index;
  completion.byte_count = received.byte_count;
  completion.immediate = received.immediate_or_rkey;
  completion.source_qpn = received.source_qpn;
  completion.has_grh = received.has_grh;
  if (parts_.spec.type == QpType::kUd && hca.config.infiniband) {
    completion.source_lid = wire::lid_of(datagram_source_);
  } else if (received.has_grh) {
    const bool ipv4 = hca.wire->local().is_ipv4();
    completion.roce_type = ipv4 ? mlx5::CqeRoceType::kV2Ipv4 : mlx5::CqeRoceType::kV2Ipv6;
  }
  completion.timestamp_ns = hca.now_ns;
  taken_receives_.pop_front();
  parts_.hca.held_completions.push_back({&owner_, completion});
}

void Completions::flush_receives() {
  const auto flush_taken = [this] {
    while (!taken_receives_.empty()) complete_receive({.syndrome = Syndrome::kFlushed});
  };
  flush_taken();
  // Flushes a queue of its own only, because WQEs of a shared queue belong to other queue pairs too.
  while (!shared_receives_ && take_receive()) flush_taken();
}

void Completions::end_receives() {
  flush_receives();
  if (shared_receives_) parts_.hca.held_completions.push_back({&owner_, {}, kEventQpLastWqeReached});
}

void Completions::reset_receives() {
  taken_receives_.clear();
  if (!shared_receives_) own_receives_.reset();
}

void Completions::deliver(const HcaParts::HeldCompletion& held) {
  if (held.event_type < 0) {
    write(receive_cq_, held.completion);
  } else if (parts_.spec.on_event) {
    parts_.spec.on_event(held.event_type);
  }
}

const char* Completions::check_invariants() const {
  for (const char* const broken : {shared_receives_ ? nullptr : receives_.check_invariants(taken_receives_),
                                   send_cq_.check_invariants(), receive_cq_.check_invariants()}) {
    if (broken != nullptr) return broken;
  }
  return nullptr;
}

void Completions::write_send(const SendSlot& slot, std::uint32_t length_bytes, Syndrome syndrome) {
  Completion completion;
  completion.syndrome = syndrome;
  if (planted_fault == PlantedFault::kSyndrome && syndrome == Syndrome::kRemoteAccess)
    completion.syndrome = Syndrome::kRemoteOperation;
  completion.send_opcode = static_cast<std::uint8_t>(slot.opcode);
  completion.wqe_counter = slot.wqe_counter;
  if (planted_fault == PlantedFault::kCqeCounter) ++completion.wqe_counter;
  completion.qpn = parts_.qpn;
  completion.user_index = parts_.spec.user_index;
  completion.byte_count = length_bytes;
  completion.timestamp_ns = parts_.hca.now_ns;
  write(send_cq_, completion);
}

void Completions::write(CompletionQueue& cq, const Completion& completion) {
  if (cq.write(completion)) {
    ++parts_.hca.counters.cqes;
    return;
  }
  log::debug("{}: QP 0x{:x} has nowhere to put a completion", parts_.hca.config.name, parts_.qpn);
  parts_.states.fail(kEventQpFatal);
}

}  // namespace gdx::softhca
