// The receiving half of an RC queue pair: request packets in, memory operations and responses out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "driver-shim/softhca/transport/credits.h"
#include "driver-shim/softhca/transport/late_writes.h"
#include "driver-shim/softhca/transport/psn.h"
#include "driver-shim/softhca/transport/rc_types.h"
#include "driver-shim/softhca/transport/ring.h"
#include "driver-shim/softhca/transport/token_bucket.h"

namespace gdx::softhca::transport {

// Bounds the rate of NAKs that request a packet again (sequence error, receiver not ready). Otherwise a
// forger of requests could make this side flood their supposed sender. An honest peer is unaffected. The
// shortest RNR timer is as long as the interval, and a sequence error is reported once.
inline constexpr std::uint32_t kNakBurst = 32;
inline constexpr std::uint64_t kNakIntervalNs = 10'000;

// Order of responses: that of their requests. ACKs of WRITEs wait for pump() and merge there. ACKs that
// complete a receive, NAKs and atomic acknowledges leave from on_packet() unless a READ response is due
// before them.
// WRITEs that are late land before any answer that acknowledges them, and before a SEND, immediate data, a
// READ or an atomic is executed. States and their events:
//   idle: FIRST to in-message; ONLY, READ and atomics stay; MIDDLE and LAST are forbidden
//   in-message (SEND or WRITE): MIDDLE stays, LAST to idle, both of the message's kind only
//   dead, after a fatal NAK: every packet is ignored; there is no way back
class Responder {
 public:
  Responder(const RcConfig& config, ResponderPort& port);

  // Adopts rights and RNR timer, which may change while the queue pair works.
  void reconfigure(const RcConfig& config);
  // Handles a SEND, WRITE, READ request or atomic for this queue pair.
  void on_packet(std::uint64_t now_ns, const roce::Headers& headers, std::span<const std::byte> payload);
  // Sends pending ACKs and READ responses, at most `max_packets`, so that one long READ cannot hog the wire.
  // At most `max_read_packets` are READ responses, which need room on the wire. Responses that the peer's
  // window waits for need none. Returns packets sent.
  std::uint32_t pump(std::uint64_t now_ns, std::uint32_t max_packets,
                     std::uint32_t max_read_packets = ~std::uint32_t{0});
  // Lets late WRITEs land. Call when now_ns >= next_deadline_ns().
  void on_timer();
  [[nodiscard]] std::uint64_t next_deadline_ns() const { return late_.deadline_ns(); }
  // Returns whether pump() would send a packet; `reads` false: without READ responses.
  [[nodiscard]] bool can_send(bool reads = true) const;
  // Returns whether the peer may wait for receives to be posted: poll can_send() then.
  [[nodiscard]] bool watches_receives() const;
  [[nodiscard]] std::uint32_t expected_psn() const;
  [[nodiscard]] const TransportCounters& counters() const;
  // Returns the first broken invariant; nullptr: all hold. Call it between events.
  [[nodiscard]] const char* check_invariants() const;

 private:
  enum class Message : std::uint8_t { kNone, kSend, kWrite };

  struct Response {
    enum class Kind : std::uint8_t { kAck, kNak, kAtomic, kRead };
    Kind kind = Kind::kAck;
    [[nodiscard]] bool is_answer() const { return kind == Kind::kAtomic || kind == Kind::kRead; }
    bool duplicate = false;
    std::uint8_t syndrome = roce::kAethAck;
    std::uint32_t msn = 0;
    ExtendedPsn psn = 0;         // PSN of the next packet
    std::uint64_t original = 0;  // atomic: the value to return
    std::uint64_t address = 0;   // READ: address of the unsent rest
    std::uint32_t rkey = 0;
    std::uint32_t remaining_bytes = 0;
    std::uint32_t remaining_packets = 0;
    bool started = false;                          // READ: FIRST has been sent
    std::optional<ReceiveCompletion> completion;   // to be written after this response has left
    mlx5::Syndrome fatal = mlx5::Syndrome::kNone;  // the queue pair dies after this response has left
  };
  // An executed READ or atomic, for its duplicates.
  struct Served {
    ExtendedPsn first_psn = 0;
    ExtendedPsn end_psn = 0;
    bool atomic = false;
    std::uint64_t original = 0;  // atomic
    roce::Reth range{};          // READ
  };

