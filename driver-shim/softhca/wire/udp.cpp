// RoCE v2 over one UDP socket. It is bound to port 4791, so that is the source port of everything that
// leaves. Over IPv4 a raw socket beside it tells the ids that the ICRC covers, where a peer counts them.
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "driver-shim/softhca/wire/faults.h"
#include "driver-shim/softhca/wire/icrc_check.h"
#include "driver-shim/softhca/wire/ip_ids.h"
#include "driver-shim/softhca/wire/loop.h"
#include "driver-shim/softhca/wire/pcap.h"
#include "driver-shim/softhca/wire/udp.h"
#include "proto/roce/headers.h"
#include "proto/roce/ip_header.h"

namespace gdx::softhca::wire {
namespace {

constexpr std::size_t kMaxSegments = IcrcChecker::kIpIds;  // in one GSO send, and so many ids are possible
constexpr std::size_t kMaxGsoBytes = 65000;                // one IP packet before the kernel cuts it
constexpr std::size_t kMaxRuns = 64;                       // messages in one sendmmsg
// Size of the arena. It is sent once it holds a full message, while the gathered bytes are still in the
// cache.
constexpr std::size_t kArenaBytes = kMaxGsoBytes + kMaxPacketBytes + roce::kIcrcBytes;
constexpr unsigned kReceiveMessages = 4;
// Number and length of a flush's waits for room in a full socket buffer, before it drops.
constexpr int kMaxSendWaits = 8;
constexpr int kSendWaitMs = 1;
constexpr std::size_t kReceiveBytes = 65536;

// Consecutive datagrams for one peer, equal in size except that the last may be shorter: one GSO send.
struct Run {
  Address destination;
  std::size_t offset = 0;
  std::size_t length_bytes = 0;
  std::size_t segment_bytes = 0;
  std::size_t segments = 0;
  bool closed = false;
  bool marked = false;  // they leave as if a switch had marked them
  bool bare = false;    // four unset bytes take the place of each ICRC, which nothing would read
};

// Control data of a run for the kernel, beyond its destination.
struct alignas(cmsghdr) SendControl {
  void describe(const Run& run, msghdr& header);

  std::byte bytes[CMSG_SPACE(sizeof(std::uint16_t)) + CMSG_SPACE(sizeof(int))];
};

template <typename Value>
std::size_t put_control(std::byte* at, int level, int type, const Value& value) {
  cmsghdr control{};
  control.cmsg_level = level;
  control.cmsg_type = type;
  control.cmsg_len = CMSG_LEN(sizeof value);
  std::memcpy(at, &control, sizeof control);
  std::memcpy(at + CMSG_LEN(0), &value, sizeof value);
  return CMSG_SPACE(sizeof value);
}

void SendControl::describe(const Run& run, msghdr& header) {
  *this = {};
  std::size_t used = 0;
  if (run.segments > 1) {
    used += put_control(bytes, SOL_UDP, UDP_SEGMENT, static_cast<std::uint16_t>(run.segment_bytes));
  }
  if (run.marked) {
    const bool v4 = run.destination.is_ipv4();
    used += put_control(bytes + used, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_TOS : IPV6_TCLASS,
                        static_cast<int>(roce::Ecn::kCongestionExperienced));
  }
  header.msg_control = bytes;
  header.msg_controllen = used;
}

// The ECN field that a control message tells of, or nothing.
std::optional<roce::Ecn> ecn_of(const cmsghdr& control) {
  if (control.cmsg_level == IPPROTO_IP && control.cmsg_type == IP_TOS) {
    return static_cast<roce::Ecn>(*CMSG_DATA(&control) & roce::kEcnMask);  // one byte
  }
  if (control.cmsg_level != IPPROTO_IPV6 || control.cmsg_type != IPV6_TCLASS) return std::nullopt;
  int traffic_class = 0;
  std::memcpy(&traffic_class, CMSG_DATA(&control), sizeof traffic_class);
  return static_cast<roce::Ecn>(traffic_class & roce::kEcnMask);
}

bool is_loopback(const Address& address) {
  constexpr std::uint32_t kLoopback8 = 127;
  return address.is_ipv4() && address.ipv4_host_order() >> 24 == kLoopback8;
}

std::size_t granted_bytes(const Descriptor& socket) {
  int bytes = 0;
  socklen_t length = sizeof bytes;
  getsockopt(socket.value(), SOL_SOCKET, SO_RCVBUF, &bytes, &length);
  return static_cast<std::size_t>(bytes);
}

class UdpWire final : public Wire {
 public:
  UdpWire(BoundSocket socket, const UdpConfig& config, std::shared_ptr<PcapWriter> pcap)
      : socket_(std::move(socket.socket)),
        local_(socket.address),
        interface_(socket.interface),
        faults_(config.faults),
        pcap_(std::move(pcap)),
        socket_bytes_(granted_bytes(socket_)),
        arena_(kArenaBytes),
        loops_(!config.own_through_socket),
        foreign_on_loopback_(config.foreign_on_loopback),
        loop_(socket_bytes_) {
    runs_.reserve(kMaxRuns);
    const int off = 0;
    gso_ = setsockopt(socket_.value(), SOL_UDP, UDP_SEGMENT, &off, sizeof off) == 0;
    set_gro(true);
    set_ecn();
    look_for_ip_ids(config.foreign_on_loopback);
  }
  ~UdpWire() override { flush(); }
  UdpWire(const UdpWire&) = delete;
  UdpWire& operator=(const UdpWire&) = delete;

