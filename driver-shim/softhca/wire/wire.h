// Carrier of packets between software HCAs. A Wire moves datagrams (BTH to ICRC) and has no queue pairs. Not
// thread-safe: the HCA's engine lock serialises all calls.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "base/sip_hash.h"

namespace gdx::softhca::wire {

// An IPv6 address, or an IPv4 one mapped into ::ffff:0:0/96: exactly a RoCE v2 GID.
struct Address {
  std::array<std::uint8_t, 16> gid{};

  // Compares as two words, because a call of memcmp would cost on the hot path.
  bool operator==(const Address& other) const { return words() == other.words(); }
  [[nodiscard]] bool is_ipv4() const {
    return words()[0] == 0 && gid[8] == 0 && gid[9] == 0 && gid[10] == 0xff && gid[11] == 0xff;
  }
  [[nodiscard]] static Address ipv4(std::uint32_t host_order);
  [[nodiscard]] static Result<Address> parse(const std::string& text);
  [[nodiscard]] std::uint32_t ipv4_host_order() const;
  [[nodiscard]] bool is_loopback() const;  // 127.0.0.0/8
  [[nodiscard]] std::string text() const;

 private:
  [[nodiscard]] std::array<std::uint64_t, 2> words() const {
    return std::bit_cast<std::array<std::uint64_t, 2>>(gid);
  }
};

// Probabilities in [0, 1] of faults on sent packets, drawn from one seeded generator.
struct FaultConfig {
  double loss = 0;
  double corrupt = 0;  // one random bit of the datagram is flipped
  double duplicate = 0;
  double reorder = 0;  // the packet is held back behind the next one
  double mark = 0;     // as set by a switch with a long queue (ECN: congestion experienced)
  double death = 0;    // neither it nor any later packet leaves, and none arrives any more: see MortalWire
  std::uint64_t seed = 1;
};

// All std::uint64_t, for add_counters().
struct WireCounters {
  std::uint64_t packets_sent = 0;
  std::uint64_t packets_received = 0;
  std::uint64_t bytes_sent = 0;  // bytes of packets_sent, from BTH to ICRC where there is one
  std::uint64_t faults_lost = 0;
  std::uint64_t faults_corrupted = 0;
  std::uint64_t faults_marked = 0;
  std::uint64_t icrc_errors = 0;  // arrivals whose ICRC was wrong: dropped
  std::uint64_t send_errors = 0;  // the kernel refused the datagram, or a ring or the loop was full: lost
  std::uint64_t shared_memory_sent = 0;  // packets among packets_sent that took shared memory
  std::uint64_t socket_drops = 0;        // arrivals for which the UDP socket had no room
  std::uint64_t forged_drops = 0;        // arrivals that cannot be from the address that they name: dropped
};

inline constexpr std::size_t kMaxPacketBytes = 4096 + 64;

class Wire {
 public:
  virtual ~Wire() = default;

  // Returns the address that this wire receives on.
  [[nodiscard]] virtual const Address& local() const = 0;
  // Returns the number of packets to `destination` that can be begun before room here runs out and some are
  // lost.
  [[nodiscard]] virtual std::size_t room(const Address& destination) = 0;
  // Returns whether packets to `destination` wait, because it must first answer this end. Begins to ask it.
  [[nodiscard]] virtual bool awaits(const Address& /*destination*/) { return false; }
  // Returns the time (CLOCK_MONOTONIC) of the next flush() that sends something by itself; all ones: never.
  [[nodiscard]] virtual std::uint64_t next_deadline_ns() const { return ~std::uint64_t{0}; }
  // Returns room for one outgoing datagram of BTH to padding, at most kMaxPacketBytes. Fill it, then commit.
  [[nodiscard]] virtual std::span<std::byte> begin_packet(const Address& destination) = 0;
  // Returns whether no later step here reads a filled packet, so that it need not stay in the cache.
  [[nodiscard]] virtual bool streams() const { return false; }
  // Queues the datagram, with an ICRC if the wire needs one; it leaves at flush() at the latest.
  // `destination` is that of begin_packet().
  virtual void commit_packet(const Address& destination, std::size_t length_bytes) = 0;
  virtual void flush() = 0;