  void on_duplicate(const roce::Headers& headers, const roce::OpcodeTraits& traits, ExtendedPsn psn);
  void on_duplicate_read(const roce::Reth& reth, ExtendedPsn psn, const Served& served);
  [[nodiscard]] const Served* find_served(ExtendedPsn psn, bool atomic) const;
  void remember(const Served& served);
  bool rewind(const Response& again);
  [[nodiscard]] bool admits_duplicate(ExtendedPsn psn, ExtendedPsn end) const;
  [[nodiscard]] bool sequence_permits(const roce::OpcodeTraits& traits) const;
  [[nodiscard]] bool length_permits(const roce::OpcodeTraits& traits, std::size_t payload_bytes) const;
  void on_send(const roce::Headers& headers, const roce::OpcodeTraits& traits,
               std::span<const std::byte> payload);
  void on_write(const roce::Headers& headers, const roce::OpcodeTraits& traits,
                std::span<const std::byte> payload);
  bool begin_write(const roce::Headers& headers, const roce::OpcodeTraits& traits, std::size_t payload_bytes);
  [[nodiscard]] bool place(std::span<const std::byte> payload);
  bool land_late_writes();
  void refuse_executed(ExtendedPsn psn, std::uint32_t msn);
  void on_read(const roce::Headers& headers);
  void on_atomic(const roce::Headers& headers);

  bool take_receive();
  [[nodiscard]] bool owes_credits() const;
  void note_advertised(const roce::Aeth& aeth);
  void finish_packet(const roce::Headers& headers, const roce::OpcodeTraits& traits,
                     const std::optional<ReceiveCompletion>& completion);
  void queue_ack(const std::optional<ReceiveCompletion>& completion);
  void queue_nak(std::uint8_t syndrome);
  void refuse(std::uint8_t nak, const std::optional<ReceiveCompletion>& completion = std::nullopt);
  [[nodiscard]] Response read_response(const roce::Reth& reth, ExtendedPsn psn) const;
  void send_control_responses();
  void send_control(const Response& response);
  void send_read_packet(Response& response);
  [[nodiscard]] roce::Headers response_headers(roce::Opcode opcode, const Response& response) const;

  RcConfig config_;
  ResponderPort& port_;
  TransportCounters counters_;
  ExtendedPsn expected_;
  ExtendedPsn executed_;  // PSN of the newest SEND or WRITE packet
  std::uint32_t msn_ = 0;
  bool receives_wanted_ = false;             // a message has needed one, and credits are advertised
  std::optional<std::uint32_t> advertised_;  // number of the newest message that an ACK has permitted
  bool dead_ = false;
  bool gap_reported_ = false;  // a NAK for expected_ was sent: no more until that packet comes
  std::uint64_t now_ns_ = 0;   // time of the call in progress
  TokenBucket nak_tokens_{kNakBurst, kNakIntervalNs};

  Message message_ = Message::kNone;
  std::uint32_t offset_bytes_ = 0;  // place of the next payload in its message
  std::uint32_t write_remaining_bytes_ = 0;
  roce::Reth write_{};
  LateWrites late_;

  Ring<Response> responses_;
  std::uint32_t requests_pending_ = 0;  // READs and atomics in responses_ that are no duplicates
  // Newest executed ones, a ring as long as the peer's outstanding limit. So an older one was answered, and
  // its duplicate is a stray or a replay.
  std::vector<Served> served_;
  std::size_t next_served_ = 0;
};

}  // namespace gdx::softhca::transport