  const Address& local() const override { return local_; }
  std::size_t room(const Address& /*destination*/) override { return SIZE_MAX; }
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
  void send_runs();
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
    const std::byte* bytes = nullptr;
    bool bare = false;    // see Run
    bool forged = false;  // the datagram does not come from where it says
  };
  std::array<Arrival, kReceiveMessages> arrivals_;
  bool drained_ = false;
  std::size_t arrival_count_ = 0;
  std::size_t arrival_ = 0;         // the message being delivered
  std::size_t arrival_offset_ = 0;  // bytes of it that are delivered

  bool loops_;  // packets to the own address go through loop_
  bool foreign_on_loopback_;
  Loop loop_;
  bool loop_had_turn_ = false;  // the newest message came from it
  // The next run into it must make the socket readable. Stays while others receive, because a thread may
  // sleep meanwhile.
  bool armed_ = false;
};

std::span<std::byte> UdpWire::begin_packet(const Address& /*destination*/) {
  assert(used_ <= kMaxGsoBytes);
  return std::span(arena_).subspan(used_, kMaxPacketBytes);
}

void UdpWire::commit_packet(const Address& destination, std::size_t length_bytes) {
  if (!faults_.active()) return append(destination, length_bytes, {});
  faults_.pass(destination, std::span<const std::byte>(arena_).subspan(used_, length_bytes), counters_,
               [this](const auto&... packet) { append_copy(packet...); });
}

// `body` may be what was begun, which is then in its place already.
void UdpWire::append_copy(const Address& destination, std::span<const std::byte> body, const Damage& damage) {
  std::memmove(begin_packet(destination).data(), body.data(), body.size());
  append(destination, body.size(), damage);
}

// Takes the datagram at the arena's end into the newest run, or starts one with it.
void UdpWire::append(const Address& destination, std::size_t length_bytes, const Damage& damage) {
  const std::size_t datagram_bytes = length_bytes + roce::kIcrcBytes;
  const bool bare = loops(destination) && !pcap_ && !damage.corrupt_bit;
  const bool joins = gso_ && !runs_.empty() && !runs_.back().closed && runs_.back().marked == damage.mark &&
                     runs_.back().destination == destination && runs_.back().bare == bare &&
                     datagram_bytes <= runs_.back().segment_bytes && runs_.back().segments < kMaxSegments &&
                     runs_.back().length_bytes + datagram_bytes <= kMaxGsoBytes;
  if (!joins) {
    if (runs_.size() == kMaxRuns) {
      const std::size_t at = used_;
      send_runs();
      std::memmove(arena_.data(), arena_.data() + at, length_bytes);
    }
    runs_.push_back(Run{.destination = destination,
                        .offset = used_,
                        .segment_bytes = datagram_bytes,
                        .marked = damage.mark,
                        .bare = bare});
  }
  Run& run = runs_.back();
  const std::span<std::byte> datagram = std::span(arena_).subspan(used_, datagram_bytes);
  const auto ip_id = static_cast<std::uint16_t>(run.segments);
  if (!bare) {
    const std::uint32_t icrc =
        calculator_.between(local_, destination, roce::kUdpPort, ip_id, datagram.first(length_bytes));
    std::memcpy(datagram.data() + length_bytes, &icrc, sizeof icrc);
  }
  if (const auto bit = damage.corrupt_bit) datagram[*bit / 8] ^= std::byte{1} << (*bit % 8);
  if (pcap_) {
    const roce::Ecn ecn = run.marked ? roce::Ecn::kCongestionExperienced : ecn_;
    pcap_->record(unix_time_ns(), {local_, destination, roce::kUdpPort, ip_id, ecn}, datagram);
  }
  run.segments += 1;
  run.length_bytes += datagram_bytes;
  run.closed = datagram_bytes < run.segment_bytes;
  used_ += datagram_bytes;
  ++counters_.packets_sent;
  counters_.bytes_sent += datagram_bytes;
  if (used_ + run.segment_bytes > kMaxGsoBytes) send_runs();
}

void UdpWire::flush() {
  faults_.flush([this](const auto&... packet) { append_copy(packet...); });
  send_runs();
  if (pcap_) pcap_->flush();
}

// Sends a run to the own address.
void UdpWire::loop(const Run& run) {
  const LoopedRun like{
      .bytes = {}, .segment_bytes = run.segment_bytes, .marked = run.marked, .bare = run.bare};
  if (!loop_.push(std::span(arena_).subspan(run.offset, run.length_bytes), like)) {
    counters_.send_errors += run.segments;
    log::debug("{} datagrams for {} itself not sent: too many wait", run.segments, local_.text());
    return;
  }
  if (!std::exchange(armed_, false)) return;
  // An empty datagram wakes a thread that polls the socket.
  sockaddr_storage name;
  const socklen_t length = to_sockaddr(local_, interface_.index, name);
  armed_ = ::sendto(socket_.value(), nullptr, 0, 0, reinterpret_cast<sockaddr*>(&name), length) < 0;
}

void UdpWire::send_runs() {
  std::erase_if(runs_, [this](const Run& run) {
    if (!loops(run.destination)) return false;
    loop(run);
    return true;
  });
  if (runs_.empty()) {
    used_ = 0;
    return;
  }
  // Not cleared as a whole: mostly there is one run, and its latency counts.
  std::array<mmsghdr, kMaxRuns> messages;
  std::array<iovec, kMaxRuns> vectors;
  std::array<sockaddr_storage, kMaxRuns> names;
  std::array<SendControl, kMaxRuns> controls;
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    const Run& run = runs_[i];
    messages[i] = {};
    vectors[i] = {arena_.data() + run.offset, run.length_bytes};
    msghdr& header = messages[i].msg_hdr;
    header.msg_name = &names[i];
    header.msg_namelen = to_sockaddr(run.destination, interface_.index, names[i]);
    header.msg_iov = &vectors[i];
    header.msg_iovlen = 1;
    if (run.segments > 1 || run.marked) controls[i].describe(run, header);
  }
  int waits_left = kMaxSendWaits;
  for (std::size_t sent = 0; sent < runs_.size();) {
    // The call for one message is the cheaper one, and in a ping-pong there is never more.
    const auto left = static_cast<unsigned>(runs_.size() - sent);
    const int n = left == 1 ? (sendmsg(socket_.value(), &messages[sent].msg_hdr, 0) < 0 ? -1 : 1)
                            : sendmmsg(socket_.value(), messages.data() + sent, left, 0);
    if (n > 0) {
      sent += static_cast<std::size_t>(n);
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN && waits_left-- > 0) {
      pollfd room{.fd = socket_.value(), .events = POLLOUT, .revents = 0};
      static_cast<void>(::poll(&room, 1, kSendWaitMs));  // whatever it says, the send decides
      continue;
    }
    counters_.send_errors += runs_[sent].segments;
    // A path that cannot segment says so once; what it refused is lost and comes again unsegmented.
    if (runs_[sent].segments > 1 && (errno == EIO || errno == EINVAL)) gso_ = false;
    log::debug("datagram for {} not sent: {}", runs_[sent].destination.text(), std::strerror(errno));
    ++sent;
  }
  runs_.clear();
  used_ = 0;
}

