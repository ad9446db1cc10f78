// Wire that carries packets to HCAs of this host through shared memory, all others through the wire below.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <unordered_map>
#include <vector>

#include "driver-shim/softhca/wire/faults.h"
#include "driver-shim/softhca/wire/links.h"
#include "driver-shim/softhca/wire/pcap.h"
#include "driver-shim/softhca/wire/wire.h"

namespace gdx::softhca::wire {

class SharedMemoryWire final : public Wire {
 public:
  struct Parts {
    std::unique_ptr<Wire> udp;
    bool udp_carries = true;  // false: it only holds the address
    std::shared_ptr<PcapWriter> capture;
    Descriptor listener;
    Descriptor epoll;
  };
  // `parts.epoll` watches the listener, and UDP where it carries.
  SharedMemoryWire(Parts parts, const FaultConfig& faults);
  ~SharedMemoryWire() override { flush(); }
  SharedMemoryWire(const SharedMemoryWire&) = delete;
  SharedMemoryWire& operator=(const SharedMemoryWire&) = delete;

  const Address& local() const override { return udp_->local(); }
  std::size_t room(const Address& destination) override;
  bool awaits(const Address& destination) override {
    return udp_carries_ && route(destination) == nullptr && udp_->awaits(destination);
  }
  std::uint64_t next_deadline_ns() const override { return udp_->next_deadline_ns(); }
  std::span<std::byte> begin_packet(const Address& destination) override;
  void commit_packet(const Address& destination, std::size_t length_bytes) override;
  // Packets to the own address are read from this thread's cache.
  bool streams() const override { return begun_in_ring_ && !begun_for_itself_ && !with_icrc_; }
  void flush() override;
  std::size_t receive(std::size_t max_packets, const Sink& sink) override;
  bool arrival_is_marked() const override;
  std::uint16_t arrival_port() const override { return in_udp_ ? udp_->arrival_port() : 0; }
  int poll_fd() const override { return epoll_.value(); }
  // Leaves the epoll descriptor unchecked, because all epoll descriptors share one inode.
  bool lost() const override { return udp_->lost() || !listener_.refers(); }
  bool arm() override;
  const WireCounters& counters() const override;
  // Bounds by UDP's window too, because any destination may be one for UDP.
  std::size_t window_bytes() const override {
    return udp_carries_ ? std::min(Wire::window_bytes(), udp_->window_bytes()) : Wire::window_bytes();
  }
  std::uint32_t mtu_bytes() const override { return udp_carries_ ? udp_->mtu_bytes() : Wire::mtu_bytes(); }
  std::size_t socket_bytes() const override { return udp_carries_ ? udp_->socket_bytes() : 0; }
  bool socket_was_drained() const override { return polled_udp_ && udp_->socket_was_drained(); }
  // Returns whether a ring leads there, because a ring admits only packets that fit.
  bool holds_back(const Address& destination) override { return route(destination) != nullptr; }

 private:
  struct AddressHash {
    std::size_t operator()(const Address& address) const;
  };
  struct Peer {
    std::unique_ptr<OutgoingLink> link;  // null: over UDP
    std::uint64_t retry_at_ns = 0;
  };
  struct Caller {
    Descriptor socket;
  };

  [[nodiscard]] Peer& peer_at(const Address& destination);
  [[nodiscard]] OutgoingLink* route(const Address& destination);
  [[nodiscard]] Result<std::unique_ptr<OutgoingLink>> connect(const Address& destination);
  void hang_up(const Address& destination, Peer& peer);
  void report_refusal(const std::string& what);
  void emit(const Address& destination, std::span<const std::byte> body, const Damage& damage);
  void append(OutgoingLink& link, const Address& destination, std::span<std::byte> place,
              std::size_t length_bytes, const Damage& damage);

  std::size_t poll_descriptors(std::uint64_t now_ns, std::size_t max_packets, const Sink& sink);
  void take_call();
  void read_call(int fd);
  void adopt(const Address& source, Descriptor socket, int memory_fd);
  void on_link_event(int fd, const Sink& sink);
  std::size_t receive_udp(std::size_t max_packets, const Sink& sink);
  std::size_t drain(IncomingLink& link, std::size_t max_packets, const Sink& sink);
  void deliver(const Address& source, const RingConsumer::Packet& packet, const Sink& sink);
  void disarm();

  std::unique_ptr<Wire> udp_;
  bool udp_carries_;
  std::shared_ptr<PcapWriter> capture_;
  Descriptor listener_;
  Descriptor epoll_;
  FaultStage faults_;
  bool with_icrc_;  // packets that may be damaged or captured carry an ICRC
  WireCounters own_;
  mutable WireCounters sum_;

  std::unordered_map<Address, Peer, AddressHash> peers_;
  Address last_destination_{};  // address of last_peer_
  Peer* last_peer_ = nullptr;
  OutgoingLink* begun_ = nullptr;  // link of the packet that is being filled; null: it goes over UDP
  bool begun_in_ring_ = false;
  bool begun_for_itself_ = false;
  std::vector<OutgoingLink*> unpublished_;
  std::array<std::byte, kMaxPacketBytes> scratch_;

  std::vector<Caller> callers_;  // have not yet sent their address
  std::vector<std::unique_ptr<IncomingLink>> incoming_;
  std::size_t first_incoming_ = 0;  // the link to serve first, rotated
  std::uint64_t refusals_ = 0;
  bool marked_ = false;  // the packet that sink has from a link
  bool in_udp_ = false;  // the packet that sink has came over UDP
  bool polled_udp_ = false;
  bool armed_ = false;
  std::uint64_t next_poll_ns_ = 0;     // time of the next poll of the descriptors
  std::uint64_t udp_until_ns_ = 0;     // time until which every receive() polls UDP
  std::vector<std::byte> for_record_;  // a packet with the ICRC that it did not carry
};

}  // namespace gdx::softhca::wire
