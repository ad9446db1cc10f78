// The queue pair state machine: the permitted transitions of modify with their required attributes, the
// attributes themselves, and failures.
// Source: InfiniBand Architecture Specification 1.4, section 10.3.1 and table 96 (queue pair transition).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "driver-shim/softhca/engine/hca.h"
#include "driver-shim/softhca/transport/rc.h"
#include "driver-shim/softhca/transport/uc.h"
#include "driver-shim/softhca/transport/ud.h"

namespace gdx::softhca {

// Returns 0, or EINVAL: the transition is forbidden, lacks a required attribute, or an attribute is out of
// range.
[[nodiscard]] Errno check_modify(QpType type, QpState from, std::uint32_t mask,
                                 const QpAttributes& attributes);

class QpStates {
 public:
  QpStates(QpType type, std::uint32_t qpn) : type_(type), qpn_(qpn) {}

  [[nodiscard]] const QpAttributes& attributes() const { return attributes_; }
  [[nodiscard]] QpState state() const { return attributes_.state; }
  // Returns whether WQEs are fetched: to be sent, or flushed.
  [[nodiscard]] bool fetches() const {
    return state() == QpState::kRts || state() == QpState::kSqe || state() == QpState::kError;
  }
  // Returns whether packets may leave.
  [[nodiscard]] bool sends() const { return state() == QpState::kRts || state() == QpState::kRtr; }

  // Takes the attributes of `mask`; a permitted transition is left to move_to(). Errors: those of
  // check_modify(), and EINVAL for an MTU or a kind of address that the port has not.
  [[nodiscard]] Errno modify(std::uint32_t mask, const QpAttributes& asked, std::uint32_t port_mtu_bytes,
                             bool port_is_ipv4);
  void move_to(QpState state) { attributes_.state = state; }
  // Keeps the PSNs that follow those of a transport that ends.
  void set_send_psn(std::uint32_t psn) { attributes_.send_psn = psn; }
  // Returns true for the first packet in RTR of a connection.
  bool establish();
  void reset();

  // Records a failure, on which take_failure() acts when the transport's call has returned. A later failure
  // with an event replaces an earlier one. kNoEvent: the error CQE suffices.
  static constexpr int kNoEvent = -1;
  void fail(int event_type = kNoEvent) {
    if (event_type != kNoEvent || !failure_) failure_ = event_type;
  }
  void forget_failure() { failure_.reset(); }
  struct End {
    QpState state = QpState::kError;
    int event_type = kNoEvent;  // enum ib_event_type
  };
  [[nodiscard]] bool failed() const { return failure_.has_value(); }
  // Returns the state to which a recorded failure leads; nullopt without one, or in ERROR.
  [[nodiscard]] std::optional<End> take_failure();

  // Return the configurations of the transports. `window_bytes`: most bytes under way.
  [[nodiscard]] transport::RcConfig rc_config(std::size_t window_bytes) const;
  [[nodiscard]] transport::UcConfig uc_config() const;
  [[nodiscard]] transport::UdConfig ud_config(std::uint32_t port_mtu_bytes) const;

 private:
  QpType type_;
  std::uint32_t qpn_;
  QpAttributes attributes_;
  std::optional<int> failure_;
  bool established_ = false;
};

}  // namespace gdx::softhca
