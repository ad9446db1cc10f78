#include "tests/ranks/network.h"

#include <algorithm>
#include <array>
#include <utility>

#include "driver-shim/softhca/transport/rc_types.h"
#include "proto/roce/codec.h"

namespace gdx::ranks {
namespace {

using softhca::wire::Address;

constexpr std::uint32_t kFirstAddress = 0x0a000001;  // 10.0.0.1
constexpr std::uint32_t kBthBytes = 12;              // counted in the link's overhead and in the datagram
constexpr double kBitsPerByte = 8;

}  // namespace

class Network::HostWire final : public softhca::wire::Wire {
 public:
  HostWire(Network& network, std::uint32_t host)
      : network_(network), host_(host), address_(address_of(host)) {}

  const Address& local() const override { return address_; }
  std::size_t room(const Address& /*destination*/) override {
    const Port& port = network_.ports_[host_];
    const std::uint64_t waiting = port.unsent_bytes + network_.waiting_bytes(port.sending_until);
    const std::uint64_t limit = network_.config_.nic_queue_bytes;
    return waiting >= limit ? 0 : (limit - waiting) / softhca::wire::kMaxPacketBytes + 1;
  }
  std::span<std::byte> begin_packet(const Address& /*destination*/) override { return packet_; }
  void commit_packet(const Address& destination, std::size_t length_bytes) override {
    ++counters_.packets_sent;
    const std::uint32_t to = destination.ipv4_host_order() - kFirstAddress;
    if (!destination.is_ipv4() || to >= network_.ports_.size()) {
      ++counters_.send_errors;
      return;
    }
    network_.send(host_, to, std::span(packet_).first(length_bytes));
  }
  void flush() override {}
  std::size_t receive(std::size_t max_packets, const Sink& sink) override {
    std::deque<PacketId>& arrived = network_.ports_[host_].arrived;
    const std::size_t count = std::min(max_packets, arrived.size());
    for (std::size_t i = 0; i < count; ++i) {
      const PacketId id = arrived.front();
      arrived.pop_front();
      const Packet& packet = network_.packets_[id];
      if (const auto& taken = network_.ports_[host_].nic.taken)
        taken(roce::decode(packet.bytes)->headers.bth.destination_qpn);
      sink(address_of(packet.source), packet.bytes);
      network_.free_packets_.push_back(id);
    }
    counters_.packets_received += count;
    return count;
  }
  int poll_fd() const override { return -1; }  // nobody sleeps in virtual time
  bool arm() override { return network_.ports_[host_].arrived.empty(); }
  const softhca::wire::WireCounters& counters() const override { return counters_; }

 private:
  Network& network_;
  std::uint32_t host_;
  Address address_;
  softhca::wire::WireCounters counters_;
  std::array<std::byte, softhca::wire::kMaxPacketBytes> packet_{};
};

Network::Network(const NetworkConfig& config, std::uint32_t hosts) : config_(config), ports_(hosts) {}

std::unique_ptr<softhca::wire::Wire> Network::attach(std::uint32_t host, Nic nic) {
  ports_[host].nic = std::move(nic);
  return std::make_unique<HostWire>(*this, host);
}

Address Network::address_of(std::uint32_t host) { return Address::ipv4(kFirstAddress + host); }

std::uint64_t Network::next_event_ns() const {
  if (events_.empty()) return softhca::transport::kNever;
  return (events_.next_at() + pcie::kPsPerNs - 1) / pcie::kPsPerNs;
}

std::uint64_t Network::waiting_bytes(pcie::TimePs busy_until) const {
  if (busy_until <= events_.now()) return 0;
  const double seconds = static_cast<double>(busy_until - events_.now()) / pcie::kPsPerSecond;
  return static_cast<std::uint64_t>(seconds * config_.link.bits_per_s / kBitsPerByte);
}

pcie::TimePs Network::transfer(const Packet& packet) const {
  const double on_wire =
      static_cast<double>(packet.bytes.size()) + config_.link.packet_overhead_bytes - kBthBytes;
  return pcie::transfer_ps(on_wire, config_.link.bits_per_s / kBitsPerByte);
}

void Network::send(std::uint32_t source, std::uint32_t destination, std::span<const std::byte> datagram) {
  if (free_packets_.empty()) {
    free_packets_.push_back(static_cast<PacketId>(packets_.size()));
    packets_.emplace_back();
  }
  const PacketId id = free_packets_.back();
  free_packets_.pop_back();
  Packet& packet = packets_[id];
  packet.source = source;
  packet.destination = destination;
  packet.bytes.assign(datagram.begin(), datagram.end());
  packet.ready = false;
  Port& port = ports_[source];
  if (!port.nic.before_sending) return transmit(id);
  const roce::Bth bth = roce::decode(datagram)->headers.bth;
  const std::uint32_t flow =
      bth.destination_qpn << 1 | (is_response(roce::traits_of(bth.opcode).operation) ? 1 : 0);
  port.unsent[flow].push_back(id);
  port.unsent_bytes += datagram.size();
  port.nic.before_sending(datagram, [this, id, source, flow] {
    packets_[id].ready = true;
    send_ready(source, flow);
  });
}

void Network::send_ready(std::uint32_t source, std::uint32_t flow) {
  Port& port = ports_[source];
  std::deque<PacketId>& unsent = port.unsent[flow];
  while (!unsent.empty() && packets_[unsent.front()].ready) {
    port.unsent_bytes -= packets_[unsent.front()].bytes.size();
    transmit(unsent.front());
    unsent.pop_front();
  }
}

void Network::transmit(PacketId id) {
  const Packet& packet = packets_[id];
  tell_witness(packet, false);
  ++counters_.packets;
  counters_.bytes += packet.bytes.size() + config_.link.packet_overhead_bytes - kBthBytes;
  Port& port = ports_[packet.source];
  const pcie::TimePs begin = std::max(events_.now(), port.sending_until);
  port.sending_until = begin + transfer(packet);
  // The switch cuts through: it sends on what has begun to arrive.
  events_.at(begin + pcie::from_ns(config_.link.latency_ns),
             [this, id](pcie::TimePs /*now*/) { reach_switch(id); });
}

void Network::reach_switch(PacketId id) {
  Port& port = ports_[packets_[id].destination];
  if (waiting_bytes(port.receiving_until) > config_.port_buffer_bytes) return drop(id);
  port.receiving_until = std::max(events_.now(), port.receiving_until) + transfer(packets_[id]);
  events_.at(port.receiving_until, [this, id](pcie::TimePs /*now*/) { reach_nic(id); });
}

void Network::reach_nic(PacketId id) {
  Port& port = ports_[packets_[id].destination];
  if (!port.nic.before_delivery) return port.arrived.push_back(id);
  port.nic.before_delivery(packets_[id].bytes, [&port, id] { port.arrived.push_back(id); });
}

void Network::tell_witness(const Packet& packet, bool dropped) const {
  if (config_.witness)
    config_.witness({now_ns(), packet.source, packet.destination, dropped, std::span(packet.bytes)});
}

void Network::drop(PacketId id) {
  tell_witness(packets_[id], true);
  ++counters_.dropped;
  free_packets_.push_back(id);
}

}  // namespace gdx::ranks
