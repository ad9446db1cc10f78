#include <algorithm>
#include <bit>

#include "driver-shim/softhca/devx/commands.h"
#include "driver-shim/softhca/devx/limits.h"
#include "driver-shim/softhca/engine/planted_fault.h"
#include "driver-shim/softhca/wire/addressing.h"

namespace gdx::softhca::devx {
namespace prm = mlx5::prm;
namespace {

constexpr std::uint32_t kMtuUnitBytes = 128;  // IB MTU codes: 256 B is 1, 4096 B is 5
constexpr std::uint32_t kSmallestMtuCode = 1;
constexpr std::uint32_t kLargestMtuCode = 5;

constexpr std::uint32_t kFirstUdpSourcePort = 0xc000;  // RoCE v2 (IBA annex A17.3.3): what routers spread by

// Bits of opt_param_mask. Source: Linux include/linux/mlx5/qp.h, enum mlx5_qp_optpar.
enum OptionalParameter : std::uint32_t {
  kOptRemoteRead = 1 << 1,
  kOptRemoteAtomic = 1 << 2,
  kOptRemoteWrite = 1 << 3,
  kOptRnrTimer = 1 << 6,
  kOptPathMigrationState = 1 << 10,
  kOptRetryCount = 1 << 12,
  kOptRnrRetry = 1 << 13,
  kOptAckTimeout = 1 << 14,
};
constexpr std::uint32_t kOptAccess = kOptRemoteRead | kOptRemoteAtomic | kOptRemoteWrite;
constexpr std::uint32_t kOptRetries = kOptRetryCount | kOptRnrRetry | kOptAckTimeout;

Outcome bad_parameter(Syndrome syndrome) { return refuse_with(prm::CommandStatus::kBadParameter, syndrome); }

// Returns the rights. Without an atomic mode a responder executes no atomic, whatever its right.
std::uint32_t access_flags(Input in) {
  const bool atomics =
      prm::get32(in, prm::qp::kRemoteAtomic) != 0 && prm::get32(in, prm::qp::kAtomicMode) != 0;
  return (prm::get32(in, prm::qp::kRemoteWrite) ? kRemoteWrite : 0u) |
         (prm::get32(in, prm::qp::kRemoteRead) ? kRemoteRead : 0u) | (atomics ? kRemoteAtomic : 0u);
}

// The optional parameters that a transition may carry besides its required ones: those of `known`. Others
// would be announced and yet change nothing, so they are refused. `attributes` holds the rights until now.
Outcome apply_optional(Input in, std::uint32_t known, std::uint32_t& mask, QpAttributes& attributes) {
  const std::uint32_t optional = prm::get32(in, prm::kOptParamMask);
  if ((optional & ~known) != 0) return bad_parameter(Syndrome::kUnknownOptionalParameter);
  if ((optional & kOptAccess) != 0) {
    mask |= kQpAccessFlags;
    const std::uint32_t named = ((optional & kOptRemoteWrite) != 0 ? kRemoteWrite : 0u) |
                                ((optional & kOptRemoteRead) != 0 ? kRemoteRead : 0u) |
                                ((optional & kOptRemoteAtomic) != 0 ? kRemoteAtomic : 0u);
    attributes.access = (attributes.access & ~named) | (access_flags(in) & named);
  }
  if ((optional & kOptRnrTimer) != 0) {
    mask |= kQpMinRnrTimer;
    attributes.min_rnr_timer = static_cast<std::uint8_t>(prm::get32(in, prm::qp::kMinRnrNak));
  }
  if ((optional & kOptPathMigrationState) != 0 &&
      prm::get32(in, prm::qp::kPathMigrationState) != prm::qp::kMigrated) {
    return bad_parameter(Syndrome::kBadPath);
  }
  if ((optional & kOptAckTimeout) != 0) {
    mask |= kQpTimeout;
    attributes.timeout = static_cast<std::uint8_t>(prm::get32(in, prm::qp::kPathAckTimeout));
  }
  if ((optional & kOptRetryCount) != 0) {
    mask |= kQpRetryCount;
    attributes.retry_count = static_cast<std::uint8_t>(prm::get32(in, prm::qp::kRetryCount));
  }
  if ((optional & kOptRnrRetry) != 0) {
    mask |= kQpRnrRetry;
    attributes.rnr_retry = static_cast<std::uint8_t>(prm::get32(in, prm::qp::kRnrRetry));
  }
  return {};
}

wire::Gid remote_gid(Input in) {
  wire::Gid gid;
  std::copy_n(in.begin() + prm::qp::kPathRemoteGidByte, gid.size(), gid.begin());
  return gid;
}

// Checks the path, because on a ConnectX a wrong one would show only by packets that never arrive.
bool is_path(Input in, const wire::Address& remote) {
  std::uint64_t mac = 0;
  for (const std::uint8_t byte : wire::mac_of(remote)) mac = mac << 8 | byte;
  return (prm::get(in, prm::qp::kPathRemoteMacHigh) << 32 | prm::get(in, prm::qp::kPathRemoteMacLow)) ==
             mac &&
         prm::get32(in, prm::qp::kPathHopLimit) > 0 &&
         prm::get32(in, prm::qp::kPathSourceGidIndex) < wire::kGidTableSize &&
         prm::get32(in, prm::qp::kPathUdpSourcePort) >= kFirstUdpSourcePort;
}

// Of InfiniBand: by LID, and by GID only where a GRH says so.
bool is_path_by_lid(Input in, const wire::Address& remote) {
  return prm::get32(in, prm::qp::kPathRemoteLid) != 0 &&
         (prm::get32(in, prm::qp::kPathGrh) == 0 ||
          (prm::get32(in, prm::qp::kPathHopLimit) > 0 &&
           prm::get32(in, prm::qp::kPathSourceGidIndex) < wire::kGidTableSize &&
           wire::address_of(remote_gid(in)) == remote));
}

Outcome to_init(Input in, std::size_t pkeys, std::uint32_t& mask, QpAttributes& attributes) {
  // Accepts Armed, which is zero, because clients without alternate paths leave it so: nothing to migrate to.
  const std::uint32_t migration = prm::get32(in, prm::qp::kPathMigrationState);
  if (prm::get32(in, prm::qp::kPathPort) != 1 || prm::get32(in, prm::qp::kPathPkeyIndex) >= pkeys ||
      (migration != prm::qp::kMigrated && migration != prm::qp::kArmed)) {
    return bad_parameter(Syndrome::kBadPath);
  }
  mask = kQpState | kQpPkeyIndex | kQpPort | kQpAccessFlags | kQpCounterSet;
  attributes.pkey_index = static_cast<std::uint16_t>(prm::get32(in, prm::qp::kPathPkeyIndex));
  attributes.counter_set = static_cast<std::uint8_t>(prm::get32(in, prm::qp::kCounterSet));
  attributes.state = QpState::kInit;
  attributes.access = access_flags(in);
  return {};
}

Outcome to_rtr(Input in, const HcaConfig& config, std::uint32_t& mask, QpAttributes& attributes) {
  const std::uint32_t mtu = prm::get32(in, prm::qp::kMtu);
  if (mtu < kSmallestMtuCode || mtu > kLargestMtuCode) return bad_parameter(Syndrome::kBadMtu);
  const std::uint32_t log_max_message = prm::get32(in, prm::qp::kLogMaxMessage);
  const std::uint32_t log_reads = prm::get32(in, prm::qp::kLogRraMax);
  if (log_max_message > kLogMaxMessage || log_reads > kLogMaxReads) return bad_parameter(Syndrome::kBadLimit);
  const bool forces_order = prm::get32(in, prm::qp::kOrderingForce) != 0;
  if (config.strict && forces_order && config.data_order != OrderRule::kChosen)
    return bad_parameter(Syndrome::kOrderNotForced);
  mask = kQpState | kQpAddress | kQpPathMtu | kQpDestinationQpn | kQpReceivePsn | kQpMaxDestRdAtomic |
         kQpMinRnrTimer | kQpMaxMessage | kQpDataOrder;
  attributes.state = QpState::kRtr;
  const auto lid = static_cast<std::uint16_t>(prm::get32(in, prm::qp::kPathRemoteLid));
  // Ignores a tier that is not forced. Source: torchcomms, MultipeerIbgdaTransport (dp_ordering).
  attributes.forces_order = forces_order && planted_fault != PlantedFault::kDroppedForce;
  attributes.any_order = attributes.forces_order && prm::get32(in, prm::qp::kOrderingLow) != 0;
  attributes.remote = config.infiniband ? wire::address_of_lid(lid) : wire::address_of(remote_gid(in));
  if (!(config.infiniband ? is_path_by_lid(in, attributes.remote) : is_path(in, attributes.remote)))
    return bad_parameter(Syndrome::kBadPath);
  attributes.global = !config.infiniband || prm::get32(in, prm::qp::kPathGrh) != 0;
  attributes.mtu_bytes = kMtuUnitBytes << mtu;
  attributes.max_message_bytes = 1u << log_max_message;
  attributes.remote_qpn = prm::get32(in, prm::qp::kRemoteQpn);
  attributes.receive_psn = prm::get32(in, prm::qp::kNextReceivePsn);
  attributes.max_dest_rd_atomic = static_cast<std::uint8_t>(1u << log_reads);
  attributes.min_rnr_timer = static_cast<std::uint8_t>(prm::get32(in, prm::qp::kMinRnrNak));
  return apply_optional(in, kOptAccess, mask, attributes);
}

Outcome to_rts(Input in, std::uint32_t& mask, QpAttributes& attributes) {
  const std::uint32_t log_reads = prm::get32(in, prm::qp::kLogSraMax);
  if (log_reads > kLogMaxReads) return bad_parameter(Syndrome::kBadLimit);
  mask = kQpState | kQpTimeout | kQpRetryCount | kQpRnrRetry | kQpSendPsn | kQpMaxRdAtomic;
  attributes.state = QpState::kRts;
  attributes.timeout = static_cast<std::uint8_t>(prm::get32(in, prm::qp::kPathAckTimeout));
  attributes.retry_count = static_cast<std::uint8_t>(prm::get32(in, prm::qp::kRetryCount));
  attributes.rnr_retry = static_cast<std::uint8_t>(prm::get32(in, prm::qp::kRnrRetry));
  attributes.send_psn = prm::get32(in, prm::qp::kNextSendPsn);
  attributes.max_rd_atomic = static_cast<std::uint8_t>(1u << log_reads);
  return apply_optional(in, kOptAccess | kOptRnrTimer | kOptPathMigrationState, mask, attributes);
}

Outcome stay(Input in, QpState state, std::uint32_t known, std::uint32_t& mask, QpAttributes& attributes) {
  mask = kQpState;
  attributes.state = state;
  return apply_optional(in, known, mask, attributes);
}

Outcome leave_for(QpState state, std::uint32_t& mask, QpAttributes& attributes) {
  mask = kQpState;
  attributes.state = state;
  return {};
}

Outcome decode(prm::Opcode opcode, Input in, const HcaConfig& config, std::uint32_t& mask,
               QpAttributes& attributes) {
  switch (opcode) {
    case prm::Opcode::kRst2Init: return to_init(in, config.pkeys.size(), mask, attributes);
    case prm::Opcode::kInit2Init: return stay(in, QpState::kInit, kOptAccess, mask, attributes);
    case prm::Opcode::kInit2Rtr: return to_rtr(in, config, mask, attributes);
    case prm::Opcode::kRtr2Rts: return to_rts(in, mask, attributes);
    case prm::Opcode::kRts2Rts:
      return stay(in, QpState::kRts, kOptAccess | kOptRnrTimer | kOptPathMigrationState | kOptRetries, mask,
                  attributes);
    case prm::Opcode::k2Err: return leave_for(QpState::kError, mask, attributes);
    case prm::Opcode::k2Rst: return leave_for(QpState::kReset, mask, attributes);
    default: return refuse_with(prm::CommandStatus::kBadOperation, Syndrome::kUnsupportedCommand);
  }
}

// Returns whether the command may start from `state`, by its name; any state for 2ERR and 2RST.
bool starts_from(prm::Opcode opcode, QpState state) {
  switch (opcode) {
    case prm::Opcode::kRst2Init: return state == QpState::kReset;
    case prm::Opcode::kInit2Init:
    case prm::Opcode::kInit2Rtr: return state == QpState::kInit;
    case prm::Opcode::kRtr2Rts: return state == QpState::kRtr;
    case prm::Opcode::kRts2Rts: return state == QpState::kRts;
    default: return true;
  }
}

// The PRM and the verbs number the two drained states the other way round.
prm::qp::State prm_state(QpState state) {
  switch (state) {
    case QpState::kReset: return prm::qp::kReset;
    case QpState::kInit: return prm::qp::kInit;
    case QpState::kRtr: return prm::qp::kRtr;
    case QpState::kRts: return prm::qp::kRts;
    case QpState::kSqd: return prm::qp::kSqDrained;
    case QpState::kSqe: return prm::qp::kSqError;
    case QpState::kError: return prm::qp::kError;
  }
  return prm::qp::kError;
}

std::uint32_t log2_floor(std::uint32_t value) {
  return value == 0 ? 0 : static_cast<std::uint32_t>(std::bit_width(value)) - 1;
}

}  // namespace

Outcome modify_qp(Hca& hca, prm::Opcode opcode, std::uint32_t qpn, Input in) {
  const ErrnoOr<QpAttributes> current = hca.query_qp(qpn);
  if (!current) return outcome_of(current.error());
  if (!starts_from(opcode, current->state)) {
    return refuse_with(prm::CommandStatus::kBadQpState, Syndrome::kBadTransition);
  }
  const bool has_context = opcode != prm::Opcode::k2Err && opcode != prm::Opcode::k2Rst;
  if (has_context && in.size() < prm::end_byte(prm::qp::kDbrUmemId)) {
    return refuse_with(prm::CommandStatus::kBadInputLength, Syndrome::kBadTransition);
  }
  if (has_context && hca.config().strict) {
    if (const Outcome allowed = check_reserved(opcode, in); !allowed.ok()) return allowed;
    // Source: PRM, command return status 0x05 (BAD_RESOURCE: an unallocated resource).
    if (prm::get32(in, prm::qp::kCounterSet) > kPortCounterSet)
      return refuse_with(prm::CommandStatus::kBadResource, Syndrome::kNoSuchCounterSet);
  }
  std::uint32_t mask = 0;
  QpAttributes attributes;
  attributes.access = current->access;
  const Outcome decoded = decode(opcode, in, hca.config(), mask, attributes);
  if (!decoded.ok()) return decoded;
  if (opcode == prm::Opcode::kInit2Rtr && !hca.config().infiniband) {
    const auto source_index = static_cast<std::uint8_t>(prm::get32(in, prm::qp::kPathSourceGidIndex));
    wire::warn_of_mixed_gids(hca.address(), source_index, remote_gid(in));
  }
  return outcome_of(hca.modify_qp(qpn, mask, attributes));
}

Outcome query_qp(Hca& hca, std::uint32_t qpn, Output out) {
  const ErrnoOr<QpAttributes> found = hca.query_qp(qpn);
  if (!found) return outcome_of(found.error());
  prm::set(out, prm::qp::kState, prm_state(found->state));
  prm::set(out, prm::qp::kPathMigrationState, prm::qp::kMigrated);
  prm::set(out, prm::qp::kCounterSet, found->counter_set);
  prm::set(out, prm::qp::kOrderingLow, found->any_order);
  prm::set(out, prm::qp::kOrderingForce, found->forces_order);
  const std::uint32_t mtu = log2_floor(found->mtu_bytes / kMtuUnitBytes);
  prm::set(out, prm::qp::kMtu, planted_fault == PlantedFault::kQueryQp ? mtu - 1 : mtu);
  prm::set(out, prm::qp::kLogMaxMessage, log2_floor(found->max_message_bytes));
  prm::set(out, prm::qp::kRemoteQpn, found->remote_qpn);
  prm::set(out, prm::qp::kRemoteRead, (found->access & kRemoteRead) != 0);
  prm::set(out, prm::qp::kRemoteWrite, (found->access & kRemoteWrite) != 0);
  prm::set(out, prm::qp::kRemoteAtomic, (found->access & kRemoteAtomic) != 0);
  prm::set(out, prm::qp::kNextSendPsn, found->send_psn);
  prm::set(out, prm::qp::kNextReceivePsn, found->receive_psn);
  prm::set(out, prm::qp::kRetryCount, found->retry_count);
  prm::set(out, prm::qp::kRnrRetry, found->rnr_retry);
  prm::set(out, prm::qp::kMinRnrNak, found->min_rnr_timer);
  prm::set(out, prm::qp::kLogSraMax, log2_floor(found->max_rd_atomic));
  prm::set(out, prm::qp::kLogRraMax, log2_floor(found->max_dest_rd_atomic));
  prm::set(out, prm::qp::kPathAckTimeout, found->timeout);
  prm::set(out, prm::qp::kPathPort, found->port);
  prm::set(out, prm::qp::kPathPkeyIndex, found->pkey_index);
  if (hca.config().infiniband) {
    prm::set(out, prm::qp::kPathGrh, found->global);
    prm::set(out, prm::qp::kPathRemoteLid, wire::lid_of(found->remote));
    if (!found->global) return {};
  }
  const wire::Gid gid = wire::gid_of(found->remote, hca.config().infiniband ? 0 : 1);
  std::copy(gid.begin(), gid.end(), out.begin() + prm::qp::kPathRemoteGidByte);
  return {};
}

}  // namespace gdx::softhca::devx
