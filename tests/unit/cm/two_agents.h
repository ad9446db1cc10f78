// Two agents and the messages between them, in virtual time.
#pragma once

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

#include "driver-shim/softhca/cm/agent.h"
#include "proto/mad/cm_codec.h"

namespace gdx::softhca::cm {

inline wire::Address host(std::uint32_t last) { return wire::Address::ipv4(0x7f000000u | last); }

// Probabilities with which the network harms a message.
struct Harm {
  double loss = 0;
  double duplicate = 0;
  double reorder = 0;
};

class TwoAgents {
 public:
  class End final : private Port {
   public:
    End(TwoAgents& world, const AgentConfig& config) : world_(world), agent(config, *this) {}

   private:
    void send(const wire::Address& destination, const Message& message) override {
      sent.push_back(message);
      world_.carry(agent.config().address, destination, gdx::cm::encode(message));
    }
    void raise(const Event& event) override { events.push_back(event); }
    TwoAgents& world_;

   public:
    std::vector<Event> events;
    std::vector<Message> sent;
    Agent agent;
  };

  enum class Layer { kEthernet, kInfiniBand };
  explicit TwoAgents(std::uint64_t seed = 1, Harm harm = {}, Layer layer = Layer::kEthernet)
      : active(*this, config_of(2, 11, layer)),
        passive(*this, config_of(1, 22, layer)),
        random_(seed),
        harm_(harm) {}

  End active;
  End passive;
  std::uint64_t now_ns = 0;
  bool passive_alive = true;

  // Delivers what is under way until nothing is. Time stands still.
  void deliver_all() {
    while (!under_way_.empty()) {
      const std::size_t chosen = chance(harm_.reorder) ? random_() % under_way_.size() : 0;
      const Datagram datagram = under_way_[chosen];
      under_way_.erase(under_way_.begin() + static_cast<std::ptrdiff_t>(chosen));
      if (chance(harm_.loss)) continue;
      if (chance(harm_.duplicate)) under_way_.push_back(datagram);
      if (datagram.destination == host(2)) active.agent.on_datagram(now_ns, datagram.source, datagram.mad);
      const bool arrives = passive_alive && datagram.destination == host(1);
      if (arrives) passive.agent.on_datagram(now_ns, datagram.source, datagram.mad);
    }
  }
  // To the next timer of either end. False: there is none.
  bool advance() {
    const std::uint64_t next_ns = std::min(active.agent.next_deadline_ns(), passive.agent.next_deadline_ns());
    if (next_ns == kNever) return false;
    now_ns = std::max(now_ns, next_ns);
    active.agent.on_timer(now_ns);
    if (passive_alive) passive.agent.on_timer(now_ns);
    return true;
  }
  // Until no timer is left, or for long enough to see that there always is one.
  void run_out() {
    constexpr int kMaxTimers = 1000;
    for (int timer = 0; timer < kMaxTimers && advance(); ++timer) deliver_all();
  }
  // Loses everything under way.
  void drop() { under_way_.clear(); }

  static Message request(std::uint64_t service_id = 7) {
    Message message;
    message.service_id = service_id;
    message.path_mtu = 5;
    message.path.ack_timeout = 15;
    message.endpoint.qpn = 0x100;
    message.endpoint.responder_resources = 3;
    message.endpoint.initiator_depth = 4;
    message.private_data = {std::byte{0xab}};
    return message;
  }
  Connection& connect() {
    Connection& connection = active.agent.make(host(1));
    connection.connect(now_ns, request());
    return connection;
  }
  static gdx::cm::Gid subnet_gid(std::uint8_t last) {
    return {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last};
  }
  static std::uint16_t lid(std::uint16_t last) { return 0x300 + last; }
  // The same over InfiniBand, from the active end to the passive one.
  static Message request_by_lid() {
    Message message = request();
    message.path.local_lid = lid(2);
    message.path.remote_lid = lid(1);
    message.path.local_gid = subnet_gid(2);
    message.path.remote_gid = subnet_gid(1);
    message.path.service_level = 5;
    message.path.subnet_local = true;
    message.path.hop_limit = 0;
    return message;
  }
  static gdx::cm::Endpoint passive_endpoint() { return {.qpn = 0x200, .responder_resources = 5}; }

 private:
  static AgentConfig config_of(std::uint8_t last, std::uint64_t seed, Layer layer) {
    return {.address = host(last),
            .ca_guid = seed,
            .infiniband = layer == Layer::kInfiniBand,
            .lid = lid(last),
            .gid = subnet_gid(last),
            .random = [bits = std::mt19937(static_cast<std::mt19937::result_type>(
                           seed))]() mutable { return static_cast<std::uint32_t>(bits()); },
            .timing = {}};
  }
  struct Datagram {
    wire::Address source;
    wire::Address destination;
    gdx::cm::Mad mad;
  };
  void carry(const wire::Address& source, const wire::Address& destination, const gdx::cm::Mad& mad) {
    under_way_.push_back({source, destination, mad});
  }
  bool chance(double probability) {
    return probability > 0 && std::uniform_real_distribution<>(0, 1)(random_) < probability;
  }

  std::mt19937_64 random_;
  Harm harm_;
  std::deque<Datagram> under_way_;
};

}  // namespace gdx::softhca::cm
