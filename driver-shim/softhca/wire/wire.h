// What carries packets between software HCAs. A Wire moves datagrams (BTH to ICRC) and knows nothing
// of queue pairs. Not thread-safe: the HCA's engine lock serialises all calls.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"

namespace gdx::softhca::wire {

// An IPv6 address, or an IPv4 one mapped into ::ffff:0:0/96: exactly a RoCE v2 GID.
struct Address {
  std::array<std::uint8_t, 16> gid{};

  // As two words: a packet's source is compared on the hot path, where a call of memcmp shows.
  bool operator==(const Address& other) const { return words() == other.words(); }
  [[nodiscard]] bool is_ipv4() const {
    return words()[0] == 0 && gid[8] == 0 && gid[9] == 0 && gid[10] == 0xff && gid[11] == 0xff;
  }
  [[nodiscard]] static Address ipv4(std::uint32_t host_order);
  [[nodiscard]] static Result<Address> parse(const std::string& text);
  [[nodiscard]] std::uint32_t ipv4_host_order() const;
  [[nodiscard]] std::string text() const;

 private:
  [[nodiscard]] std::array<std::uint64_t, 2> words() const {
    return std::bit_cast<std::array<std::uint64_t, 2>>(gid);
  }
};

// Probabilities in [0, 1], applied to packets as they are sent, from one seeded generator.
struct FaultConfig {
  double loss = 0;
  double corrupt = 0;  // one random bit of the datagram is flipped
  double duplicate = 0;
  double reorder = 0;  // the packet is held back behind the next one
  double mark = 0;     // as by a switch whose queue is long (ECN: congestion experienced)
  std::uint64_t seed = 1;
};

struct WireCounters {
  std::uint64_t packets_sent = 0;
  std::uint64_t packets_received = 0;
  std::uint64_t faults_lost = 0;
  std::uint64_t faults_corrupted = 0;
  std::uint64_t faults_marked = 0;
  std::uint64_t icrc_errors = 0;  // arrivals whose ICRC was wrong: dropped
  std::uint64_t send_errors = 0;  // the kernel refused the datagram, or a ring was full: treated as lost
  std::uint64_t shared_memory_sent = 0;  // of packets_sent, those that took shared memory
  std::uint64_t socket_drops = 0;        // arrivals for which the UDP socket had no room
};

inline constexpr std::size_t kMaxPacketBytes = 4096 + 64;

class Wire {
 public:
  virtual ~Wire() = default;

  // The address this wire answers on.
  [[nodiscard]] virtual const Address& local() const = 0;
  // How many packets to `destination` can be begun before they would be lost for want of room here.
  [[nodiscard]] virtual std::size_t room(const Address& destination) = 0;
  // Room for one outgoing datagram of BTH to padding, at most kMaxPacketBytes. Fill it, then commit.
  [[nodiscard]] virtual std::span<std::byte> begin_packet(const Address& destination) = 0;
  // Whether nobody here looks at what begin_packet() gave once it is filled: it need not stay in our cache.
  [[nodiscard]] virtual bool streams() const { return false; }
  // Queues the datagram, ICRC appended where the wire needs one; it leaves at the latest at flush().
  // `destination` as begun.
  virtual void commit_packet(const Address& destination, std::size_t length_bytes) = 0;
  virtual void flush() = 0;

  // Hands up to `max_packets` arrivals with a right ICRC to `sink`, ICRC stripped. Never blocks. Returns how
  // many it took; fewer than there are, so that they can be answered before the rest is fetched. What `sink`
  // is given may lie in memory that the peer can still write: look at each byte once.
  using Sink = std::function<void(const Address& source, std::span<const std::byte> datagram)>;
  virtual std::size_t receive(std::size_t max_packets, const Sink& sink) = 0;
  // Of the packet that is in `sink`'s hands: whether its IP header says "congestion experienced" (CE).
  [[nodiscard]] virtual bool arrival_is_marked() const { return false; }
  // Of the same packet: the UDP port it came from, 0 where it came through no socket.
  [[nodiscard]] virtual std::uint16_t arrival_port() const { return 0; }

  // Readable when packets wait, for poll(2): without fail only after arm().
  [[nodiscard]] virtual int poll_fd() const = 0;
  // From here to the next receive() every arrival makes poll_fd readable. False: some are there already.
  [[nodiscard]] virtual bool arm() = 0;
  [[nodiscard]] virtual const WireCounters& counters() const = 0;
  // What a queue pair should have under way at most, lest a wire like this one overruns at the other end.
  [[nodiscard]] virtual std::size_t window_bytes() const { return std::size_t{2} << 20; }
  // What the kernel lets the socket hold on which all peers' packets arrive; 0: there is none that may
  // overflow.
  [[nodiscard]] virtual std::size_t socket_bytes() const { return 0; }
  // The largest RoCE MTU that the way out carries.
  [[nodiscard]] virtual std::uint32_t mtu_bytes() const { return 4096; }
  // The newest receive() left nothing in that socket.
  [[nodiscard]] virtual bool socket_was_drained() const { return false; }
  // Whether room() keeps us from sending what the other end cannot hold.
  [[nodiscard]] virtual bool holds_back(const Address& /*destination*/) { return false; }
};

struct UdpConfig {
  std::string address;                          // empty: a free 127.0.0.x, chosen by binding
  std::string pcap_path;                        // empty: none
  std::size_t receive_buffer_bytes = 16 << 20;  // asked for; the kernel doubles it, or grants less
  FaultConfig faults;
  // Peers on 127.0.0.0/8 are software HCAs, whose ids can be guessed; true looks at ids there too, for tests.
  bool ip_ids_on_loopback = false;
};

// RoCE v2 on UDP port 4791. Errors: kBusy when the address is taken or none is free,
// kInvalidArgument for an address that does not parse, kSystem with errno's text otherwise.
[[nodiscard]] Result<std::unique_ptr<Wire>> open_udp(const UdpConfig& config);

// What carries packets to HCAs of the same host; all others are reached over UDP only.
enum class Carrier {
  kUdp,           // UDP, like everywhere
  kAuto,          // shared memory where the peer offers it, UDP otherwise
  kSharedMemory,  // shared memory, or packets are lost
};

// UDP port 4791 is bound in any case: it makes the address ours. Errors: as open_udp(), and with
// kSharedMemory those of listening for peers.
[[nodiscard]] Result<std::unique_ptr<Wire>> open_wire(Carrier carrier, const UdpConfig& config);

}  // namespace gdx::softhca::wire
