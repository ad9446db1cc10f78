// A queue pair: fetches WQEs, connects its transport to memory and wire, writes completions. The engine
// drives it under the HCA's lock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/flight_recorder.h"
#include "driver-shim/softhca/engine/blueflame.h"
#include "driver-shim/softhca/engine/completion_queue.h"
#include "driver-shim/softhca/engine/fair_scheduler.h"
#include "driver-shim/softhca/engine/foreign_memory.h"
#include "driver-shim/softhca/engine/hca.h"
#include "driver-shim/softhca/engine/late_writes.h"
#include "driver-shim/softhca/engine/memory_access.h"
#include "driver-shim/softhca/engine/memory_table.h"
#include "driver-shim/softhca/engine/pacer.h"
#include "driver-shim/softhca/engine/qp_state.h"
#include "driver-shim/softhca/engine/receive_queue.h"
#include "driver-shim/softhca/engine/send_queue.h"
#include "driver-shim/softhca/engine/sides.h"
#include "driver-shim/softhca/engine/staging_audit.h"
#include "driver-shim/softhca/engine/wqe_parser.h"
#include "driver-shim/softhca/transport/ring.h"
#include "driver-shim/softhca/wire/wire.h"
#include "proto/roce/codec.h"
#include "proto/roce/ip_header.h"

namespace gdx::softhca {

class QueuePair;

inline constexpr std::size_t kFlightEvents = 128;  // of a queue pair, which its recorder keeps

// Parts that the queue pairs of one HCA share.
struct HcaParts {
  HcaConfig config;
  PeerWindows windows;
  std::unique_ptr<wire::Wire> wire;
  std::byte* device_memory = nullptr;
  StagingAudit staging;
  // The WQE that is being taken: its lists are swapped with those of one that has completed.
  SendWqe taken = {};
  MemoryTable memory;
  ForeignMemory foreign;
  HcaCounters counters;
  LateWrites late;
  std::uint64_t now_ns = 0;      // of the step in progress
  std::uint64_t link_bytes = 0;  // sent so far, with all that a packet costs on a link
  std::atomic<std::uint64_t> failed_queue_pairs{0};
  // Receive completions that wait until their ACKs have left. A program that exits on a completion must not
  // strand its peer.
  struct Arrival {
    QueuePair* qp;
    Completion completion;
    int event_type = -1;  // no completion but an event that must not overtake earlier ones
  };
  std::vector<Arrival> arrivals;
};

class QueuePair final : private transport::RequesterPort, private transport::ResponderPort {
 public:
  QueuePair(std::uint32_t qpn, const QueuePairSpec& spec, HcaParts& hca, CompletionQueue& send_cq,
            CompletionQueue& receive_cq, ReceiveQueue* shared_receives);
  ~QueuePair() override;
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  [[nodiscard]] std::uint32_t number() const { return qpn_; }
  [[nodiscard]] const QueuePairSpec& spec() const { return spec_; }
  // Returns the current attributes, whose PSNs are the next ones.
  [[nodiscard]] QpAttributes query() const;

  Errno modify(std::uint32_t mask, const QpAttributes& attributes);
  // Takes the WQEs that the doorbell record announces; those that came with one of `rings` from there.
  // `rings` may include other queue pairs'. Returns WQEs taken.
  int fetch_sends(std::span<const DoorbellWrite> rings);
  // Handles a packet. False: not from this queue pair's peer, or not for its state.
  bool on_packet(std::uint64_t now_ns, const wire::Address& source, const roce::Decoded& packet);
  // Handles the mark of a packet that it took: sends a CNP, at a limited rate.
  void on_marked(std::uint64_t now_ns, const roce::Bth& bth);
  // Runs work that waits for no turn and counts for no rate. That is timers, responses without a READ's data,
  // and receives that ERROR flushes. Call it before can_send(). Returns timers run and packets sent.
  int run_unpaced(std::uint64_t now_ns);
  // Sends up to `allowance_bytes` of the link's time, the last packet perhaps beyond. Requests and responses
  // get half each, if there are both. Returns the bytes.
  std::uint64_t send_some(std::uint64_t now_ns, std::uint64_t allowance_bytes);
  // Writes a receive completion whose ACK has left, or raises an event that follows one.
  void deliver(const HcaParts::Arrival& arrival);

  Turn turn;  // state of the scheduler
  [[nodiscard]] std::uint32_t owner() const { return spec_.pd; }

  [[nodiscard]] bool busy() const;  // run_unpaced() or send_some() has work, now or later
  [[nodiscard]] bool can_send(std::uint64_t now_ns) const;
  [[nodiscard]] std::uint64_t next_deadline_ns() const;
  [[nodiscard]] transport::TransportCounters counters() const;
  [[nodiscard]] FlightRecord flight() const;
  // Returns the first broken invariant; nullptr: all hold.
  [[nodiscard]] const char* check_invariants() const;

