// RoCE v2 over one UDP socket: opening, and packets that it receives.
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "driver-shim/softhca/wire/udp.h"
#include "driver-shim/softhca/wire/udp_wire.h"
#include "proto/roce/codec.h"
#include "proto/roce/headers.h"
#include "proto/roce/ip_header.h"

namespace gdx::softhca::wire {
namespace {

constexpr std::size_t kReceiveBytes = 65536;

std::size_t granted_bytes(const Descriptor& socket) {
  int bytes = 0;
  socklen_t length = sizeof bytes;
  getsockopt(socket.value(), SOL_SOCKET, SO_RCVBUF, &bytes, &length);
  return static_cast<std::size_t>(bytes);
}

bool has_length_of_packet(std::span<const std::byte> datagram) {
  return datagram.size() >= roce::kBthBytes + roce::kIcrcBytes &&
         datagram.size() <= kMaxPacketBytes + roce::kIcrcBytes;
}

SipKey drawn_secret() {
  std::random_device kernel;
  SipKey secret{};
  for (std::uint64_t& word : secret) word = std::uint64_t{kernel()} << 32 | kernel();
  return secret;
}

}  // namespace

UdpWire::UdpWire(BoundSocket socket, const UdpConfig& config, std::shared_ptr<PcapWriter> pcap)
    : socket_(std::move(socket.socket)),
      local_(socket.address),
      interface_(socket.interface),
      faults_(config.faults),
      pcap_(std::move(pcap)),
      socket_bytes_(granted_bytes(socket_)),
      arena_(kArenaBytes),
      loops_(!config.own_through_socket),
      loop_(socket_bytes_),
      tokens_(config.token_secret ? *config.token_secret : drawn_secret(), local_, addresses_of_host,
              config.foreign_on_loopback) {
  runs_.reserve(kMaxRuns);
  const int off = 0;
  gso_ = setsockopt(socket_.value(), SOL_UDP, UDP_SEGMENT, &off, sizeof off) == 0;
  set_gro(true);
  set_ecn();
  look_for_ip_ids(config.foreign_on_loopback);
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
  if (!local_.is_ipv4() || (local_.is_loopback() && !on_loopback)) return;
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
  LoopedRun& run = loop_.take();
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
// memory, and the other HCAs of this host are software HCAs, which send from the RoCE port. False proves
// nothing: who holds that port of another address of this host may name that one (IP_PKTINFO).
bool UdpWire::is_forged(const Endpoint& from) const {
  return loops(from.address) || (from.port != roce::kUdpPort && tokens_.guards(from.address));
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
    arrival.guarded = tokens_.guards(arrival.from.address);
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
  if (!has_length_of_packet(datagram)) return std::nullopt;
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

// Takes the token out of a packet of this host. Leaves a packet without it as it came. Tries the id
// 0 alone, which all packets with a token have, and messages: each other id would be one more value that a
// guess of the token may hit.
UdpWire::Verdict UdpWire::unseal(const Endpoint& from, std::uint16_t place, std::span<std::byte> datagram,
                                 std::uint16_t& ip_id) {
  if (!has_length_of_packet(datagram)) return Verdict::kDamaged;
  const auto is_right = [&](std::uint16_t id) {
    const std::span<const std::byte> covered = datagram.first(datagram.size() - roce::kIcrcBytes);
    std::uint32_t icrc = 0;
    std::memcpy(&icrc, datagram.data() + covered.size(), sizeof icrc);
    ip_id = id;
    return checker_.is_right(from.address, local_, from.port, id, covered, icrc);
  };
  if (is_token_message(datagram)) return is_right(0) ? Verdict::kGood : Verdict::kDamaged;
  const HostTokens::Peer* const peer = tokens_.find(from.address);
  if (peer != nullptr && peer->standing == HostTokens::Standing::kKnown) {
    peer->from.apply(datagram);
    if (Seal::is_off(datagram) && is_right(0)) return Verdict::kGood;
    peer->from.apply(datagram);
  }
  return is_right(place) ? Verdict::kForged : Verdict::kDamaged;
}

UdpWire::Verdict UdpWire::judge(const Arrival& arrival, std::uint16_t place, std::span<std::byte> datagram,
                                std::uint16_t& ip_id) {
  ip_id = place;
  if (arrival.forged) return Verdict::kForged;
  if (arrival.bare) return Verdict::kGood;
  if (arrival.guarded) return unseal(arrival.from, place, datagram, ip_id);
  const std::optional<std::uint16_t> verified = verified_ip_id(arrival.from, place, datagram);
  ip_id = verified.value_or(place);
  return verified ? Verdict::kGood : Verdict::kDamaged;
}

// Delivers what is left of the current message. Dropped packets count against the budget.
std::size_t UdpWire::deliver_message(std::size_t max_packets, const Sink& sink) {
  const Arrival& arrival = arrivals_[arrival_];
  std::size_t taken = 0;
  while (arrival_offset_ < arrival.length_bytes && taken < max_packets) {
    const std::size_t length = std::min(arrival.segment_bytes, arrival.length_bytes - arrival_offset_);
    const std::span<std::byte> datagram(arrival.bytes + arrival_offset_, length);
    const auto place = static_cast<std::uint16_t>(arrival_offset_ / arrival.segment_bytes);
    arrival_offset_ += length;
    ++taken;
    std::uint16_t ip_id = place;
    const Verdict verdict = judge(arrival, place, datagram, ip_id);
    if (pcap_ && !(verdict == Verdict::kGood && is_token_message(datagram))) {
      const Endpoint& from = arrival.from;
      pcap_->record(unix_time_ns(), {from.address, local_, from.port, ip_id, arrival.ecn}, datagram);
    }
    if (verdict == Verdict::kForged) {
      ++counters_.forged_drops;
      continue;
    }
    if (verdict == Verdict::kDamaged) {
      ++counters_.icrc_errors;
      continue;
    }
    const std::span<const std::byte> packet = datagram.first(length - roce::kIcrcBytes);
    if (is_token_message(packet) && !arrival.bare) {
      on_token_message(arrival.from, packet);
      continue;
    }
    ++counters_.packets_received;
    sink(arrival.from.address, packet);
  }
  if (arrival_offset_ >= arrival.length_bytes) {
    ++arrival_;
    arrival_offset_ = 0;
  }
  return taken;
}

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
