// A queue pair: fetches WQEs, connects its transport to memory and wire, writes completions. The engine
// drives it under the HCA's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "driver-shim/softhca/engine/blueflame.h"
#include "driver-shim/softhca/engine/completion_queue.h"
#include "driver-shim/softhca/engine/fair_scheduler.h"
#include "driver-shim/softhca/engine/foreign_memory.h"
#include "driver-shim/softhca/engine/hca.h"
#include "driver-shim/softhca/engine/link_clock.h"
#include "driver-shim/softhca/engine/memory_table.h"
#include "driver-shim/softhca/engine/receive_queue.h"
#include "driver-shim/softhca/engine/sides.h"
#include "driver-shim/softhca/engine/staging_audit.h"
#include "driver-shim/softhca/engine/wqe_parser.h"
#include "driver-shim/softhca/transport/dcqcn.h"
#include "driver-shim/softhca/transport/ring.h"
#include "driver-shim/softhca/transport/token_bucket.h"
#include "driver-shim/softhca/wire/wire.h"
#include "proto/roce/codec.h"

namespace gdx::softhca {

class QueuePair;

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
  std::uint64_t now_ns = 0;      // of the step in progress
  std::uint64_t link_bytes = 0;  // sent so far, with all that a packet costs on a link
  // Receive completions that wait until their ACKs have left, because a program that exits on a completion
  // must not strand its peer.
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
  // Runs work that waits for no turn and counts for no rate: timers, responses that wait for no READ's data,
  // and receives that ERROR flushes. Call it before can_send(). Returns timers run and packets sent.
  int run_unpaced(std::uint64_t now_ns);
  // Sends up to `allowance_bytes` of the link's time, the last packet perhaps beyond. Requests and responses
  // get half each, if there are both. Returns the bytes.
  std::uint64_t send_some(std::uint64_t now_ns, std::uint64_t allowance_bytes);
  // Writes a receive completion whose ACK has left, or raises an event that follows one.
  void deliver(const HcaParts::Arrival& arrival);

  Turn turn;  // state of the scheduler

  [[nodiscard]] bool busy() const;  // run_unpaced() or send_some() has work, now or later
  [[nodiscard]] bool can_send(std::uint64_t now_ns) const;
  [[nodiscard]] std::uint64_t next_deadline_ns() const;
  [[nodiscard]] transport::TransportCounters counters() const;
  // Returns the first broken invariant; nullptr: all hold.
  [[nodiscard]] const char* check_invariants() const;

 private:
  struct SendSlot {
    SendBody body;
    std::vector<StagingHold> holds;
    mlx5::WqeOpcode opcode = mlx5::WqeOpcode::kNop;  // as posted: an invalid one travels as another opcode
    std::uint16_t wqe_counter = 0;
  };
  // Cause of the queue pair's end; acted on when the transport's call has returned.
  struct Failure {
    int event_type = -1;  // enum ib_event_type, or -1: the error CQE suffices
  };

  // transport::RequesterPort
  mlx5::Syndrome send(const roce::Headers& headers, const transport::WorkRequest& request,
                      std::uint32_t offset_bytes, std::uint32_t length_bytes) override;
  mlx5::Syndrome scatter(const transport::WorkRequest& request, std::uint32_t offset_bytes,
                         std::span<const std::byte> payload) override;
  mlx5::Syndrome apply(const transport::WorkRequest& request) override;
  void complete(const transport::WorkRequest& request, mlx5::Syndrome syndrome) override;

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