void UdpWire::set_gro(bool on) {
  const int value = on;
  gro_ = setsockopt(socket_.value(), SOL_UDP, UDP_GRO, &value, sizeof value) == 0 && on;
  if (on && !gro_) log::debug("no UDP_GRO here: {}", std::strerror(errno));
}

// Without it packets travel all the same, and switches drop where they would have marked.
void UdpWire::set_ecn() {
  const bool v4 = local_.is_ipv4();
  const int level = v4 ? IPPROTO_IP : IPPROTO_IPV6;
  const int on = 1;
  const int capable = static_cast<int>(roce::Ecn::kCapableZero);
  if (setsockopt(socket_.value(), level, v4 ? IP_TOS : IPV6_TCLASS, &capable, sizeof capable) == 0) {
    ecn_ = roce::Ecn::kCapableZero;
  }
  if (ecn_ != roce::Ecn::kCapableZero ||
      setsockopt(socket_.value(), level, v4 ? IP_RECVTOS : IPV6_RECVTCLASS, &on, sizeof on) != 0) {
    log::debug("no ECN here: {}", std::strerror(errno));
  }
}

void UdpWire::look_for_ip_ids(bool on_loopback) {
  if (!local_.is_ipv4() || (is_loopback(local_) && !on_loopback)) return;
  Result<IpIdReader> reader = IpIdReader::open(local_);
  if (reader) {
    ip_ids_ = std::move(*reader);
    log::info("{} reads IPv4 ids from a raw socket, for peers that count them", local_.text());
  } else {
    no_ip_ids_ = reader.error().message;
    log::info("{} receives IPv4 packets only with the ids 0 to 63: {}", local_.text(), no_ip_ids_);
  }
}

