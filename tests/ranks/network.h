// The fabric between simulated ranks, in virtual time: a link for each host, one switch between them. It
// carries RoCE packets of HCAs and has no queue pairs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "driver-shim/pcie/event_queue.h"
#include "driver-shim/pcie/world/world_config.h"
#include "driver-shim/softhca/wire/wire.h"
#include "tests/ranks/bus.h"

namespace gdx::ranks {

// A packet as its link takes it, or as the switch drops it.
struct Passed {
  std::uint64_t at_ns = 0;
  std::uint32_t source = 0;
  std::uint32_t destination = 0;
  bool dropped = false;
  std::span<const std::byte> datagram;
};

struct NetworkConfig {
  pcie::Wire link = {};  // of each host, each way; its latency is from one host's port to another's
  // [guessed] Of the switch, for each output port. A packet that finds it full is dropped.
  std::uint64_t port_buffer_bytes = 2 << 20;
  // Bytes that a NIC has given to its link and the link has not yet sent; beyond them the HCA waits.
  std::uint64_t nic_queue_bytes = 128 * 1024;
  std::function<void(const Passed&)> witness = {};
};

struct NetworkCounters {
  std::uint64_t packets = 0;
  std::uint64_t bytes = 0;  // on the wire
  std::uint64_t dropped = 0;
};

class Network {
 public:
  Network(const NetworkConfig& config, std::uint32_t hosts);

  // Between a host's NIC and its link. The first two call `done` when the packet may go on, at once or later;
  // the third is told the queue pair of each packet that the HCA takes.
  struct Nic {
    std::function<void(std::span<const std::byte> datagram, Bus::Done done)> before_sending;
    std::function<void(std::span<const std::byte> datagram, Bus::Done done)> before_delivery;
    std::function<void(std::uint32_t qpn)> taken;
  };

  // The wire of one host's HCA; it must not outlive the network.
  [[nodiscard]] std::unique_ptr<softhca::wire::Wire> attach(std::uint32_t host, Nic nic = {});
  [[nodiscard]] static softhca::wire::Address address_of(std::uint32_t host);

  [[nodiscard]] std::uint64_t now_ns() const { return events_.now() / pcie::kPsPerNs; }
  // Returns the time of the next event; kNever when nothing is under way.
  [[nodiscard]] std::uint64_t next_event_ns() const;
  void run_until(std::uint64_t when_ns) { events_.run_until(pcie::from_ns(when_ns)); }

  [[nodiscard]] const NetworkCounters& counters() const { return counters_; }
  [[nodiscard]] pcie::EventQueue& events() { return events_; }

 private:
  class HostWire;
  using PacketId = std::uint32_t;
  struct Packet {
    std::uint32_t source = 0;
    std::uint32_t destination = 0;
    bool ready = false;
    std::vector<std::byte> bytes;
  };
  struct Port {
    pcie::TimePs sending_until = 0;
    pcie::TimePs receiving_until = 0;
    std::deque<PacketId> arrived;
    Nic nic;
    // Packets not yet on the link. Packets to one queue pair keep their order; responses do not wait for
    // requests.
    std::unordered_map<std::uint32_t, std::deque<PacketId>> unsent;
    std::uint64_t unsent_bytes = 0;
  };

  void send(std::uint32_t source, std::uint32_t destination, std::span<const std::byte> datagram);
  void send_ready(std::uint32_t source, std::uint32_t flow);
  void transmit(PacketId id);
  void reach_switch(PacketId id);
  void reach_nic(PacketId id);
  void drop(PacketId id);
  void tell_witness(const Packet& packet, bool dropped) const;
  [[nodiscard]] std::uint64_t waiting_bytes(pcie::TimePs busy_until) const;
  [[nodiscard]] pcie::TimePs transfer(const Packet& packet) const;

  NetworkConfig config_;
  pcie::EventQueue events_;
  std::vector<Port> ports_;
  std::vector<Packet> packets_;
  std::vector<PacketId> free_packets_;
  NetworkCounters counters_;
};

}  // namespace gdx::ranks
