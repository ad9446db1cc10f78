// One communication id: a pure state machine. Calls and messages with the time in, messages and events out
// through a Port. Owns no socket, clock or thread.
// Threads: the caller serialises. The port must not call back.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "driver-shim/softhca/cm/state.h"
#include "driver-shim/softhca/wire/wire.h"
#include "proto/mad/cm.h"

namespace gdx::softhca::cm {

using gdx::cm::Message;
using gdx::cm::MessageType;
using gdx::cm::RejectReason;
using PrivateData = std::vector<std::byte>;

inline constexpr std::uint64_t kNever = ~std::uint64_t{0};

// Durations are exponents, 4.096 us * 2^n, as the messages carry them.
struct Timing {
  std::uint8_t response = 17;     // until an unanswered message is sent again: 0.54 s
  std::uint8_t service = 20;      // requested in an MRA: 4.3 s
  std::uint8_t max_retries = 15;  // four bits on the wire
};

enum class EventType : std::uint8_t {
  kRequest,       // a REQ or SIDR_REQ for a listener
  kResponse,      // a REP, or an accepting SIDR_REP
  kEstablished,   // an RTU
  kRejected,      // status: RejectReason
  kUnreachable,   // no answer (status kNoAnswer), or a refusing SIDR_REP (status SidrStatus)
  kDisconnected,  // status kNoAnswer where the peer did not confirm
  kTimeWaitOver,
};
inline constexpr int kNoAnswer = -1;

struct Event {
  EventType type = EventType::kRequest;
  std::uint32_t id = 0;        // number of the connection
  std::uint64_t listener = 0;  // for a request: the value that listen() was given
  int status = 0;
  Message message;  // message that caused it, if one did
};

class Port {
 public:
  virtual ~Port() = default;
  virtual void send(const wire::Address& destination, const Message& message) = 0;
  virtual void raise(const Event& event) = 0;
};

// Attributes for a queue pair of the connection.
struct QueuePairParameters {
  wire::Address remote;
  std::uint32_t remote_qpn = 0;
  std::uint32_t send_psn = 0;
  std::uint32_t receive_psn = 0;
  std::uint8_t path_mtu = 0;  // enum ib_mtu
  std::uint8_t initiator_depth = 0;
  std::uint8_t responder_resources = 0;
  std::uint8_t retry_count = 0;
  std::uint8_t rnr_retry_count = 0;
  gdx::cm::Path path;  // path as this side sees it
};

class Connection {
 public:
  // `starting_psn`: that the peer shall begin with.
  struct Identity {
    std::uint32_t id = 0;
    std::uint64_t transaction_id = 0;
    std::uint32_t starting_psn = 0;
  };
  Connection(const Identity& identity, const wire::Address& remote, Timing timing, Port& port);

  // Calls of the user. False: the state forbids the call, and nothing has happened. `request` is a REQ or
  // SIDR_REQ without ids and timing, which are filled in here; so for the calls below.
  bool connect(std::uint64_t now_ns, Message request);
  bool resolve(std::uint64_t now_ns, Message request);
  bool accept(std::uint64_t now_ns, const gdx::cm::Endpoint& local, PrivateData private_data);
  bool reply(const Message& answer);
  bool establish();
  bool reject(std::uint64_t now_ns, RejectReason reason, PrivateData private_data);
  bool disconnect(std::uint64_t now_ns);
  // The user is gone: ends what is left as the specification would, and goes on by itself until kClosed.
  void release(std::uint64_t now_ns);
  // Sends again what the peer has not answered, before its time.
  void remind();

  // The first REQ or SIDR_REQ, of a connection just made.
  void on_request(const Message& request, std::uint64_t listener);
  // Handles later messages. Ignores those that the state does not permit.
  void on_message(std::uint64_t now_ns, const Message& message);
  void on_timer(std::uint64_t now_ns);

  [[nodiscard]] State state() const { return state_; }
  [[nodiscard]] std::uint32_t id() const { return identity_.id; }
  [[nodiscard]] std::uint32_t remote_id() const { return remote_id_; }
  [[nodiscard]] const wire::Address& remote() const { return remote_; }
  [[nodiscard]] const gdx::cm::Endpoint& peer() const { return peer_; }
  [[nodiscard]] bool passive() const { return passive_; }
  [[nodiscard]] bool owned() const { return owned_; }
  // Returns whether the user has read the request.
  [[nodiscard]] bool read() const { return read_; }
  void note_read() { read_ = true; }
  [[nodiscard]] std::uint64_t listener() const { return listener_; }
  [[nodiscard]] std::uint64_t deadline_ns() const { return deadline_ns_; }
  // Returns false before the REP and after the end: then parameters() is empty.
  [[nodiscard]] bool knows_peer() const;
  [[nodiscard]] QueuePairParameters parameters() const;

 private:
  [[nodiscard]] Message message(MessageType type) const;
  // Sends, and sends again until the state changes or the retries are used up.
  void send_persistently(std::uint64_t now_ns, State state, Message message);
  void send_reject(RejectReason reason, PrivateData private_data);
  void send_dreq(std::uint64_t now_ns);
  void raise(EventType type, int status, const Message& cause);
  void on_rep(const Message& rep);
  void on_rej(std::uint64_t now_ns, const Message& rej);
  void on_dreq(std::uint64_t now_ns, const Message& dreq);
  void on_mra(std::uint64_t now_ns, const Message& mra);
  void on_repeated_req();
  void give_up(std::uint64_t now_ns);
  void enter_time_wait(std::uint64_t now_ns);
  void close();

  const Identity identity_;
  const wire::Address remote_;
  const Timing timing_;
  Port& port_;
  State state_ = State::kIdle;
  bool passive_ = false;
  bool owned_ = true;
  bool read_ = false;
  std::uint32_t remote_id_ = 0;
  std::uint64_t listener_ = 0;
  Message request_;         // ours or the peer's
  gdx::cm::Endpoint peer_;  // the peer's own statement
  std::optional<Message> unanswered_;
  std::uint64_t deadline_ns_ = kNever;
  std::uint32_t retries_left_ = 0;
  bool stretched_ = false;  // by an MRA, since unanswered_ was last sent
};

}  // namespace gdx::softhca::cm