UdpWire::ReceiveBatch::ReceiveBatch() : buffer(kReceiveMessages * kReceiveBytes) {
  for (std::size_t i = 0; i < kReceiveMessages; ++i) {
    vectors[i] = {buffer.data() + i * kReceiveBytes, kReceiveBytes};
    msghdr& header = messages[i].msg_hdr;
    header.msg_name = &names[i];
    header.msg_namelen = sizeof names[i];
    header.msg_iov = &vectors[i];
    header.msg_iovlen = 1;
    header.msg_control = &controls[i];
    header.msg_controllen = sizeof controls[i].bytes;
  }
}

const WireCounters& UdpWire::counters() const {
  std::array<std::uint32_t, SK_MEMINFO_VARS> memory{};
  socklen_t length = sizeof memory;
  if (getsockopt(socket_.value(), SOL_SOCKET, SO_MEMINFO, memory.data(), &length) == 0) {
    counters_.socket_drops = memory[SK_MEMINFO_DROPS];
  }
  return counters_;
}

// Takes from the loop and from the socket by turns, because a stream through either would starve the other.
bool UdpWire::refill() {
  const bool loop_waits = !loop_.empty();
  drained_ = false;
  const bool loop_first = loop_waits && !std::exchange(loop_had_turn_, false);
  if (!loop_first && read_socket()) return true;
  if (loop_waits) {
    take_looped();
  } else {
    drained_ = true;
  }
  return loop_waits;
}