  // Passes up to `max_packets` arrivals with a right ICRC to `sink`, ICRC stripped. Never blocks. Returns
  // their number, perhaps fewer than have arrived, so that they can be answered before the rest is read. The
  // bytes may lie in memory that the peer can still write: read each byte once.
  using Sink = std::function<void(const Address& source, std::span<const std::byte> datagram)>;
  virtual std::size_t receive(std::size_t max_packets, const Sink& sink) = 0;
  // Returns whether the IP header of `sink`'s present packet is marked "congestion experienced" (CE).
  [[nodiscard]] virtual bool arrival_is_marked() const { return false; }
  // Returns the UDP source port of `sink`'s present packet; 0 if it came through no socket.
  [[nodiscard]] virtual std::uint16_t arrival_port() const { return 0; }

  // Returns a descriptor that is readable when packets wait, for poll(2); reliable only after arm().
  [[nodiscard]] virtual int poll_fd() const = 0;
  // Returns whether the program has closed the wire's descriptors by a system call. Their numbers may then
  // belong to its own files, so call only const methods. Takes no lock.
  [[nodiscard]] virtual bool lost() const { return false; }
  // Makes every arrival from now until the next receive() signal poll_fd. False: some have arrived already.
  [[nodiscard]] virtual bool arm() = 0;
  [[nodiscard]] virtual const WireCounters& counters() const = 0;
  // Returns the most bytes that a queue pair should have under way, so that the other end does not overrun.
  [[nodiscard]] virtual std::size_t window_bytes() const { return std::size_t{2} << 20; }
  // Returns the kernel's limit of the socket on which all peers' packets arrive; 0: none that may overflow.
  [[nodiscard]] virtual std::size_t socket_bytes() const { return 0; }
  // Returns the largest RoCE MTU that the interface carries.
  [[nodiscard]] virtual std::uint32_t mtu_bytes() const { return 4096; }
  // Returns whether the newest receive() emptied that socket.
  [[nodiscard]] virtual bool socket_was_drained() const { return false; }
  // Returns whether room() bounds sends by the capacity of the other end.
  [[nodiscard]] virtual bool holds_back(const Address& /*destination*/) { return false; }
};

struct UdpConfig {
  std::string address;                          // empty: a free 127.0.0.x, chosen by binding
  std::string pcap_path;                        // empty: none
  std::size_t receive_buffer_bytes = 16 << 20;  // requested; the kernel doubles it, or grants less
  FaultConfig faults;
  // Serves peers of another make on 127.0.0.0/8 too, for tests: reads their ids, and accepts any port of
  // theirs. Without it peers there are software HCAs, whose ids can be guessed.
  bool foreign_on_loopback = false;
  // Secret of the tokens for HCAs of the same host; none: drawn from the kernel. For tests.
  std::optional<SipKey> token_secret = std::nullopt;
  // Sends packets to the own address through the socket, too, for tests of IPv6: its loopback has one
  // address.
  bool own_through_socket = false;
};

// Opens RoCE v2 on UDP port 4791. Errors: kBusy when the address is taken or none is free; kInvalidArgument
// for an address that does not parse; kSystem with errno's text otherwise.
[[nodiscard]] Result<std::unique_ptr<Wire>> open_udp(const UdpConfig& config);

// Carrier of packets to HCAs of this host; all others are reached over UDP only.
enum class Carrier {
  kUdp,           // UDP, like everywhere
  kAuto,          // shared memory where the peer offers it, UDP otherwise
  kSharedMemory,  // shared memory, or packets are lost
};

// Opens a wire. UDP port 4791 is bound in any case, because that reserves the address. Errors: those of
// open_udp(), and with kSharedMemory those of listening for peers.
[[nodiscard]] Result<std::unique_ptr<Wire>> open_wire(Carrier carrier, const UdpConfig& config);

}  // namespace gdx::softhca::wire
