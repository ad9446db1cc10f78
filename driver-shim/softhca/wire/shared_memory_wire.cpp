#include "driver-shim/softhca/wire/shared_memory_wire.h"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/counters.h"
#include "base/log.h"
#include "driver-shim/softhca/wire/icrc_check.h"
#include "driver-shim/softhca/wire/udp.h"
#include "proto/roce/headers.h"
#include "proto/roce/ip_header.h"

namespace gdx::softhca::wire {
namespace {

// Packets are shown to the peer, and their room given back, by this much: often enough for both ends to work
// at once. More often would move the indices' cache lines.
constexpr std::size_t kBatchBytes = 16 * 1024;
constexpr std::uint64_t kRetryNs = 100'000'000;  // before another call to an address that did not answer
// Interval between reads of descriptors, because a read costs a system call, as long as a whole packet. A
// sleeping thread is woken by them.
constexpr std::uint64_t kPollEveryNs = 20'000;
constexpr std::uint64_t kLivelyNs = 1'000'000;  // after recent UDP packets more will come
constexpr std::size_t kMaxCallers = 16;
constexpr std::size_t kMaxIncoming = 256;  // each holds a descriptor, of which a process often has 1024
constexpr std::size_t kMaxPeers = 4096;    // addresses remembered, before those without a link are forgotten

bool watch(const Descriptor& epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  return epoll_ctl(epoll.value(), EPOLL_CTL_ADD, fd, &event) == 0;
}

// Builds headers for a packet from shared memory, which carries no IP header.
CapturedHeaders headers_of(const Address& source, const Address& destination, bool marked) {
  return {.source = source,
          .destination = destination,
          .ecn = marked ? roce::Ecn::kCongestionExperienced : roce::Ecn::kCapableZero};
}

}  // namespace

std::size_t SharedMemoryWire::AddressHash::operator()(const Address& address) const {
  std::array<std::uint64_t, 2> words;
  std::memcpy(words.data(), address.gid.data(), sizeof words);
  return (words[0] ^ words[1]) * 0x9e3779b97f4a7c15u >> 16;
}

SharedMemoryWire::SharedMemoryWire(Parts parts, const FaultConfig& faults)
    : udp_(std::move(parts.udp)),
      udp_carries_(parts.udp_carries),
      capture_(std::move(parts.capture)),
      listener_(std::move(parts.listener)),
      epoll_(std::move(parts.epoll)),
      faults_(faults),
      with_icrc_(faults.corrupt > 0 || capture_ != nullptr) {}

SharedMemoryWire::Peer& SharedMemoryWire::peer_at(const Address& destination) {
  if (last_peer_ != nullptr && last_destination_ == destination) return *last_peer_;
  if (peers_.size() >= kMaxPeers) std::erase_if(peers_, [](const auto& it) { return !it.second.link; });
  last_peer_ = &peers_[destination];
  last_destination_ = destination;
  return *last_peer_;
}

// The link to `destination`, made if need be, or null where the peer has none.
OutgoingLink* SharedMemoryWire::route(const Address& destination) {
  Peer& peer = peer_at(destination);
  if (peer.link && !peer.link->ring().broken()) return peer.link.get();
  if (peer.link) hang_up(destination, peer);
  const std::uint64_t now_ns = monotonic_ns();
  if (now_ns < peer.retry_at_ns) return nullptr;
  Result<std::unique_ptr<OutgoingLink>> link = connect(destination);
  if (link && watch(epoll_, (*link)->fd())) {
    peer.link = std::move(*link);
    log::debug("{}: packets to {} go through shared memory", local().text(), destination.text());
    return peer.link.get();
  }
  peer.retry_at_ns = now_ns + kRetryNs;
  if (link) {
    report_refusal(fmt::format("cannot watch a link to {}: {}", destination.text(), std::strerror(errno)));
  } else if (link.error().status == Status::kNotFound) {
    log::debug("{}: {}", local().text(), link.error().message);  // mostly: no listener
  } else {
    report_refusal(link.error().message);
  }
  return nullptr;
}

Result<std::unique_ptr<OutgoingLink>> SharedMemoryWire::connect(const Address& destination) {
  if (destination != local()) return open_link(local(), destination);
  Result<LinkPair> pair = open_loop(destination);
  if (!pair) return tl::unexpected<Error>(pair.error());
  if (!watch(epoll_, pair->incoming->fd())) return fail(Status::kSystem, "no room to watch a link");
  incoming_.push_back(std::move(pair->incoming));
  return std::move(pair->outgoing);
}

void SharedMemoryWire::hang_up(const Address& destination, Peer& peer) {
  log::debug("{}: {} is gone from shared memory", local().text(), destination.text());
  std::erase(unpublished_, peer.link.get());
  peer.link.reset();
  peer.retry_at_ns = monotonic_ns() + kRetryNs;
}

// Warns of the first refusal only, because another process can cause any number of them.
void SharedMemoryWire::report_refusal(const std::string& what) {
  if (refusals_++ == 0) {
    log::warn("{}: {}", local().text(), what);
  } else {
    log::debug("{}: {}", local().text(), what);
  }
}

std::size_t SharedMemoryWire::room(const Address& destination) {
  OutgoingLink* const link = route(destination);
  if (link != nullptr) return link->room();
  return udp_carries_ ? udp_->room(destination) : SIZE_MAX;
}

std::span<std::byte> SharedMemoryWire::begin_packet(const Address& destination) {
  begun_ = route(destination);
  begun_in_ring_ = false;
  begun_for_itself_ = destination == local();
  if (begun_ == nullptr) return udp_carries_ ? udp_->begin_packet(destination) : std::span(scratch_);
  if (faults_.active()) return scratch_;
  const std::span<std::byte> place = begun_->ring().reserve(kMaxRecordPayloadBytes);
  begun_in_ring_ = !place.empty();
  return begun_in_ring_ ? place.first(kMaxPacketBytes) : std::span(scratch_);
}

void SharedMemoryWire::commit_packet(const Address& destination, std::size_t length_bytes) {
  OutgoingLink* const link = begun_;
  if (link == nullptr && udp_carries_) return udp_->commit_packet(destination, length_bytes);
  const std::span<const std::byte> body = std::span<const std::byte>(scratch_).first(length_bytes);
  if (link == nullptr) {
    ++own_.send_errors;
  } else if (begun_in_ring_) {
    append(*link, destination, link->ring().reserve(kMaxRecordPayloadBytes), length_bytes, {});
  } else if (faults_.active()) {
    faults_.pass(destination, body, own_, [this](const auto&... packet) { emit(packet...); });
  } else {
    emit(destination, body, {});
  }
}

// Copies a packet into the ring. Without room it is lost, as on any wire.
void SharedMemoryWire::emit(const Address& destination, std::span<const std::byte> body,
                            const Damage& damage) {
  OutgoingLink* const link = route(destination);
  const std::span<std::byte> place =
      link == nullptr ? std::span<std::byte>{} : link->ring().reserve(body.size() + roce::kIcrcBytes);
  if (place.empty()) {
    ++own_.send_errors;
    return;
  }
  std::copy(body.begin(), body.end(), place.begin());
  append(*link, destination, place, body.size(), damage);
}

// Takes the packet at `place`, `length_bytes` long and with room for an ICRC behind it, into the ring.
void SharedMemoryWire::append(OutgoingLink& link, const Address& destination, std::span<std::byte> place,
                              std::size_t length_bytes, const Damage& damage) {
  std::uint32_t flags = damage.mark ? kRecordMarked : 0;
  if (with_icrc_) {
    const std::uint32_t icrc =
        icrc_between(local(), destination, roce::kUdpPort, 0, place.first(length_bytes));
    std::memcpy(place.data() + length_bytes, &icrc, sizeof icrc);
    length_bytes += sizeof icrc;
    flags |= kRecordHasIcrc;
    if (const auto bit = damage.corrupt_bit) place[*bit / 8] ^= std::byte{1} << (*bit % 8);
    if (capture_) {
      capture_->record(unix_time_ns(), headers_of(local(), destination, damage.mark),
                       place.first(length_bytes));
    }
  }
  if (link.ring().unpublished_bytes() == 0) unpublished_.push_back(&link);
  link.ring().commit(length_bytes, flags);
  ++own_.packets_sent;
  own_.bytes_sent += length_bytes;
  ++own_.shared_memory_sent;
  if (link.ring().unpublished_bytes() < kBatchBytes) return;
  link.publish();
  std::erase(unpublished_, &link);
}

void SharedMemoryWire::flush() {
  if (faults_.active()) faults_.flush([this](const auto&... packet) { emit(packet...); });
  for (OutgoingLink* link : unpublished_) link->publish();
  unpublished_.clear();
  udp_->flush();
  if (capture_) capture_->flush();
}

bool SharedMemoryWire::arm() {
  armed_ = true;
  bool quiet = udp_->arm();
  for (const auto& link : incoming_) quiet = link->ring().arm() && quiet;
  return quiet;
}

void SharedMemoryWire::disarm() {
  armed_ = false;
  next_poll_ns_ = 0;  // a wake-up call may be why we are here
  for (const auto& link : incoming_) link->ring().disarm();
}

std::size_t SharedMemoryWire::receive(std::size_t max_packets, const Sink& sink) {
  if (armed_) disarm();
  polled_udp_ = false;
  const std::uint64_t now_ns = monotonic_ns();
  std::size_t taken = 0;
  if (now_ns >= next_poll_ns_) taken += poll_descriptors(now_ns, max_packets, sink);
  // Reads UDP if it cannot be armed, because the rest of a batch waits in it. The socket gives no event of
  // that rest.
  if (udp_carries_ && (now_ns < udp_until_ns_ || incoming_.empty() || !udp_->arm())) {
    const std::size_t from_udp = receive_udp(max_packets - taken, sink);
    if (from_udp > 0) udp_until_ns_ = now_ns + kLivelyNs;
    taken += from_udp;
  }
  if (incoming_.empty()) return taken;
  first_incoming_ = (first_incoming_ + 1) % incoming_.size();
  // By number: what the sink sends may add the link to ourselves.
  const std::size_t links = incoming_.size();
  for (std::size_t i = 0; i < links && taken < max_packets; ++i) {
    taken += drain(*incoming_[(first_incoming_ + i) % links], max_packets - taken, sink);
  }
  if (capture_ && taken > 0) capture_->flush();
  return taken;
}

// Drops packets under the address of a peer whose ring is here. It sends through that alone, and its user was
// checked.
std::size_t SharedMemoryWire::receive_udp(std::size_t max_packets, const Sink& sink) {
  in_udp_ = polled_udp_ = true;
  const auto deliver = [this, &sink](const Address& source, std::span<const std::byte> datagram) {
    const auto is_of_source = [&source](const auto& link) { return link->source() == source; };
    if (std::ranges::any_of(incoming_, is_of_source)) {
      ++own_.forged_drops;
      return;
    }
    sink(source, datagram);
  };
  const std::size_t taken = udp_->receive(max_packets, deliver);
  in_udp_ = false;
  return taken;
}

bool SharedMemoryWire::arrival_is_marked() const { return in_udp_ ? udp_->arrival_is_marked() : marked_; }

std::size_t SharedMemoryWire::drain(IncomingLink& link, std::size_t max_packets, const Sink& sink) {
  std::size_t taken = 0;
  RingConsumer& ring = link.ring();
  while (taken < max_packets) {
    const std::optional<RingConsumer::Packet> packet = ring.take();
    if (!packet) break;
    ++taken;
    deliver(link.source(), *packet, sink);
    if (ring.unreleased_bytes() >= kBatchBytes) ring.release();
  }
  ring.release();
  return taken;
}

void SharedMemoryWire::deliver(const Address& source, const RingConsumer::Packet& packet, const Sink& sink) {
  std::span<const std::byte> body = packet.bytes;
  bool intact = true;
  if (packet.has_icrc) {
    intact = body.size() > roce::kIcrcBytes;
    body = intact ? body.first(body.size() - roce::kIcrcBytes) : body.first(0);
    std::uint32_t icrc = 0;
    if (intact) std::memcpy(&icrc, body.data() + body.size(), sizeof icrc);
    intact = intact && icrc == icrc_between(source, local(), roce::kUdpPort, 0, body);
  }
  if (capture_) {
    for_record_.assign(packet.bytes.begin(), packet.bytes.end());
    if (!packet.has_icrc) {
      const std::uint32_t icrc = icrc_between(source, local(), roce::kUdpPort, 0, body);
      const auto* at = reinterpret_cast<const std::byte*>(&icrc);
      for_record_.insert(for_record_.end(), at, at + sizeof icrc);
    }
    capture_->record(unix_time_ns(), headers_of(source, local(), packet.marked), for_record_);
  }
  if (!intact) {
    ++own_.icrc_errors;
    return;
  }
  ++own_.packets_received;
  marked_ = packet.marked;
  sink(source, body);
}

// Polls everything that takes a system call: callers, the ends of links, UDP.
std::size_t SharedMemoryWire::poll_descriptors(std::uint64_t now_ns, std::size_t max_packets,
                                               const Sink& sink) {
  next_poll_ns_ = now_ns + kPollEveryNs;
  std::array<epoll_event, 32> events;
  const int n = epoll_wait(epoll_.value(), events.data(), static_cast<int>(events.size()), 0);
  std::size_t taken = 0;
  bool call_read = false;  // one call a poll, because checking it reads all UDP sockets of the host
  for (int i = 0; i < n; ++i) {
    const int fd = events[static_cast<std::size_t>(i)].data.fd;
    if (fd == listener_.value()) {
      if (!std::exchange(call_read, true)) take_call();
    } else if (fd == udp_->poll_fd()) {
      taken += receive_udp(max_packets - taken, sink);
      udp_until_ns_ = now_ns + kLivelyNs;
    } else if (std::any_of(callers_.begin(), callers_.end(),
                           [fd](const Caller& caller) { return caller.socket.value() == fd; })) {
      if (!std::exchange(call_read, true)) read_call(fd);
    } else {
      on_link_event(fd, sink);
    }
  }
  // Closes a link whose ring holds invalid records; its packets are lost until the peer calls again.
  const auto broken = [](const std::unique_ptr<IncomingLink>& link) { return link->ring().broken(); };
  for (const auto& link : incoming_) {
    if (broken(link)) report_refusal(link->source().text() + " wrote nonsense into its ring; link closed");
  }
  std::erase_if(incoming_, broken);
  return taken;
}

void SharedMemoryWire::take_call() {
  Descriptor socket = accept_call(listener_.value());
  const int fd = socket.value();
  if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
    report_refusal(
        "a peer of this host cannot be answered: no open files are left; raise the limit (ulimit -n)");
  }
  if (fd < 0 || !watch(epoll_, fd)) return;
  if (callers_.size() == kMaxCallers) callers_.erase(callers_.begin());  // drops the longest silent
  callers_.push_back({std::move(socket)});
  read_call(fd);
}