void UdpWire::take_looped() {
  const LoopedRun& run = loop_.take();
  arrivals_[0] = {.from = {local_, roce::kUdpPort},
                  .length_bytes = run.bytes.size(),
                  .segment_bytes = run.segment_bytes,
                  .ecn = run.marked ? roce::Ecn::kCongestionExperienced : ecn_,
                  .bytes = run.bytes.data(),
                  .bare = run.bare};
  arrival_ = 0;
  arrival_offset_ = 0;
  arrival_count_ = 1;
  loop_had_turn_ = true;
}

// Returns whether a datagram of the socket cannot be from the address that it names. Own packets go through
// memory, and peers on 127.0.0.0/8 are software HCAs, which send from the RoCE port. False proves nothing:
// who holds that port of another address there may name this one (IP_PKTINFO).
bool UdpWire::is_forged(const Endpoint& from) const {
  if (loops(from.address)) return true;
  return from.port != roce::kUdpPort && is_loopback(from.address) && !foreign_on_loopback_;
}

bool UdpWire::read_socket() {
  auto& [messages, vectors, names, controls, buffer] = batch_;
  int n = 0;
  if (wanted_ == 1) {
    const ssize_t length = recvmsg(socket_.value(), &messages[0].msg_hdr, MSG_DONTWAIT);
    n = length < 0 ? -1 : 1;
    if (n == 1) messages[0].msg_len = static_cast<unsigned>(length);
  } else {
    n = recvmmsg(socket_.value(), messages.data(), wanted_, MSG_DONTWAIT, nullptr);
  }
  wanted_ = n == static_cast<int>(wanted_) ? kReceiveMessages : 1;
  arrival_ = 0;
  arrival_offset_ = 0;
  arrival_count_ = n > 0 ? static_cast<std::size_t>(n) : 0;
  for (std::size_t i = 0; i < arrival_count_; ++i) {
    Arrival& arrival = arrivals_[i];
    arrival.from = from_sockaddr(names[i]);
    arrival.length_bytes = messages[i].msg_len;
    arrival.segment_bytes = messages[i].msg_len;
    arrival.ecn = roce::Ecn::kNotCapable;
    arrival.bytes = buffer.data() + i * kReceiveBytes;
    arrival.bare = false;
    arrival.forged = is_forged(arrival.from);
    msghdr& header = messages[i].msg_hdr;
    for (cmsghdr* control = CMSG_FIRSTHDR(&header); control != nullptr;
         control = CMSG_NXTHDR(&header, control)) {
      if (const auto ecn = ecn_of(*control)) arrival.ecn = *ecn;
      if (control->cmsg_level != SOL_UDP || control->cmsg_type != UDP_GRO) continue;
      int segment_bytes = 0;
      std::memcpy(&segment_bytes, CMSG_DATA(control), sizeof segment_bytes);
      if (segment_bytes > 0) arrival.segment_bytes = static_cast<std::size_t>(segment_bytes);
    }
    // As they were before the kernel said how much of them it used.
    header.msg_namelen = sizeof names[i];
    header.msg_controllen = sizeof controls[i].bytes;
  }
  return arrival_count_ > 0;
}

std::size_t UdpWire::receive(std::size_t max_packets, const Sink& sink) {
  std::size_t taken = 0;
  while (taken < max_packets) {
    if (arrival_ == arrival_count_ && (taken > 0 || !refill())) break;
    taken += deliver_message(max_packets - taken, sink);
  }
  if (pcap_ && taken > 0) pcap_->flush();
  return taken;
}

