// Types between the RC requester and responder and their caller: configuration, work requests, counters, and
// the Ports for all effects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "proto/flight_event.h"
#include "proto/mlx5/cqe.h"
#include "proto/mlx5/wqe.h"
#include "proto/roce/headers.h"

namespace gdx::softhca::transport {

inline constexpr std::uint64_t kNever = ~std::uint64_t{0};

struct RcConfig {
  std::uint32_t local_qpn = 0;
  std::uint32_t remote_qpn = 0;
  std::uint32_t send_psn = 0;
  std::uint32_t receive_psn = 0;
  std::uint32_t first_msn = 0;  // first MSN in both directions; not 0 only in tests of the wrap
  std::uint32_t mtu_bytes = 1024;
  std::uint8_t ack_timeout = 14;         // 4.096 us << n, if short later up to 4 times; 0: never
  std::uint8_t retry_count = 7;          // 0..7, 7 is seven (not endless)
  std::uint8_t rnr_retry = 7;            // 0..7, 7 is endless
  std::uint8_t min_rnr_timer = 12;       // the code sent in RNR NAKs
  std::uint8_t max_rd_atomic = 16;       // outstanding READs and atomics, as requester
  std::uint8_t max_dest_rd_atomic = 16;  // response cache depth, as responder
  bool remote_write = false;
  bool remote_read = false;
  bool remote_atomic = false;
  std::uint32_t max_unacked_packets = 128;  // requester's window; 0: no limit
  // Responder: chooses the WRITEs that land after later ones; 0: all land in their order.
  std::uint64_t late_writes_seed = 0;
};

// Effect of an atomic on the 8 B of its target. Plain forms are masked ones with whole masks and no
// boundaries.
struct AtomicOperation {
  bool add = false;
  std::uint64_t swap_or_add = 0;
  std::uint64_t compare = 0;
  // Swap: the bits that are replaced. Add: the highest bit of each field, where the carry stops.
  std::uint64_t swap_mask_or_boundaries = 0;
  std::uint64_t compare_mask = 0;

  [[nodiscard]] constexpr std::uint64_t result(std::uint64_t original) const {
    if (add) {
      const std::uint64_t tops = swap_mask_or_boundaries | std::uint64_t{1} << 63;
      return ((original & ~tops) + (swap_or_add & ~tops)) ^ ((original ^ swap_or_add) & tops);
    }
    if (((original ^ compare) & compare_mask) != 0) return original;
    return (original & ~swap_mask_or_boundaries) | (swap_or_add & swap_mask_or_boundaries);
  }
};

// One send WQE, decoded. Its payload stays in place: the Port gathers from `cookie`.
struct WorkRequest {
  mlx5::WqeOpcode opcode = mlx5::WqeOpcode::kNop;
  std::uint8_t fm_ce_se = 0;
  std::uint16_t wqe_counter = 0;
  std::uint32_t length_bytes = 0;
  std::uint64_t remote_address = 0;
  std::uint32_t rkey = 0;
  std::uint32_t immediate = 0;  // immediate data, the rkey to invalidate, or the key that a UMR is for
  std::uint64_t swap_or_add = 0;
  std::uint64_t compare = 0;
  std::uint64_t swap_mask_or_boundaries = 0;  // masked atomics; see AtomicOperation
  std::uint64_t compare_mask = 0;
  std::uint32_t destination_qpn = 0;  // UD
  std::uint32_t qkey = 0;             // UD
  std::uint64_t cookie = 0;           // the engine's: names the gather list

  bool operator==(const WorkRequest&) const = default;
};

// All std::uint64_t, for add_counters().
struct TransportCounters {
  std::uint64_t packets_sent = 0;
  std::uint64_t packets_received = 0;
  std::uint64_t retransmitted_packets = 0;
  std::uint64_t timeouts = 0;       // local_ack_timeout_err
  std::uint64_t tail_resends = 0;   // packets resent before an ACK timeout
  std::uint64_t naks_received = 0;  // packet_seq_err
  std::uint64_t out_of_sequence = 0;
  std::uint64_t duplicate_requests = 0;
  std::uint64_t rnr_naks_received = 0;  // rnr_nak_retry_err
  std::uint64_t credit_waits = 0;       // messages that waited for a receive of the peer
  std::uint64_t credit_probes = 0;      // waiting messages that were sent as probes
  std::uint64_t credit_updates = 0;     // ACKs sent only to advertise receives
  std::uint64_t naks_sent = 0;
  std::uint64_t naks_withheld = 0;  // the rate of NAKs is bounded: see kNakIntervalNs
  std::uint64_t key_faults = 0;     // requests for memory that their key, range or right forbids
  std::uint64_t qkey_violations = 0;
  std::uint64_t out_of_buffer = 0;  // requests that found no receive WQE
};

class RequesterPort {
 public:
  virtual ~RequesterPort() = default;