 private:
  // transport::RequesterPort
  mlx5::Syndrome send(const roce::Headers& headers, const transport::WorkRequest& request,
                      std::uint32_t offset_bytes, std::uint32_t length_bytes) override;
  mlx5::Syndrome scatter(const transport::WorkRequest& request, std::uint32_t offset_bytes,
                         std::span<const std::byte> payload) override;
  mlx5::Syndrome apply(const transport::WorkRequest& request) override;
  void complete(const transport::WorkRequest& request, mlx5::Syndrome syndrome) override;
  void note_resend(ResendCause cause, std::uint32_t psn) override;

  // transport::ResponderPort
  void send(const roce::Headers& headers) override;
  bool send_from_memory(const roce::Headers& headers, std::uint32_t rkey, std::uint64_t address,
                        std::uint32_t length_bytes) override;
  bool check(transport::RemoteOperation operation, std::uint32_t rkey, std::uint64_t address,
             std::uint32_t length_bytes) override;
  bool write(std::uint32_t rkey, std::uint64_t address, std::span<const std::byte> payload) override;
  std::optional<std::uint64_t> execute(std::uint32_t rkey, std::uint64_t address,
                                       const transport::AtomicOperation& operation) override;
  bool take_receive() override;
  [[nodiscard]] std::optional<std::uint32_t> posted_receives() const override;
  mlx5::Syndrome scatter_receive(std::uint32_t offset_bytes, std::span<const std::byte> payload) override;
  void complete_receive(const transport::ReceiveCompletion& completion) override;
  bool invalidate(std::uint32_t rkey) override;
  void fatal(mlx5::Syndrome syndrome) override;

  [[nodiscard]] transport::RcConfig rc_config() const;
  void set_state(QpState state);
  void count_peer();
  void note(const FlightEvent& event);
  template <typename Side, typename Port>
  void start(Side& side, Port& port);
  void end_send_error();
  [[nodiscard]] bool accepts(const wire::Address& source, const roce::Bth& bth) const;
  [[nodiscard]] PeerWindow* request_window() const;
  [[nodiscard]] std::uint32_t requests_permitted(std::uint64_t now_ns, std::uint32_t max_packets) const;
  void send_requests(std::uint64_t now_ns, std::uint64_t until_link_bytes);
  void send_responses(std::uint64_t now_ns, std::uint64_t until_link_bytes);
  bool on_notification(std::uint64_t now_ns, const wire::Address& source, const roce::Decoded& packet);
  [[nodiscard]] std::uint32_t next_packets(std::uint64_t until_link_bytes) const;
  bool dispatch(std::uint64_t now_ns, const wire::Address& source, const roce::Decoded& packet);
  [[nodiscard]] std::array<std::byte, roce::kGrhBytes> grh_of(const wire::Address& source,
                                                              const roce::Decoded& packet) const;
  void reset();
  void forget_sends();
  // Acts on a failure that a call of the transport has left behind.
  void handle_failure() {
    if (states_.failed()) [[unlikely]]
      end_by_failure();
  }
  void end_by_failure();
  void enter_error();
  void flush_receives();
  void hold_staging(SendSlot& slot);
  void release_staging();
  void report_violation(const char* what, std::uint16_t wqe_counter);
  void report_relaxed_signal(std::uint32_t rkey);
  // Sends a packet whose payload `fill` stores. Returns its bytes; 0: `fill` has returned false.
  template <typename Fill>
  std::size_t transmit(const wire::Address& destination, bool global, const roce::Headers& headers,
                       std::size_t payload_bytes, Fill fill);
  // The same to the peer of a connection.
  template <typename Fill>
  std::size_t transmit(const roce::Headers& headers, std::size_t payload_bytes, Fill fill);
  [[nodiscard]] std::uint16_t pkey() const { return hca_.config.pkeys[states_.attributes().pkey_index]; }
  void post(SendWqe& wqe, bool copied);
  void write_completion(CompletionQueue& cq, const Completion& completion);
  void write_send_completion(const SendSlot& slot, std::uint32_t length_bytes, mlx5::Syndrome syndrome);

  std::uint32_t qpn_;
  QueuePairSpec spec_;
  QpStates states_;
  HcaParts& hca_;
  MemoryAccess memory_;
  CompletionQueue& send_cq_;
  CompletionQueue& receive_cq_;
  ReceiveQueue own_receives_;
  ReceiveQueue& receives_;
  bool shared_receives_;

  SendSide send_side_;                 // in RTS, and in SQE and ERROR after it
  ReceiveSide receive_side_;           // in RTR, RTS and SQE
  transport::TransportCounters past_;  // of transports that a reset ended

  SendQueue sends_;                                // a request's cookie is its slot's number
  ReceiveWqe current_receive_;                     // the one taken last
  transport::Ring<std::uint16_t> taken_receives_;  // wqe_counters of those not completed, oldest first
  wire::Address datagram_source_;                  // of the newest UD packet
  Pacer pacer_;
  std::optional<wire::Address> counted_peer_;  // in the HCA's windows; the zero address for UD
  bool violation_reported_ = false;
  bool relaxed_signal_reported_ = false;
  bool responses_first_ = false;  // in the next turn to send
  FlightRecorder<kFlightEvents> flight_;
  FlightEvent flush_{.kind = FlightKind::kFlush};  // all flushed WQEs that flight_ does not have
};

}  // namespace gdx::softhca