void SharedMemoryWire::read_call(int fd) {
  const auto caller = std::find_if(callers_.begin(), callers_.end(),
                                   [fd](const Caller& known) { return known.socket.value() == fd; });
  Result<std::optional<Call>> call = receive_call(fd);
  if (call && !*call) return;
  Descriptor socket = std::move(caller->socket);
  callers_.erase(caller);
  if (!call && call.error().status == Status::kNotFound) return;
  if (!call) return report_refusal(call.error().message);
  adopt((*call)->source, std::move(socket), (*call)->memory.value());
}

void SharedMemoryWire::adopt(const Address& source, Descriptor socket, int memory_fd) {
  Result<SharedMemory> memory = SharedMemory::adopt(memory_fd);
  if (!memory) return report_refusal(source.text() + " called: " + memory.error().message);
  // A peer that calls again has given its first link up.
  std::erase_if(incoming_, [&](const auto& link) { return link->source() == source; });
  if (incoming_.size() >= kMaxIncoming) return;
  incoming_.push_back(std::make_unique<IncomingLink>(source, std::move(socket), std::move(*memory)));
}

void SharedMemoryWire::on_link_event(int fd, const Sink& sink) {
  const auto incoming =
      std::find_if(incoming_.begin(), incoming_.end(), [fd](const auto& link) { return link->fd() == fd; });
  const auto outgoing = std::find_if(peers_.begin(), peers_.end(), [fd](const auto& it) {
    return it.second.link && it.second.link->fd() == fd;
  });
  // Ignores an unknown number, because an earlier event may have closed it, and another file may have it now.
  if (incoming == incoming_.end() && outgoing == peers_.end()) return;
  if (drain_wakeups(fd)) return;
  if (incoming != incoming_.end()) {
    // Delivers packets that the peer sent before its end: at most a ring full, because other processes may
    // hold its memory.
    const std::unique_ptr<IncomingLink> link = std::move(*incoming);
    incoming_.erase(incoming);
    drain(*link, kRingDataBytes / kRecordAlignBytes, sink);
    return;
  }
  hang_up(outgoing->first, outgoing->second);
}

