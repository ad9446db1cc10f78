// The sending half of an RC queue pair: work requests in, request packets out, completions in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "driver-shim/softhca/transport/credits.h"
#include "driver-shim/softhca/transport/psn.h"
#include "driver-shim/softhca/transport/rc_types.h"
#include "driver-shim/softhca/transport/ring.h"
#include "driver-shim/softhca/transport/round_trip.h"

namespace gdx::softhca::transport {

// States and their events:
//   sending: post, pump, responses, timeouts; on RNR NAK to waiting, on any failure to error
//   waiting (the receiver was not ready): as sending, but nothing is sent before the RNR timer ends
//   held (the next message needs a receive that the peer has not advertised): as sending, but nothing is sent
//     until an ACK advertises it, or until the probe timer permits the message's first packet as a probe
//   error: posts are flushed at once; packets and timers are ignored; there is no way back
// An unanswered tail is resent early in all states but error. The resend uses no retry.
class Requester {
 public:
  Requester(const RcConfig& config, RequesterPort& port);

  // Adopts timeout and retry counts, which may change while the queue pair works; retries begin anew.
  void reconfigure(std::uint64_t now_ns, const RcConfig& config);
  // Queues a work request. The error state accepts it too, and flushes it at once.
  void post(const WorkRequest& request);
  // Sends as many packets as window, fences and read credits allow, at most `max_packets`. Returns packets
  // sent.
  std::uint32_t pump(std::uint64_t now_ns, std::uint32_t max_packets);
  // Handles an ACK, NAK, READ response or atomic acknowledge for this queue pair.
  void on_packet(std::uint64_t now_ns, const roce::Headers& headers, std::span<const std::byte> payload);
  // Runs due timers. Call when now_ns >= next_deadline_ns().
  void on_timer(std::uint64_t now_ns);
  [[nodiscard]] std::uint64_t next_deadline_ns() const;
  // Moves to the error state and flushes everything outstanding (modify to ERR, or a local fault).
  void fail_all(mlx5::Syndrome first);

  [[nodiscard]] bool idle() const;  // nothing outstanding, nothing queued
  [[nodiscard]] bool in_error() const;
  [[nodiscard]] bool can_send(std::uint64_t now_ns) const;  // pump() would send or complete something
  [[nodiscard]] std::uint32_t next_psn() const;
  [[nodiscard]] const TransportCounters& counters() const;
  // Returns the first broken invariant; nullptr: all hold. Call it between events.
  [[nodiscard]] const char* check_invariants() const;

 private:
  struct Entry {
    WorkRequest request;
    ExtendedPsn first_psn = 0;
    std::uint64_t message = 0;    // number of the message, as the peer's MSN counts
    std::uint32_t packets = 0;    // PSNs it takes; none for a NOP, a UMR or a local failure
    bool wants_response = false;  // READ or atomic: an ACK does not complete it
    bool takes_receive = false;   // SEND or WRITE with immediate
    bool changes_key = false;     // UMR
    mlx5::Syndrome failure = mlx5::Syndrome::kNone;  // found here, reported when the entry reaches the front

    [[nodiscard]] ExtendedPsn end_psn() const { return first_psn + packets; }
  };

  [[nodiscard]] std::uint64_t unacked_requests() const;
  [[nodiscard]] bool may_start(const Entry& entry) const;
  [[nodiscard]] bool receive_permits(const Entry& entry) const;
  [[nodiscard]] bool held() const;
  [[nodiscard]] bool wants_probe_timer() const;
  void note_held();
  void read_credits(const roce::Headers& headers);
  void pass(Entry& entry);
  mlx5::Syndrome transmit(const Entry& entry);
  mlx5::Syndrome transmit_segment(const Entry& entry);
  mlx5::Syndrome transmit_request(const Entry& entry);
  void account_sent(std::uint64_t now_ns, const Entry& entry);
  std::uint32_t send_tail(std::uint64_t now_ns);
  [[nodiscard]] std::uint64_t newest_asked() const;
  void start_timers(std::uint64_t now_ns);
  [[nodiscard]] bool awaits_acknowledge() const { return asked_end_ > unacked_; }

  void on_acknowledge(std::uint64_t now_ns, const roce::Aeth& aeth, ExtendedPsn psn);
  void on_receiver_not_ready(std::uint64_t now_ns, std::uint8_t timer_code);
  void on_response(std::uint64_t now_ns, const roce::Headers& headers, ExtendedPsn psn,
                   std::span<const std::byte> payload);
  mlx5::Syndrome accept_response(const Entry& entry, const roce::Headers& headers, ExtendedPsn psn,
                                 std::span<const std::byte> payload);

  bool acknowledge_before(std::uint64_t now_ns, ExtendedPsn end);
  void note_progress(std::uint64_t now_ns);
  void retire_local();
  void retire_front(mlx5::Syndrome syndrome);
  void recover_once(ResendCause cause);
  bool take_retry();
  void go_back(ResendCause cause);

  RcConfig config_;
  RequesterPort& port_;
  TransportCounters counters_;
  std::uint64_t ack_timeout_ns_;

  // check_invariants() states the order of the numbers below.
  Ring<Entry> queue_;
  std::uint64_t send_index_ = 0;  // entry that contains send_psn_
  ExtendedPsn unacked_;           // oldest PSN without its acknowledgement; lies in the front entry
  ExtendedPsn send_psn_;          // the next to send; goes back to unacked_ on a loss
  ExtendedPsn sent_end_;          // one past the newest ever sent
  ExtendedPsn asked_end_;         // one past the newest that requested an ACK, since the last loss
  ExtendedPsn posted_end_;        // one past the newest posted

  ReceiveLimit limit_;
  std::uint64_t newest_message_;   // number of the newest message posted
  std::uint64_t probing_ = 0;      // number of the message that probes beyond the limit; 0: none
  bool asked_ = false;             // a message has probed
  std::uint64_t newest_held_ = 0;  // number of the newest message that was counted as held

  std::uint32_t responses_pending_ = 0;      // READs and atomics in [front, send_index_)
  std::uint64_t response_psns_pending_ = 0;  // their PSNs in [unacked_, send_psn_)
  bool answered_ = false;                    // an answer has arrived
  std::uint32_t unrequested_acks_ = 0;       // packets sent since the last one that requested an ACK

  std::uint32_t retries_left_;
  std::uint32_t rnr_retries_left_;
  std::uint64_t ack_deadline_ns_ = kNever;
  RoundTrip round_trip_;
  std::uint64_t tail_deadline_ns_ = kNever;  // runs with ack_deadline_ns_
  std::uint32_t tail_packets_due_ = 0;       // to resend: 2 the oldest and the newest, 1 the newest
  std::uint32_t tail_resends_ = 0;           // tail resends since the last answer
  std::uint64_t rnr_deadline_ns_ = kNever;   // kNever: not waiting
  // kNever: not held, or another timer or packet will bring an answer
  std::uint64_t probe_deadline_ns_ = kNever;
  std::optional<ExtendedPsn> recovered_psn_;  // PSN to which a NAK has already returned the cursor
  bool in_error_ = false;
};

// Returns the nanoseconds of an RNR timer code of the AETH. Source: IBA 1.4, table 45.
[[nodiscard]] std::uint64_t rnr_timer_ns(std::uint8_t code);

}  // namespace gdx::softhca::transport
