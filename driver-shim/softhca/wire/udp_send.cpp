// Packets that the UDP wire sends: from the arena into runs, and from there to the kernel or to the own
// queue.
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "driver-shim/softhca/wire/udp_wire.h"
#include "proto/roce/codec.h"
#include "proto/roce/headers.h"
#include "proto/roce/ip_header.h"

namespace gdx::softhca::wire {
namespace {

// Number and length of a flush's waits for room in a full socket buffer, before it drops.
constexpr int kMaxSendWaits = 8;
constexpr int kSendWaitMs = 1;
constexpr std::size_t kMostHeldBytes = 256
                                       << 10;  // in packets that wait for a token, acknowledgements mostly

}  // namespace

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

// Takes the datagram at the arena's end into the newest run, or starts one with it. Holds it back where the
// peer's token is awaited.
void UdpWire::append(const Address& destination, std::size_t length_bytes, const Damage& damage) {
  const std::span<const std::byte> body = std::span<const std::byte>(arena_).subspan(used_, length_bytes);
  // A message may go to an invented address, of which nothing must be stored.
  HostTokens::Peer* const peer = is_token_message(body) ? nullptr : &peer_at(destination);
  if (peer != nullptr && peer->standing == HostTokens::Standing::kAwaited) {
    if (held_bytes_ + length_bytes > kMostHeldBytes) {
      ++counters_.send_errors;
      return;
    }
    held_.push_back({destination, {body.begin(), body.end()}, damage});
    held_bytes_ += length_bytes;
    return;
  }
  const Seal seal = peer == nullptr ? Seal() : peer->to;
  const bool of_host = peer == nullptr || peer->standing == HostTokens::Standing::kKnown;
  const std::size_t datagram_bytes = length_bytes + roce::kIcrcBytes;
  const bool bare = loops(destination) && !pcap_ && !damage.corrupt_bit;
  const bool joins = gso_ && !runs_.empty() && !runs_.back().closed && runs_.back().marked == damage.mark &&
                     runs_.back().destination == destination && runs_.back().bare == bare &&
                     runs_.back().seal == seal && runs_.back().of_host == of_host &&
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
                        .seal = seal,
                        .of_host = of_host,
                        .bare = bare});
    if (peer != nullptr && peer->standing != HostTokens::Standing::kOther)
      tokens_.renew(destination, *peer, coarse_ns());
  }
  finish_datagram(runs_.back(), length_bytes, damage);
}

// Gives the datagram at the arena's end its ICRC, and adds it to `run`. The capture has it without its seal.
void UdpWire::finish_datagram(Run& run, std::size_t length_bytes, const Damage& damage) {
  const std::size_t datagram_bytes = length_bytes + roce::kIcrcBytes;
  const std::span<std::byte> datagram = std::span(arena_).subspan(used_, datagram_bytes);
  const auto ip_id = static_cast<std::uint16_t>(run.of_host ? 0 : run.segments);
  if (!run.bare) {
    const std::uint32_t icrc =
        calculator_.between(local_, run.destination, roce::kUdpPort, ip_id, datagram.first(length_bytes));
    std::memcpy(datagram.data() + length_bytes, &icrc, sizeof icrc);
  }
  if (const auto bit = damage.corrupt_bit) datagram[*bit / 8] ^= std::byte{1} << (*bit % 8);
  if (pcap_ && !is_token_message(datagram)) {
    const roce::Ecn ecn = run.marked ? roce::Ecn::kCongestionExperienced : ecn_;
    pcap_->record(unix_time_ns(), {local_, run.destination, roce::kUdpPort, ip_id, ecn}, datagram);
  }
  run.seal.apply(datagram);
  run.segments += 1;
  run.length_bytes += datagram_bytes;
  run.closed = datagram_bytes < run.segment_bytes;
  used_ += datagram_bytes;
  ++counters_.packets_sent;
  counters_.bytes_sent += datagram_bytes;
  if (used_ + run.segment_bytes > kMaxGsoBytes) send_runs();
}

// Sends what HCAs of this host tell each other of tokens. No fault meets it, no counter counts it and no
// capture shows it, because all three are of packets of queue pairs.
void UdpWire::send_token_messages() {
  for (const HostTokens::Message& message : tokens_.take_due()) {
    roce::Headers headers;
    headers.bth.opcode = message.opcode;
    std::array<std::byte, roce::kBthBytes + roce::kHostTokenBytes> body{};
    const std::size_t header_bytes = roce::encode(headers, body);
    roce::encode_host_token(message.body, std::span(body).subspan(header_bytes));
    append_copy(message.peer, body, {});
    --counters_.packets_sent;
    counters_.bytes_sent -= body.size() + roce::kIcrcBytes;
  }
}

void UdpWire::release_held() {
  held_bytes_ = 0;
  for (const Held& packet : std::exchange(held_, {}))
    append_copy(packet.destination, packet.body, packet.damage);
}

// Sends nothing by itself once the program has closed the socket, because its number may be that of a file of
// the program.
void UdpWire::tend_tokens() {
  const bool ended = tokens_.next_deadline_ns() != HostTokens::kNever && tokens_.advance(coarse_ns());
  if (!ended && !tokens_.has_due()) return;
  if (lost()) {
    static_cast<void>(tokens_.take_due());
    held_.clear();
    held_bytes_ = 0;
    return;
  }
  if (ended) release_held();
  send_token_messages();
}

void UdpWire::on_token_message(const Endpoint& from, std::span<const std::byte> datagram) {
  const std::optional<roce::Decoded> packet = roce::decode(datagram);
  const auto body = packet ? roce::decode_host_token(packet->payload) : std::nullopt;
  if (!body || from.port != roce::kUdpPort) return;
  const bool known = tokens_.on_message(from.address, packet->headers.bth.opcode, *body, coarse_ns());
  send_token_messages();
  if (known) release_held();
}

void UdpWire::flush() {
  faults_.flush([this](const auto&... packet) { append_copy(packet...); });
  tend_tokens();
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

}  // namespace gdx::softhca::wire
