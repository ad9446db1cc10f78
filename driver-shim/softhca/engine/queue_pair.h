// A queue pair: its states, its turn to send, and which part a packet or a WQE is for. The engine drives it
// under the HCA's lock.
//
//   PacketOut     packets that leave         RequestPort, ResponsePort   the transport's calls upward
//   Completions   WQEs until their CQE       QpParts                     what all of them share
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "driver-shim/softhca/engine/blueflame.h"
#include "driver-shim/softhca/engine/fair_scheduler.h"
#include "driver-shim/softhca/engine/qp_completions.h"
#include "driver-shim/softhca/engine/qp_packets.h"
#include "driver-shim/softhca/engine/qp_parts.h"
#include "driver-shim/softhca/engine/qp_ports.h"
#include "driver-shim/softhca/engine/sides.h"

namespace gdx::softhca {

class QueuePair final {
 public:
  QueuePair(std::uint32_t qpn, const QueuePairSpec& spec, HcaParts& hca, CompletionQueue& send_cq,
            CompletionQueue& receive_cq, ReceiveQueue* shared_receives);
  ~QueuePair();

  [[nodiscard]] std::uint32_t number() const { return parts_.qpn; }
  [[nodiscard]] const QueuePairSpec& spec() const { return parts_.spec; }
  // Returns the current attributes, whose PSNs are the next ones.
  [[nodiscard]] QpAttributes query() const;

  Errno modify(std::uint32_t mask, const QpAttributes& attributes);
  // Takes the WQEs that the doorbell record announces; those that came with one of `rings` from there.
  // `rings` may include other queue pairs'. Returns WQEs taken.
  int fetch_sends(std::span<const DoorbellWrite> rings);
  // Handles a packet, and the congestion mark of one that it takes. False: not from this queue pair's peer,
  // or not for its state.
  bool on_packet(std::uint64_t now_ns, const wire::Address& source, const roce::Decoded& packet, bool marked);
  // Runs work that waits for no turn and counts for no rate. That is timers, responses without a READ's data,
  // and receives that ERROR flushes. Call it before can_send(). Returns timers run and packets sent.
  int run_unpaced(std::uint64_t now_ns);
  // Sends up to `allowance_bytes` of the link's time, the last packet perhaps beyond. Requests and responses
  // get half each, if there are both. Returns the bytes.
  std::uint64_t send_some(std::uint64_t now_ns, std::uint64_t allowance_bytes);
  // Writes a receive completion whose ACK has left, or raises an event that follows one.
  void deliver(const HcaParts::HeldCompletion& held);

  Turn turn;  // state of the scheduler
  [[nodiscard]] std::uint32_t owner() const { return parts_.spec.pd; }

  [[nodiscard]] bool busy() const;  // run_unpaced() or send_some() has work, now or later
  [[nodiscard]] bool can_send(std::uint64_t now_ns) const;
  [[nodiscard]] std::uint64_t next_deadline_ns() const;
  [[nodiscard]] transport::TransportCounters counters() const;
  [[nodiscard]] FlightRecord flight() const { return parts_.flight.read(); }
  // Returns the first broken invariant; nullptr: all hold.
  [[nodiscard]] const char* check_invariants() const;

 private:
  void set_state(QpState state);
  void count_peer();
  // Acts on a failure that a call of the transport has left behind.
  void handle_failure() {
    if (parts_.states.failed()) [[unlikely]]
      end_by_failure();
  }
  void end_by_failure();
  void enter_error();
  void send_requests(std::uint64_t now_ns, std::uint64_t until_link_bytes);
  void send_responses(std::uint64_t now_ns, std::uint64_t until_link_bytes);

  QpParts parts_;
  PacketOut packets_;
  Completions completions_;
  RequestPort request_port_;
  ResponsePort response_port_;
  SendSide send_side_;                 // in RTS, and in SQE and ERROR after it
  ReceiveSide receive_side_;           // receives in RTR, RTS and SQE
  transport::TransportCounters past_;  // counters of transports that a reset ended

  std::optional<wire::Address> counted_peer_;  // in the HCA's windows; the zero address for UD
  bool responses_first_ = false;               // the next turn to send begins with responses
};

}  // namespace gdx::softhca