const WireCounters& SharedMemoryWire::counters() const {
  sum_ = own_;
  return add_counters(sum_, udp_->counters());
}

Result<std::unique_ptr<Wire>> open_wire(Carrier carrier, const UdpConfig& config) {
  if (carrier == Carrier::kUdp) return open_udp(config);
  // The name is taken before the address, so that another user who has a name takes no HCA's ring from it:
  // who was given no address then has another.
  Result<Descriptor> listener = Descriptor();
  const auto take_name = [&listener](const Address& address) {
    listener = listen_for_calls(address);
    return listener || listener.error().status != Status::kBusy;
  };
  Result<BoundSocket> bound = bind_socket(config.address, config.receive_buffer_bytes, take_name);
  if (!bound) return tl::unexpected<Error>(bound.error());
  if (!config.address.empty()) static_cast<void>(take_name(bound->address));
  Result<std::shared_ptr<PcapWriter>> capture = open_capture(config.pcap_path);
  if (!capture) return tl::unexpected<Error>(capture.error());
  std::unique_ptr<Wire> udp = make_udp(std::move(*bound), config, *capture);
  Descriptor epoll = Descriptor::keep(epoll_create1(EPOLL_CLOEXEC));
  const bool udp_carries = carrier == Carrier::kAuto;
  if (listener && (epoll.value() < 0 || !watch(epoll, listener->value()) ||
                   (udp_carries && !watch(epoll, udp->poll_fd())))) {
    listener =
        fail(Status::kSystem, std::string("cannot watch for HCAs of this host: ") + std::strerror(errno));
  }
  if (!listener) {
    if (carrier == Carrier::kSharedMemory) return tl::unexpected<Error>(listener.error());
    log::warn("{}; packets take UDP", listener.error().message);
    return udp;
  }
  return std::make_unique<SharedMemoryWire>(SharedMemoryWire::Parts{.udp = std::move(udp),
                                                                    .udp_carries = udp_carries,
                                                                    .capture = std::move(*capture),
                                                                    .listener = std::move(*listener),
                                                                    .epoll = std::move(epoll)},
                                            config.faults);
}

}  // namespace gdx::softhca::wire
