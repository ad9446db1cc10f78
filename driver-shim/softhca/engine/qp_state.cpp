#include "driver-shim/softhca/engine/qp_state.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <optional>
#include <utility>

#include "driver-shim/softhca/engine/planted_fault.h"
#include "proto/roce/headers.h"

namespace gdx::softhca {
namespace {

struct Transition {
  QpState from;
  QpState to;
  std::uint32_t required_rc;
  std::uint32_t required_uc;
  std::uint32_t required_ud;
};

constexpr std::size_t kMinWindowPackets = 32;
constexpr std::size_t kMaxWindowPackets = 512;
constexpr std::uint32_t kNotThere = ~0u;  // this service has no such transition
constexpr std::uint32_t kConnected = kQpAddress | kQpPathMtu | kQpDestinationQpn | kQpReceivePsn;

// Transitions besides those to RESET and ERROR, which every state permits. A failed send takes UC and UD to
// SQE by itself, RC to ERROR; no modify reaches SQE. Nor does any reach SQD: a ConnectX has no command for
// it, and its driver answers EINVAL (Linux drivers/infiniband/hw/mlx5/qp.c, the table of commands by states).
constexpr std::array kTransitions{
    Transition{QpState::kReset, QpState::kInit, kQpPkeyIndex | kQpPort | kQpAccessFlags,
               kQpPkeyIndex | kQpPort | kQpAccessFlags, kQpPkeyIndex | kQpPort | kQpQkey},
    Transition{QpState::kInit, QpState::kInit, 0, 0, 0},
    Transition{QpState::kInit, QpState::kRtr, kConnected | kQpMaxDestRdAtomic | kQpMinRnrTimer, kConnected,
               0},
    Transition{QpState::kRtr, QpState::kRts,
               kQpTimeout | kQpRetryCount | kQpRnrRetry | kQpSendPsn | kQpMaxRdAtomic, kQpSendPsn,
               kQpSendPsn},
    Transition{QpState::kRts, QpState::kRts, 0, 0, 0},
    Transition{QpState::kSqe, QpState::kRts, kNotThere, 0, 0},
};

// Returns the required attributes, or nullopt without such a transition.
std::optional<std::uint32_t> required(QpType type, QpState from, QpState to) {
  if (to == QpState::kReset || to == QpState::kError) return 0;
  for (const Transition& row : kTransitions) {
    if (row.from != from || row.to != to) continue;
    switch (type) {
      case QpType::kRc: return row.required_rc;
      case QpType::kUc: return row.required_uc;
      case QpType::kUd: return row.required_ud;
    }
  }
  return std::nullopt;
}

bool in_range(std::uint32_t mask, const QpAttributes& attributes) {
  const std::uint32_t mtu = attributes.mtu_bytes;
  if ((mask & kQpPathMtu) && (!std::has_single_bit(mtu) || mtu < 256 || mtu > 4096)) return false;
  if ((mask & kQpTimeout) && attributes.timeout > 31) return false;
  if ((mask & kQpRetryCount) && attributes.retry_count > 7) return false;
  if ((mask & kQpRnrRetry) && attributes.rnr_retry > 7) return false;
  if ((mask & kQpMinRnrTimer) && attributes.min_rnr_timer > 31) return false;
  if ((mask & kQpDestinationQpn) && attributes.remote_qpn > roce::kQpnMask) return false;
  return !(mask & kQpPort) || attributes.port == 1;
}

}  // namespace

Errno check_modify(QpType type, QpState from, std::uint32_t mask, const QpAttributes& attributes) {
  const QpState to = (mask & kQpState) ? attributes.state : from;
  const std::optional<std::uint32_t> needed = required(type, from, to);
  if (!needed || (mask & *needed) != *needed) return EINVAL;
  return in_range(mask, attributes) ? 0 : EINVAL;
}

Errno QpStates::modify(std::uint32_t mask, const QpAttributes& asked, std::uint32_t port_mtu_bytes,
                       bool port_is_ipv4) {
  const Errno refused = check_modify(type_, state(), mask, asked);
  if (refused != 0) return refused;
  if ((mask & kQpPathMtu) && asked.mtu_bytes > port_mtu_bytes) return EINVAL;
  if ((mask & kQpAddress) && asked.remote.is_ipv4() != port_is_ipv4) return EINVAL;
  if (mask & kQpAccessFlags) attributes_.access = asked.access;
  if (mask & kQpPkeyIndex) attributes_.pkey_index = asked.pkey_index;
  if (mask & kQpPort) attributes_.port = asked.port;
  if (mask & kQpQkey) attributes_.qkey = asked.qkey;
  if (mask & kQpAddress) attributes_.remote = asked.remote;
  if (mask & kQpAddress) attributes_.global = asked.global;
  if (mask & kQpPathMtu) attributes_.mtu_bytes = asked.mtu_bytes;
  if (mask & kQpCounterSet) attributes_.counter_set = asked.counter_set;
  if (mask & kQpDataOrder) attributes_.any_order = asked.any_order;
  if (mask & kQpDataOrder) attributes_.forces_order = asked.forces_order;
  if (mask & kQpMaxMessage) attributes_.max_message_bytes = asked.max_message_bytes;
  if (mask & kQpTimeout) attributes_.timeout = asked.timeout;
  if (mask & kQpRetryCount) attributes_.retry_count = asked.retry_count;
  if (mask & kQpRnrRetry) attributes_.rnr_retry = asked.rnr_retry;
  if (mask & kQpReceivePsn) attributes_.receive_psn = asked.receive_psn & roce::kPsnMask;
  if (mask & kQpMaxRdAtomic) attributes_.max_rd_atomic = asked.max_rd_atomic;
  if (mask & kQpMinRnrTimer) attributes_.min_rnr_timer = asked.min_rnr_timer;
  if (mask & kQpSendPsn) attributes_.send_psn = asked.send_psn & roce::kPsnMask;
  if (mask & kQpMaxDestRdAtomic) attributes_.max_dest_rd_atomic = asked.max_dest_rd_atomic;
  if (mask & kQpDestinationQpn) attributes_.remote_qpn = asked.remote_qpn;
  return 0;
}

bool QpStates::establish() {
  if (established_ || state() != QpState::kRtr || type_ == QpType::kUd) return false;
  established_ = true;
  return true;
}

void QpStates::reset() { *this = QpStates(type_, qpn_); }

// Only the first failure counts. A completion with error ends only sending without a connection (IBA 10.3.1,
// SQE).
std::optional<QpStates::End> QpStates::take_failure() {
  const std::optional<int> event_type = std::exchange(failure_, std::nullopt);
  if (!event_type || state() == QpState::kError) return std::nullopt;
  const bool sending_ends = *event_type == kNoEvent && type_ != QpType::kRc;
  return End{sending_ends ? QpState::kSqe : QpState::kError, *event_type};
}

transport::RcConfig QpStates::rc_config(std::size_t window_bytes) const {
  transport::RcConfig config;
  config.local_qpn = qpn_;
  config.remote_qpn = attributes_.remote_qpn;
  config.send_psn = attributes_.send_psn;
  config.receive_psn = attributes_.receive_psn;
  config.mtu_bytes = attributes_.mtu_bytes;
  config.ack_timeout = planted_fault == PlantedFault::kNoAckTimeout ? 0 : attributes_.timeout;
  config.retry_count = attributes_.retry_count;
  config.rnr_retry = attributes_.rnr_retry;
  config.min_rnr_timer = attributes_.min_rnr_timer;
  config.max_rd_atomic = attributes_.max_rd_atomic;
  config.max_dest_rd_atomic = attributes_.max_dest_rd_atomic;
  config.remote_write = attributes_.access & kRemoteWrite;
  config.remote_read = attributes_.access & kRemoteRead;
  config.remote_atomic = attributes_.access & kRemoteAtomic;
  config.max_unacked_packets = static_cast<std::uint32_t>(
      std::clamp(window_bytes / attributes_.mtu_bytes, kMinWindowPackets, kMaxWindowPackets));
  return config;
}

transport::UcConfig QpStates::uc_config() const {
  transport::UcConfig config;
  config.remote_qpn = attributes_.remote_qpn;
  config.send_psn = attributes_.send_psn;
  config.receive_psn = attributes_.receive_psn;
  config.mtu_bytes = attributes_.mtu_bytes;
  config.remote_write = attributes_.access & kRemoteWrite;
  return config;
}

// Uses the port's MTU, because a UD queue pair has no path.
transport::UdConfig QpStates::ud_config(std::uint32_t port_mtu_bytes) const {
  transport::UdConfig config;
  config.local_qpn = qpn_;
  config.qkey = attributes_.qkey;
  config.send_psn = attributes_.send_psn;
  config.mtu_bytes = port_mtu_bytes;
  return config;
}

}  // namespace gdx::softhca
