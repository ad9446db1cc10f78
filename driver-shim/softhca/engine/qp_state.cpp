#include "driver-shim/softhca/engine/qp_state.h"

#include <array>
#include <bit>
#include <cerrno>
#include <optional>

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

}  // namespace gdx::softhca
