#include "driver-shim/softhca/devx/commands.h"
#include "driver-shim/softhca/devx/limits.h"
#include "driver-shim/softhca/engine/dma.h"
#include "driver-shim/softhca/engine/planted_fault.h"
#include "proto/mlx5/wqe.h"

namespace gdx::softhca::devx {
namespace prm = mlx5::prm;
namespace {

constexpr std::uint64_t kDoorbellRecordBytes = 8;
constexpr std::uint32_t kStrideUnitBytes = 16;

// Umem numbers count even where a client left the *_umem_valid bits clear: the kernel sets those itself.
Be32* doorbell_record(const UmemTable& umems, std::uint32_t id, std::uint64_t offset) {
  std::byte* const record = umems.resolve(id, offset, kDoorbellRecordBytes);
  return is_aligned(record, alignof(Be32)) ? reinterpret_cast<Be32*>(record) : nullptr;
}

std::byte* ring_at(const UmemTable& umems, std::uint32_t id, std::uint64_t offset,
                   std::uint64_t length_bytes) {
  std::byte* const ring = umems.resolve(id, offset, length_bytes);
  return is_aligned(ring, mlx5::kWqeBasicBlockBytes) ? ring : nullptr;
}

Outcome bad_umem() { return refuse_with(prm::CommandStatus::kBadParameter, Syndrome::kBadUmem); }
Outcome bad_size() { return refuse_with(prm::CommandStatus::kBadParameter, Syndrome::kBadQueueSize); }

struct RingSizes {
  std::uint64_t receive_bytes = 0;
  std::uint64_t send_bytes = 0;
};

// Refuses what some ConnectX refuse of a queue that lies in a umem.
Outcome check_strictly(const Hca& hca, const UmemTable& umems, Input in, prm::Opcode opcode,
                       std::uint32_t umem, std::uint64_t offset) {
  if (!hca.config().strict) return {};
  if (!umems.may_begin_at(umem, offset)) {
    return refuse_with(prm::CommandStatus::kBadParameter, Syndrome::kUnsupportedPageOffset);
  }
  return check_reserved(opcode, in);
}

// Fills in the sizes of `spec` and returns what the rings take: the receive queue first, then the send
// queue. PRM "QP Context", fields log_rq_size, log_rq_stride, log_sq_size.
RingSizes size_rings(Input in, QueuePairSpec& spec) {
  RingSizes sizes;
  if (prm::get32(in, prm::qp::kRqType) == prm::qp::kOwnReceiveQueue) {
    spec.receive_entries = 1u << prm::get32(in, prm::qp::kLogRqSize);
    spec.receive_stride_bytes = kStrideUnitBytes << prm::get32(in, prm::qp::kLogRqStride);
    sizes.receive_bytes = std::uint64_t{spec.receive_entries} * spec.receive_stride_bytes;
  }
  if (prm::get32(in, prm::qp::kNoSq) == 0) {
    spec.send_blocks = 1u << prm::get32(in, prm::qp::kLogSqSize);
    sizes.send_bytes = std::uint64_t{spec.send_blocks} * mlx5::kWqeBasicBlockBytes;
  }
  return sizes;
}

// Returns whether capability qp_ts_format has the format. Source: UCX pull request 8267 ("QP creation fails"
// on a ConnectX-6 Dx with real-time timestamps only).
bool has_timestamps(const Hca& hca, std::uint32_t format) {
  if (format == prm::qp::kDefaultTimestamps) return planted_fault != PlantedFault::kTimestampFormat;
  return format == (hca.config().strict ? prm::qp::kRealTime : prm::qp::kFreeRunning);
}

std::function<void(int)> qp_events(const std::shared_ptr<ObjectEvents>& events) {
  return [events](int event_type) { events->raise(prm_event(event_type)); };
}

}  // namespace

Outcome create_cq(Hca& hca, const UmemTable& umems, Input in, Object& object) {
  if (in.size() < prm::end_byte(prm::cq::kUmemId)) {
    return refuse_with(prm::CommandStatus::kBadInputLength, Syndrome::kBadUmem);
  }
  CompletionQueueSpec spec;
  spec.log_entries = prm::get32(in, prm::cq::kLogSize);
  if (spec.log_entries > kLogMaxCqEntries) return bad_size();
  spec.entry_bytes = prm::get32(in, prm::cq::kCqeSize) == 0 ? 64 : 128;
  spec.collapsed = prm::get32(in, prm::cq::kCollapsed) != 0;
  spec.ignore_overrun = prm::get32(in, prm::cq::kOverrunIgnore) != 0;

  const std::uint32_t eqn = prm::get32(in, prm::cq::kEqn);
  if (eqn < kFirstEqn || eqn >= kFirstEqn + kCompletionVectors) {
    return refuse_with(prm::CommandStatus::kBadParameter, Syndrome::kBadEventQueue);
  }
  spec.uar = prm::get32(in, prm::cq::kUarPage);

  const std::uint32_t ring_umem = prm::get32(in, prm::cq::kUmemId);
  const std::uint64_t ring_offset = prm::get(in, prm::cq::kUmemOffset);
  const Outcome allowed = check_strictly(hca, umems, in, prm::Opcode::kCreateCq, ring_umem, ring_offset);
  if (!allowed.ok()) return allowed;
  const std::uint32_t record_umem = prm::get32(in, prm::cq::kDbrUmemId);
  spec.ring = ring_at(umems, ring_umem, ring_offset, std::uint64_t{spec.entry_bytes} << spec.log_entries);
  spec.doorbell_record = doorbell_record(umems, record_umem, prm::get(in, prm::cq::kDbrAddress));
  if (spec.ring == nullptr || spec.doorbell_record == nullptr) return bad_umem();
  const auto events = std::make_shared<ObjectEvents>();
  spec.on_event = [events] { events->raise(prm::Event::kCompletion); };
  spec.on_overrun = [events] { events->raise(prm::Event::kCqError); };

  const ErrnoOr<std::uint32_t> cqn = hca.create_cq(spec);
  if (!cqn) return outcome_of(cqn.error());
  object = {ObjectKind::kCq, *cqn, {ring_umem, record_umem}, events, 0, std::uint64_t{1} << spec.log_entries};
  return {};
}

Outcome create_qp(Hca& hca, const UmemTable& umems, Input in, Object& object) {
  if (in.size() < prm::end_byte(prm::qp::kUmemId)) {
    return refuse_with(prm::CommandStatus::kBadInputLength, Syndrome::kBadUmem);
  }
  if (prm::get32(in, prm::qp::kServiceType) != prm::qp::kRc) {
    return refuse_with(prm::CommandStatus::kBadParameter, Syndrome::kUnsupportedServiceType);
  }
  if (prm::get32(in, prm::qp::kPageOffset) != 0) {
    return refuse_with(prm::CommandStatus::kBadParameter, Syndrome::kUnsupportedPageOffset);
  }
  if (!has_timestamps(hca, prm::get32(in, prm::qp::kTimestampFormat))) {
    return refuse_with(prm::CommandStatus::kBadParameter, Syndrome::kUnsupportedTimestampFormat);
  }
  QueuePairSpec spec;
  const RingSizes sizes = size_rings(in, spec);
  if (spec.send_blocks > 1u << kLogMaxSendBlocks) return bad_size();
  spec.pd = prm::get32(in, prm::qp::kPd);
  spec.uar = prm::get32(in, prm::qp::kUarPage);
  spec.send_cqn = prm::get32(in, prm::qp::kSendCqn);
  spec.receive_cqn = prm::get32(in, prm::qp::kReceiveCqn);
  // A send-only queue pair need not name a receive CQ; nothing will ever complete there.
  if (prm::get32(in, prm::qp::kRqType) == prm::qp::kNoReceiveQueue && spec.receive_cqn == 0) {
    spec.receive_cqn = spec.send_cqn;
  }
  if (prm::get32(in, prm::qp::kRqType) == prm::qp::kSharedReceiveQueue)
    spec.srqn = prm::get32(in, prm::qp::kSrqn);
  spec.user_index = prm::get32(in, prm::qp::kUserIndex);

  const std::uint32_t ring_umem = prm::get32(in, prm::qp::kUmemId);
  const std::uint64_t ring_offset = prm::get(in, prm::qp::kUmemOffset);
  const Outcome allowed = check_strictly(hca, umems, in, prm::Opcode::kCreateQp, ring_umem, ring_offset);
  if (!allowed.ok()) return allowed;
  const std::uint32_t record_umem = prm::get32(in, prm::qp::kDbrUmemId);
  std::byte* const rings = ring_at(umems, ring_umem, ring_offset, sizes.receive_bytes + sizes.send_bytes);
  spec.doorbell_record = doorbell_record(umems, record_umem, prm::get(in, prm::qp::kDbrAddress));
  if (rings == nullptr || spec.doorbell_record == nullptr) return bad_umem();
  if (spec.receive_entries != 0) spec.receive_ring = rings;
  if (spec.send_blocks != 0) spec.send_ring = rings + sizes.receive_bytes;

  const auto events = std::make_shared<ObjectEvents>();
  spec.on_event = qp_events(events);

  const ErrnoOr<std::uint32_t> qpn = hca.create_qp(spec);
  if (!qpn) return outcome_of(qpn.error());
  object = {ObjectKind::kQp, *qpn, {ring_umem, record_umem}, events, spec.pd};
  return {};
}

Outcome create_rmp(Hca& hca, const UmemTable& umems, Input in, Object& object) {
  if (in.size() < prm::end_byte(prm::rmp::kUmemOffset)) {
    return refuse_with(prm::CommandStatus::kBadInputLength, Syndrome::kBadUmem);
  }
  const std::uint32_t type = prm::get32(in, prm::rmp::kQueueType);
  const bool known = type == prm::rmp::kLinkedList || type == prm::rmp::kCyclic;
  if (!known || prm::get32(in, prm::rmp::kBasicCyclicWqe) != 0 ||
      prm::get32(in, prm::rmp::kState) != prm::rmp::kReady) {
    return refuse_with(prm::CommandStatus::kBadParameter, Syndrome::kUnsupportedQueueType);
  }
  const std::uint32_t log_size = prm::get32(in, prm::rmp::kLogSize);
  if (log_size > kLogMaxSrqEntries) return bad_size();
  SharedReceiveQueueSpec spec;
  spec.pd = prm::get32(in, prm::rmp::kPd);
  spec.entries = 1u << log_size;
  spec.stride_bytes = 1u << prm::get32(in, prm::rmp::kLogStride);
  spec.cyclic = type == prm::rmp::kCyclic;

  const std::uint32_t ring_umem = prm::get32(in, prm::rmp::kUmemId);
  const std::uint32_t record_umem = prm::get32(in, prm::rmp::kDbrUmemId);
  spec.ring = ring_at(umems, ring_umem, prm::get(in, prm::rmp::kUmemOffset),
                      std::uint64_t{spec.entries} * spec.stride_bytes);
  spec.doorbell_record = doorbell_record(umems, record_umem, prm::get(in, prm::rmp::kDbrAddress));
  if (spec.ring == nullptr || spec.doorbell_record == nullptr) return bad_umem();

  const ErrnoOr<std::uint32_t> rmpn = hca.create_srq(spec);
  if (!rmpn) return outcome_of(rmpn.error());
  object = {ObjectKind::kRmp, *rmpn, {ring_umem, record_umem}, std::make_shared<ObjectEvents>(), spec.pd};
  return {};
}

}  // namespace gdx::softhca::devx
