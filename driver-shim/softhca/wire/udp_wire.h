// The UDP wire's parts. It is bound to port 4791, so that is the source port of everything that leaves. Over
// IPv4 a raw socket beside it tells the ids that the ICRC covers, where a peer counts them.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "driver-shim/softhca/wire/faults.h"
#include "driver-shim/softhca/wire/host_tokens.h"
#include "driver-shim/softhca/wire/icrc_check.h"
#include "driver-shim/softhca/wire/ip_ids.h"
#include "driver-shim/softhca/wire/loop.h"
#include "driver-shim/softhca/wire/pcap.h"
#include "driver-shim/softhca/wire/udp_run.h"
#include "driver-shim/softhca/wire/udp_socket.h"
#include "driver-shim/softhca/wire/wire.h"

namespace gdx::softhca::wire {

constexpr unsigned kReceiveMessages = 4;

// Reads a clock of some milliseconds' resolution, which costs a fraction of the exact one.
inline std::uint64_t coarse_ns() {
  timespec ts{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
  return static_cast<std::uint64_t>(ts.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(ts.tv_nsec);
}

// Returns whether a packet is a message of HostTokens. `datagram` has a byte at least.
inline bool is_token_message(std::span<const std::byte> datagram) {
  const auto opcode = static_cast<roce::Opcode>(datagram[0]);
  return opcode == roce::Opcode::kTokenRequest || opcode == roce::Opcode::kTokenAnswer;
}

class UdpWire final : public Wire {
 public:
  UdpWire(BoundSocket socket, const UdpConfig& config, std::shared_ptr<PcapWriter> pcap);
  ~UdpWire() override { flush(); }
  UdpWire(const UdpWire&) = delete;
  UdpWire& operator=(const UdpWire&) = delete;

  const Address& local() const override { return local_; }
  std::size_t room(const Address& destination) override { return awaits(destination) ? 0 : SIZE_MAX; }
  bool awaits(const Address& destination) override {
    return peer_at(destination).standing == HostTokens::Standing::kAwaited;
  }
  std::uint64_t next_deadline_ns() const override { return tokens_.next_deadline_ns(); }
  std::span<std::byte> begin_packet(const Address& destination) override;
  void commit_packet(const Address& destination, std::size_t length_bytes) override;
  void flush() override;
  std::size_t receive(std::size_t max_packets, const Sink& sink) override;
  bool arrival_is_marked() const override {
    return arrivals_[arrival_].ecn == roce::Ecn::kCongestionExperienced;
  }
  int poll_fd() const override { return socket_.value(); }
  bool lost() const override { return !socket_.refers(); }
  bool arm() override {
    armed_ = arrival_ == arrival_count_ && loop_.empty();
    return armed_;
  }
  std::uint16_t arrival_port() const override { return arrivals_[arrival_].from.port; }
  const WireCounters& counters() const override;
  // Half of the socket's buffer, because the kernel charges its own overhead to the buffer, too.
  std::size_t window_bytes() const override { return socket_bytes_ / 2; }
  std::size_t socket_bytes() const override { return socket_bytes_; }
  bool socket_was_drained() const override { return drained_; }
  std::uint32_t mtu_bytes() const override {
    return interface_.mtu_bytes == 0 ? Wire::mtu_bytes() : roce_mtu_within(interface_.mtu_bytes);
  }

 private:
  void append_copy(const Address& destination, std::span<const std::byte> body, const Damage& damage);
  void append(const Address& destination, std::size_t length_bytes, const Damage& damage);
  void finish_datagram(Run& run, std::size_t length_bytes, const Damage& damage);
  void send_runs();
  [[nodiscard]] HostTokens::Peer& peer_at(const Address& destination) {
    HostTokens::Peer* const known = tokens_.find(destination);
    return known != nullptr ? *known : tokens_.meet(destination, coarse_ns());
  }
  void tend_tokens();
  void release_held();
  void send_token_messages();
  void on_token_message(const Endpoint& from, std::span<const std::byte> datagram);
  [[nodiscard]] bool loops(const Address& destination) const { return loops_ && destination == local_; }
  void loop(const Run& run);
  void set_gro(bool on);
  void set_ecn();
  void look_for_ip_ids(bool on_loopback);
  bool refill();
  void take_looped();
  [[nodiscard]] bool is_forged(const Endpoint& from) const;
  bool read_socket();
  std::optional<std::uint16_t> verified_ip_id(const Endpoint& from, std::uint16_t place,
                                              std::span<const std::byte> datagram);
  enum class Verdict { kGood, kDamaged, kForged };
  struct Arrival;
  Verdict judge(const Arrival& arrival, std::uint16_t place, std::span<std::byte> datagram,
                std::uint16_t& ip_id);
  Verdict unseal(const Endpoint& from, std::uint16_t place, std::span<std::byte> datagram,
                 std::uint16_t& ip_id);
  std::size_t deliver_message(std::size_t max_packets, const Sink& sink);

  Descriptor socket_;
  Address local_;
  Interface interface_;
  FaultStage faults_;
  std::shared_ptr<PcapWriter> pcap_;
  roce::Ecn ecn_ = roce::Ecn::kNotCapable;  // field of datagrams that leave unmarked
  bool gso_ = false;
  std::size_t socket_bytes_;
  mutable WireCounters counters_;  // the kernel's own are fetched when they are asked for

  std::vector<std::byte> arena_;
  std::size_t used_ = 0;
  std::vector<Run> runs_;
  IcrcCalculator calculator_;

  IcrcChecker checker_;
  std::optional<IpIdReader> ip_ids_;
  std::string no_ip_ids_;  // reason for their absence although a peer may need them; empty once logged
  bool gro_ = false;
  // Arguments of recvmmsg, made once, so that an empty poll costs no more than its system call.
  struct ReceiveBatch {
    struct alignas(cmsghdr) Control {
      std::byte bytes[2 * CMSG_SPACE(sizeof(int)) + 32];
    };
    ReceiveBatch();
    ReceiveBatch(const ReceiveBatch&) = delete;
    ReceiveBatch& operator=(const ReceiveBatch&) = delete;
    std::array<mmsghdr, kReceiveMessages> messages{};
    std::array<iovec, kReceiveMessages> vectors{};
    std::array<sockaddr_storage, kReceiveMessages> names{};
    std::array<Control, kReceiveMessages> controls{};
    std::vector<std::byte> buffer;
  };
  ReceiveBatch batch_;
  // As many as came at once the last time: who asks for more than wait pays for a look at an empty queue.
  unsigned wanted_ = 1;
  struct Arrival {
    Endpoint from;
    std::size_t length_bytes = 0;
    std::size_t segment_bytes = 0;
    // Field of all joined datagrams: the kernel joins only those that agree in it.
    roce::Ecn ecn = roce::Ecn::kNotCapable;
    std::byte* bytes = nullptr;
    bool bare = false;     // see Run
    bool forged = false;   // the datagram does not come from where it says
    bool guarded = false;  // it must have a token, because any user of this host may name that address
  };
  std::array<Arrival, kReceiveMessages> arrivals_;
  bool drained_ = false;
  std::size_t arrival_count_ = 0;
  std::size_t arrival_ = 0;         // the message being delivered
  std::size_t arrival_offset_ = 0;  // bytes of it that are delivered

  bool loops_;  // packets to the own address go through loop_
  Loop loop_;
  bool loop_had_turn_ = false;  // the newest message came from it
  // The next run into it must make the socket readable. Stays while others receive, because a thread may
  // sleep meanwhile.
  bool armed_ = false;

  HostTokens tokens_;
  struct Held {
    Address destination;
    std::vector<std::byte> body;
    Damage damage;
  };
  std::vector<Held> held_;  // packets that wait for a token
  std::size_t held_bytes_ = 0;
};

}  // namespace gdx::softhca::wire