// The IPv4 id (0 over IPv6) with which the datagram's ICRC is right, or nullopt when it is damaged.
std::optional<std::uint16_t> UdpWire::verified_ip_id(const Endpoint& from, std::uint16_t place,
                                                     std::span<const std::byte> datagram) {
  const bool is_packet = datagram.size() >= roce::kBthBytes + roce::kIcrcBytes &&
                         datagram.size() <= kMaxPacketBytes + roce::kIcrcBytes;
  if (!is_packet) return std::nullopt;
  const std::span<const std::byte> covered = datagram.first(datagram.size() - roce::kIcrcBytes);
  std::uint32_t icrc = 0;
  std::memcpy(&icrc, datagram.data() + covered.size(), sizeof icrc);
  if (const auto guessed = checker_.check(from.address, local_, from.port, place, covered, icrc))
    return guessed;
  if (!no_ip_ids_.empty()) {
    log::warn("{} dropped a packet from {}: damaged, or of a peer that counts its IPv4 ids ({}, or use IPv6)",
              local_.text(), from.address.text(), no_ip_ids_);
    no_ip_ids_.clear();
  }
  if (!ip_ids_) return std::nullopt;
  const auto seen = ip_ids_->take(from, covered);
  if (!seen || icrc_between(from.address, local_, from.port, *seen, covered) != icrc) return std::nullopt;
  if (gro_) {
    // Turns GRO off, because joined packets have one header, and their other ids would be unknown.
    set_gro(false);
    log::info("{} counts its IPv4 ids: receiving without GRO", from.address.text());
  }
  return seen;
}

// Delivers what is left of the current message. Dropped packets count against the budget.
std::size_t UdpWire::deliver_message(std::size_t max_packets, const Sink& sink) {
  const Arrival& arrival = arrivals_[arrival_];
  std::size_t taken = 0;
  while (arrival_offset_ < arrival.length_bytes && taken < max_packets) {
    const std::size_t length = std::min(arrival.segment_bytes, arrival.length_bytes - arrival_offset_);
    const std::span<const std::byte> datagram(arrival.bytes + arrival_offset_, length);
    const auto place = static_cast<std::uint16_t>(arrival_offset_ / arrival.segment_bytes);
    arrival_offset_ += length;
    ++taken;
    const std::optional<std::uint16_t> ip_id =
        arrival.bare || arrival.forged ? place : verified_ip_id(arrival.from, place, datagram);
    if (pcap_) {
      const Endpoint& from = arrival.from;
      pcap_->record(unix_time_ns(), {from.address, local_, from.port, ip_id.value_or(place), arrival.ecn},
                    datagram);
    }
    if (arrival.forged) {
      ++counters_.forged_drops;
      continue;
    }
    if (!ip_id) {
      ++counters_.icrc_errors;
      continue;
    }
    ++counters_.packets_received;
    sink(arrival.from.address, datagram.first(length - roce::kIcrcBytes));
  }
  if (arrival_offset_ >= arrival.length_bytes) {
    ++arrival_;
    arrival_offset_ = 0;
  }
  return taken;
}

}  // namespace

std::unique_ptr<Wire> make_udp(BoundSocket socket, const UdpConfig& config,
                               std::shared_ptr<PcapWriter> capture) {
  return std::make_unique<UdpWire>(std::move(socket), config, std::move(capture));
}

Result<std::shared_ptr<PcapWriter>> open_capture(const std::string& path) {
  if (path.empty()) return std::shared_ptr<PcapWriter>{};
  Result<std::unique_ptr<PcapWriter>> opened = PcapWriter::open(path);
  if (!opened) return tl::unexpected<Error>(opened.error());
  return std::shared_ptr<PcapWriter>(std::move(*opened));
}

Result<std::unique_ptr<Wire>> open_udp(const UdpConfig& config) {
  Result<BoundSocket> bound = bind_socket(config.address, config.receive_buffer_bytes);
  if (!bound) return tl::unexpected<Error>(bound.error());
  Result<std::shared_ptr<PcapWriter>> capture = open_capture(config.pcap_path);
  if (!capture) return tl::unexpected<Error>(capture.error());
  return make_udp(std::move(*bound), config, std::move(*capture));
}

}  // namespace gdx::softhca::wire