  // Sends `headers`, bytes [offset, offset + length) of the work request's gather list, and the padding that
  // the headers count. Returns kNone, or the error of the local memory (then nothing was sent).
  virtual mlx5::Syndrome send(const roce::Headers& headers, const WorkRequest& request,
                              std::uint32_t offset_bytes, std::uint32_t length_bytes) = 0;
  // Stores response payload into the work request's scatter list; an atomic's original value comes as eight
  // bytes in host order.
  virtual mlx5::Syndrome scatter(const WorkRequest& request, std::uint32_t offset_bytes,
                                 std::span<const std::byte> payload) = 0;
  // Executes a work request that sends nothing but changes a memory key. Runs once, after the last send of
  // all earlier requests. Returns kNone, or the error.
  virtual mlx5::Syndrome apply(const WorkRequest& request) = 0;
  // Called once for every posted work request, in posting order. After the first one that is not
  // kNone all later ones complete with kFlushed. Must not call back into the Requester.
  virtual void complete(const WorkRequest& request, mlx5::Syndrome syndrome) = 0;
  // Called before packets from `psn` on are sent again.
  virtual void note_resend(ResendCause /*cause*/, std::uint32_t /*psn*/) {}
};

// Completion of a receive WQE taken from a RQ or SRQ.
struct ReceiveCompletion {
  mlx5::CqeOpcode opcode = mlx5::CqeOpcode::kResponderSend;
  mlx5::Syndrome syndrome = mlx5::Syndrome::kNone;
  std::uint32_t byte_count = 0;
  std::uint32_t immediate_or_rkey = 0;
  bool solicited = false;
  std::uint32_t source_qpn = 0;  // UD
  bool has_grh = false;          // UD: the first 40 bytes are the network header
};

// Returns the completion of the receive WQE that the last packet of a message completes.
inline ReceiveCompletion completion_of(const roce::Headers& headers, std::uint32_t byte_count) {
  using enum mlx5::CqeOpcode;
  const roce::OpcodeTraits& traits = roce::traits_of(headers.bth.opcode);
  return {.opcode = traits.operation == roce::Operation::kWrite ? kResponderWriteImmediate
                    : traits.has(roce::kHasImmediate)           ? kResponderSendImmediate
                    : traits.has(roce::kHasIeth)                ? kResponderSendInvalidate
                                                                : kResponderSend,
          .byte_count = byte_count,
          .immediate_or_rkey = headers.immediate,
          .solicited = headers.bth.solicited};
}

enum class RemoteOperation { kWrite, kRead, kAtomic };

class ResponderPort {
 public:
  virtual ~ResponderPort() = default;

  // Sends an ACK, NAK or atomic acknowledge.
  virtual void send(const roce::Headers& headers) = 0;
  // Sends a READ response whose payload is `length_bytes` at (rkey, address). False: access denied.
  virtual bool send_from_memory(const roce::Headers& headers, std::uint32_t rkey, std::uint64_t address,
                                std::uint32_t length_bytes) = 0;
  // Returns whether the peer may run `operation` on [address, address + length) under `rkey` in this queue's
  // PD.
  virtual bool check(RemoteOperation operation, std::uint32_t rkey, std::uint64_t address,
                     std::uint32_t length_bytes) = 0;
  virtual bool write(std::uint32_t rkey, std::uint64_t address, std::span<const std::byte> payload) = 0;
  // Runs atomically on 8 B in host byte order; returns the original. The caller has checked. nullopt: the
  // memory has gone since, and is unchanged.
  virtual std::optional<std::uint64_t> execute(std::uint32_t rkey, std::uint64_t address,
                                               const AtomicOperation& operation) = 0;

  // Takes the next receive WQE; scatter_receive() then stores into it. Earlier ones may still wait for their
  // completion; completions come in the order of taking. False: none posted.
  virtual bool take_receive() = 0;
  // Returns the number of receive WQEs that take_receive() would find. nullopt: other queue pairs share them,
  // or they are not advertised to the peer.
  [[nodiscard]] virtual std::optional<std::uint32_t> posted_receives() const { return std::nullopt; }
  // Stores into the receive WQE taken last. kLocalLength: too small; kLocalProtection: bad lkey.
  virtual mlx5::Syndrome scatter_receive(std::uint32_t offset_bytes, std::span<const std::byte> payload) = 0;
  // Completes the oldest taken receive WQE. Called after send() has got its ACK.
  virtual void complete_receive(const ReceiveCompletion& completion) = 0;
  // Invalidates a key, for SEND with invalidate. False: no such key in this PD.
  virtual bool invalidate(std::uint32_t rkey) = 0;
  // Reports an error that takes the queue pair to the error state. Called after send() has got its NAK. Taken
  // receive WQEs without completion are to be flushed. Must not destroy the Responder, which ignores every
  // later packet.
  virtual void fatal(mlx5::Syndrome syndrome) = 0;
};

}  // namespace gdx::softhca::transport
