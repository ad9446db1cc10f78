#include "driver-shim/softhca/engine/qp_ports.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/log.h"
#include "driver-shim/softhca/engine/planted_fault.h"

namespace gdx::softhca {
namespace {

using mlx5::Syndrome;

// Returns the original value of a 4 B atomic in big-endian. Memory holds host order, which an 8 B atomic
// returns. UCX expects big-endian of devices that return 8 B in host order (ext_atomic_arg_sizes_be).
Be32 original_of(SendWqe::AtomicPart part, std::span<const std::byte> payload) {
  std::uint64_t word = 0;
  std::memcpy(&word, payload.data(), std::min(sizeof word, payload.size()));
  return static_cast<std::uint32_t>(part == SendWqe::AtomicPart::kHighHalf ? word >> 32 : word);
}

}  // namespace

Syndrome RequestPort::send(const roce::Headers& headers, const transport::WorkRequest& request,
                           std::uint32_t offset_bytes, std::uint32_t length_bytes) {
  return packets_.send_request(headers, request, offset_bytes, length_bytes);
}

Syndrome RequestPort::scatter(const transport::WorkRequest& request, std::uint32_t offset_bytes,
                              std::span<const std::byte> payload) {
  const SendBody& body = parts_.sends[request.cookie].body;
  if (body.atomic_part == SendWqe::AtomicPart::kWhole)
    return parts_.memory.scatter(body.pieces, offset_bytes, payload);
  const Be32 original = original_of(body.atomic_part, payload);
  return parts_.memory.scatter(body.pieces, 0, std::as_bytes(std::span(&original, 1)));
}

// Executes a UMR WQE. Any obstacle is one error, as on a ConnectX.
Syndrome RequestPort::apply(const transport::WorkRequest& request) {
  const SendSlot& slot = parts_.sends[request.cookie];
  const UmrRequest& umr = *slot.body.umr;
  std::vector<mlx5::DataSegment> entries(umr.translation_entries);
  const Syndrome fetched = parts_.memory.gather(slot.body, 0, std::as_writable_bytes(std::span(entries)));
  if (fetched != Syndrome::kNone) return fetched;
  HcaParts& hca = parts_.hca;
  const char* const refusal = hca.memory.update(request.immediate, parts_.memory.user(), umr, entries);
  if (refusal == nullptr) return Syndrome::kNone;
  log::debug("{}: QP 0x{:x} WQE {}: {}", hca.config.name, parts_.qpn, request.wqe_counter, refusal);
  return Syndrome::kMemoryWindowBind;
}

void RequestPort::complete(const transport::WorkRequest& request, Syndrome syndrome) {
  completions_.complete(request, syndrome);
}

void RequestPort::note_resend(ResendCause cause, std::uint32_t psn) {
  parts_.note({.kind = FlightKind::kResend, .code = static_cast<std::uint8_t>(cause), .word = psn});
}

void ResponsePort::send(const roce::Headers& headers) { packets_.send_answer(headers); }

bool ResponsePort::send_from_memory(const roce::Headers& headers, std::uint32_t rkey, std::uint64_t address,
                                    std::uint32_t length_bytes) {
  return packets_.send_read_data(headers, rkey, address, length_bytes);
}

// Ignores the key of an empty WRITE or READ (IBA 9.7.4.1.5).
bool ResponsePort::check(transport::RemoteOperation operation, std::uint32_t rkey, std::uint64_t address,
                         std::uint32_t length_bytes) {
  const MemoryAccess& memory = parts_.memory;
  switch (operation) {
    case transport::RemoteOperation::kWrite:
      return length_bytes == 0 || memory.permits(rkey, address, length_bytes, kRemoteWrite);
    case transport::RemoteOperation::kRead:
      return length_bytes == 0 || memory.permits(rkey, address, length_bytes, kRemoteRead);
    case transport::RemoteOperation::kAtomic: return memory.may_execute(rkey, address);
  }
  return false;
}

// Keeps a WRITE back until the next one comes, which it lets by, as a planted fault says.
struct KeptWrite {
  std::uint32_t rkey = 0;
  std::uint64_t address = 0;
  std::vector<std::byte> payload;
};

bool ResponsePort::write(std::uint32_t rkey, std::uint64_t address, std::span<const std::byte> payload) {
  const MemoryAccess& memory = parts_.memory;
  HcaParts& hca = parts_.hca;
  if (planted_fault == PlantedFault::kStalePayload && payload.size() > sizeof(std::uint64_t)) {
    static KeptWrite kept;  // shared by all queue pairs, under the lock of the only HCA
    const KeptWrite before = std::exchange(kept, {rkey, address, {payload.begin(), payload.end()}});
    static_cast<void>(memory.store(before.rkey, before.address, before.payload, kRemoteWrite));
    return true;
  }
  const bool may_be_passed =
      planted_fault == PlantedFault::kForceRelax || (hca.config.strict && memory.is_relaxed(rkey));
  if (!may_be_passed) hca.late.land_all();
  const bool lands_late =
      may_be_passed && payload.size() > sizeof(std::uint64_t) &&
      hca.memory.resolve(rkey, memory.user(), address, payload.size(), kRemoteWrite) != nullptr;
  if (!lands_late) return memory.store(rkey, address, payload, kRemoteWrite);
  hca.late.keep(memory, rkey, address, payload);
  return true;
}

std::optional<std::uint64_t> ResponsePort::execute(std::uint32_t rkey, std::uint64_t address,
                                                   const transport::AtomicOperation& operation) {
  if (parts_.hca.config.strict && parts_.memory.is_relaxed(rkey)) report_relaxed_signal(rkey);
  parts_.hca.late.land_all();  // an atomic begins with a read
  return parts_.memory.execute(rkey, address, operation);
}

void ResponsePort::report_relaxed_signal(std::uint32_t rkey) {
  if (std::exchange(relaxed_signal_reported_, true)) return;
  log::warn_of_others(
      "{}: QP 0x{:x} got an atomic under key 0x{:x}, which permits relaxed ordering: a signal there may pass "
      "its payload; register signals without IBV_ACCESS_RELAXED_ORDERING",
      parts_.hca.config.name, parts_.qpn, rkey);
}

bool ResponsePort::take_receive() { return completions_.take_receive(); }

std::optional<std::uint32_t> ResponsePort::posted_receives() const { return completions_.posted_receives(); }

Syndrome ResponsePort::scatter_receive(std::uint32_t offset_bytes, std::span<const std::byte> payload) {
  return completions_.scatter_receive(offset_bytes, payload);
}

void ResponsePort::complete_receive(const transport::ReceiveCompletion& completion) {
  completions_.complete_receive(completion);
}

bool ResponsePort::invalidate(std::uint32_t rkey) {
  return parts_.hca.memory.invalidate(rkey, parts_.memory.user());
}

void ResponsePort::fatal(Syndrome syndrome) {
  const bool access = syndrome == Syndrome::kRemoteAccess || syndrome == Syndrome::kLocalAccess;
  parts_.states.fail(access ? kEventQpAccessError : kEventQpRequestError);
}

}  // namespace gdx::softhca
