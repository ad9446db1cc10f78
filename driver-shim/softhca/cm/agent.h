// All communication ids of one port. Finds a datagram's connection, makes one for a request that a listener
// waits for, and answers other datagrams. Pure: time and randomness are arguments. Threads: the caller
// serialises; the port must not call back.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>

#include "driver-shim/softhca/cm/connection.h"

namespace gdx::softhca::cm {

struct AgentConfig {
  wire::Address address;
  std::uint64_t ca_guid = 0;
  bool infiniband = false;  // REQs are then judged by the two below
  std::uint16_t lid = 0;
  gdx::cm::Gid gid{};
  std::uint8_t max_path_mtu = 5;  // enum ib_mtu
  // Returns 32 bits a call, for ids and first PSNs: bits that a peer cannot compute from those that it got.
  std::function<std::uint32_t()> random = {};
  Timing timing;
};

// Reason of a REJ, with the value that would be accepted, if there is one.
struct Refusal {
  RejectReason reason;
  std::vector<std::byte> information{};
};

class Agent {
 public:
  Agent(const AgentConfig& config, Port& port);

  // Starts to raise kRequest with `token` for requests for `service_id`, at most `backlog` of them unread at
  // a time. Further ones are ignored, so that the peer repeats them. False: the service has a listener
  // already.
  bool listen(std::uint64_t service_id, std::uint64_t token, std::uint32_t backlog);
  // Stops the listener. Releasing their connections rejects requests without an answer.
  void stop_listening(std::uint64_t service_id);

  // Makes a connection id for an active side, in kIdle.
  Connection& make(const wire::Address& remote);
  // Returns the connection; null if there is no such id, or its user has released it.
  [[nodiscard]] Connection* find(std::uint32_t id);
  // The user has read the request that made `id`: it no longer counts against the backlog.
  void note_read(std::uint32_t id);
  // Ends the user's interest. The connection may continue to its end by the specification, within a bound on
  // their number.
  void release(std::uint64_t now_ns, std::uint32_t id);
  // Goodbye to every peer, for the end of the process; called again, to those who have not confirmed it.
  // Returns how many of them there are.
  std::size_t release_all(std::uint64_t now_ns);

  // Handles a datagram for QP 1 from `source`. Ignores all but communication management messages.
  void on_datagram(std::uint64_t now_ns, const wire::Address& source, std::span<const std::byte> datagram);
  void on_timer(std::uint64_t now_ns);
  [[nodiscard]] std::uint64_t next_deadline_ns() const;
  [[nodiscard]] std::size_t connections() const { return connections_.size(); }
  [[nodiscard]] const AgentConfig& config() const { return config_; }

 private:
  struct Listener {
    std::uint64_t token = 0;
    std::uint32_t backlog = 0;
  };

  void on_request(std::uint64_t now_ns, const wire::Address& source, const Message& request);
  void refuse_request(const wire::Address& source, const Message& request, const Refusal& refusal);
  bool is_stale(std::uint64_t now_ns, const wire::Address& source, const Message& request);
  [[nodiscard]] Connection* find_request(const wire::Address& source, const Message& request);
  [[nodiscard]] Connection* find_rejected(const wire::Address& source, const Message& rejection);
  [[nodiscard]] std::uint32_t unread(std::uint64_t token) const;
  void answer_stranger(const wire::Address& source, const Message& message);
  void sweep();
  void forget_oldest();

  const AgentConfig config_;
  Port& port_;
  std::map<std::uint64_t, Listener> listeners_;
  std::map<std::uint32_t, std::unique_ptr<Connection>> connections_;
};

}  // namespace gdx::softhca::cm