  [[nodiscard]] KeyUser key_user() const { return {spec_.pd, qpn_}; }
  [[nodiscard]] transport::RcConfig rc_config() const;
  [[nodiscard]] transport::UcConfig uc_config() const;
  [[nodiscard]] transport::UdConfig ud_config() const;
  void set_qkey(std::uint32_t qkey);
  void start_receiving();
  void start_sending();
  void end_send_error();
  [[nodiscard]] bool accepts(const wire::Address& source, const roce::Bth& bth) const;
  void follow_window();
  [[nodiscard]] PeerWindow* window_to(const wire::Address& destination) const;
  [[nodiscard]] PeerWindow* request_window() const;
  [[nodiscard]] std::uint32_t requests_permitted(std::uint64_t now_ns, std::uint32_t max_packets) const;
  [[nodiscard]] std::uint32_t responses_permitted(std::uint64_t now_ns, std::uint32_t max_packets) const;
  [[nodiscard]] std::uint32_t packets_of_room(const PeerWindow* window, std::uint64_t now_ns) const;
  void charge(PeerWindow* window, std::size_t length_bytes);
  void send_requests(std::uint64_t now_ns, std::uint64_t until_link_bytes);
  void send_responses(std::uint64_t now_ns, std::uint64_t until_link_bytes);
  bool on_notification(std::uint64_t now_ns, const wire::Address& source, const roce::Decoded& packet);
  [[nodiscard]] bool controls_congestion() const;
  void follow_congestion(std::uint64_t now_ns);
  [[nodiscard]] bool paused(std::uint64_t now_ns) const { return pace_.budget_bytes(now_ns) == 0; }
  [[nodiscard]] std::uint32_t next_packets(std::uint64_t until_link_bytes) const;
  bool dispatch(std::uint64_t now_ns, const wire::Address& source, const roce::Decoded& packet);
  void reset();
  void forget_sends();
  void handle_failure();
  void note_established();
  void enter_error();
  void flush_receives();
  void forget_transport();
  void hold_staging(SendSlot& slot);
  void release_staging(SendSlot& slot);
  void report_violation(const char* what, std::uint16_t wqe_counter);
  [[nodiscard]] bool crosses_pcie(const std::byte* at) const;
  [[nodiscard]] bool can_scatter(const SendSlot& slot) const;
  // Return false for foreign memory that has gone.
  [[nodiscard]] bool load(std::byte* to, const std::byte* from, std::size_t length_bytes) const;
  [[nodiscard]] bool store(std::byte* to, const std::byte* from, std::size_t length_bytes) const;
  // Load or store a whole extent. False: foreign memory has gone, or a page on demand is absent.
  [[nodiscard]] bool load(std::byte* to, const MemoryTable::Extent& from) const;
  [[nodiscard]] bool store(const MemoryTable::Extent& to, const std::byte* from) const;
  // Returns false if the key does not give `access` to the range.
  [[nodiscard]] bool permits(std::uint32_t mkey, std::uint64_t address, std::uint64_t length_bytes,
                             std::uint32_t access) const;
  [[nodiscard]] bool load_range(std::byte* to, std::uint32_t mkey, std::uint64_t address,
                                std::uint64_t length_bytes, std::uint32_t access) const;
  [[nodiscard]] bool store_range(std::uint32_t mkey, std::uint64_t address,
                                 std::span<const std::byte> payload, std::uint32_t access) const;
  mlx5::Syndrome gather(const SendSlot& slot, std::uint32_t offset_bytes, std::span<std::byte> out) const;
  mlx5::Syndrome scatter_list(const std::vector<DataPiece>& pieces, std::uint64_t offset_bytes,
                              std::span<const std::byte> payload) const;
  void commit(const wire::Address& destination, std::size_t header_bytes, std::size_t payload_bytes,
              std::span<std::byte> packet);
  [[nodiscard]] std::span<const std::byte> send_ring() const;
  [[nodiscard]] std::uint16_t read_send_record() const;
  void fetch_ring(std::uint16_t posted);
  [[nodiscard]] const DoorbellWrite* find_copy(std::span<const DoorbellWrite> rings) const;
  void count_fetches(std::span<const DoorbellWrite> rings, int taken, int from_copies);
  void post_next(std::uint16_t available_blocks, const DoorbellWrite* copy);
  void write_completion(CompletionQueue& cq, const Completion& completion);
  void write_send_completion(const SendSlot& slot, std::uint32_t length_bytes, mlx5::Syndrome syndrome);
  std::optional<std::uint64_t> execute_by_copies(const MemoryTable::Extent& target,
                                                 const transport::AtomicOperation& operation);
  [[nodiscard]] MemoryTable::Extent atomic_target(std::uint32_t rkey, std::uint64_t address) const;

  std::uint32_t qpn_;
  QueuePairSpec spec_;
  QpAttributes attributes_;
  HcaParts& hca_;
  CompletionQueue& send_cq_;
  CompletionQueue& receive_cq_;
  ReceiveQueue own_receives_;
  ReceiveQueue& receives_;
  bool shared_receives_;

  SendSide send_side_;                 // in RTS, and in SQE and ERROR after it
  ReceiveSide receive_side_;           // in RTR, RTS and SQE
  transport::TransportCounters past_;  // of transports that a reset ended

  std::vector<std::byte> ring_copy_;  // copy of fetched WQEs, of a ring in foreign memory
  transport::Ring<SendSlot> sends_;   // taken and not completed; a request's cookie is its number
  std::uint16_t fetched_ = 0;         // WQEBBs, cumulative
  std::uint16_t completed_ = 0;       // one past the newest completed WQE
  ReceiveWqe current_receive_;        // the one taken last
  transport::Ring<std::uint16_t> taken_receives_;  // wqe_counters of those not completed, oldest first
  std::optional<Failure> failure_;
  transport::Dcqcn congestion_;
  LinkClock pace_;  // at the rate that congestion control permits
  transport::TokenBucket notification_tokens_{1, transport::kNotificationIntervalNs};
  PeerWindow* window_ = nullptr;  // to the peer of a connection; null: unbounded, or bounded by a ring
  bool established_ = false;      // event raised for the first packet in RTR
  bool violation_reported_ = false;
};

transport::TransportCounters& operator+=(transport::TransportCounters& sum,
                                         const transport::TransportCounters& more);

}  // namespace gdx::softhca
