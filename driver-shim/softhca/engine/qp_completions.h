// WQEs of a queue pair from their taking to their CQE: holds what they need, completes and flushes them.
//
//   send:    take_send, the transport ... complete -> CQE
//   receive: take_receive, scatter_receive ... complete_receive -> held until its ACK has left -> deliver ->
//   CQE
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "driver-shim/softhca/engine/completion_queue.h"
#include "driver-shim/softhca/engine/qp_parts.h"
#include "driver-shim/softhca/engine/receive_queue.h"
#include "driver-shim/softhca/transport/ring.h"

namespace gdx::softhca {

class Completions {
 public:
  // `owner` is told when a held completion is due. All must outlive this.
  Completions(QpParts& parts, QueuePair& owner, CompletionQueue& send_cq, CompletionQueue& receive_cq,
              ReceiveQueue* shared_receives);
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  // Gives a fetched WQE a slot, and holds the device memory that it gathers from until it completes. Returns
  // the request for the transport. `copied`: the WQE came with its doorbell.
  transport::WorkRequest take_send(SendWqe& wqe, bool copied);
  // Completes the oldest WQE in flight, which `request` is. Releases its device memory before the completion
  // is visible.
  void complete(const transport::WorkRequest& request, mlx5::Syndrome syndrome);
  // Ends all WQEs in flight without a completion.
  void forget_sends();

  // Takes the next receive WQE. False: none is posted.
  bool take_receive();
  // Returns the posted receives; nullopt: the peer is not told their number.
  [[nodiscard]] std::optional<std::uint32_t> posted_receives() const;
  // Stores into the receive WQE taken last.
  mlx5::Syndrome scatter_receive(std::uint32_t offset_bytes, std::span<const std::byte> payload);
  // Completes the oldest taken receive WQE. Its CQE waits until deliver().
  void complete_receive(const transport::ReceiveCompletion& received);
  // Flushes receives that are taken, and those posted to a queue of this queue pair alone.
  void flush_receives();
  // Flushes receives for the error state, and raises the event that ends a shared queue's part in it.
  void end_receives();
  // Forgets taken receives, and posted ones of a queue of this queue pair alone.
  void reset_receives();
  // Keeps the address from which the datagram that is being received came.
  void set_datagram_source(const wire::Address& source) { datagram_source_ = source; }

  // Writes a receive completion whose ACK has left, or raises an event that follows one.
  void deliver(const HcaParts::HeldCompletion& held);
  // Returns the first broken invariant of the receives and the completion queues; nullptr: all hold.
  [[nodiscard]] const char* check_invariants() const;

 private:
  void hold_staging(SendSlot& slot);
  void release_staging();
  void report_violation(const char* what, std::uint16_t wqe_counter);
  void write_send(const SendSlot& slot, std::uint32_t length_bytes, mlx5::Syndrome syndrome);
  void write(CompletionQueue& cq, const Completion& completion);

  QpParts& parts_;
  QueuePair& owner_;
  CompletionQueue& send_cq_;
  CompletionQueue& receive_cq_;
  ReceiveQueue own_receives_;
  ReceiveQueue& receives_;
  bool shared_receives_;
  ReceiveWqe current_receive_;                     // the one taken last
  transport::Ring<std::uint16_t> taken_receives_;  // wqe_counters of those not completed, oldest first
  wire::Address datagram_source_;                  // source of the newest UD packet
  bool violation_reported_ = false;
};

}  // namespace gdx::softhca
