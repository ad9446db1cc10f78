#include "host/messaging/peer.h"

#include <fmt/format.h>

#include <cstring>

#include "base/clock.h"
#include "host/bootstrap/socket.h"

namespace gdx::messaging {

using bootstrap::FrameType;
using bootstrap::MeetingKind;
using bootstrap::MeetingMessage;

std::vector<std::byte> meeting_frame(End end, const MeetingMessage& message) {
  return bootstrap::encode_frame(FrameType::kMeeting, static_cast<std::uint32_t>(end), 0,
                                 std::as_bytes(std::span(&message, 1)));
}

Peer::Peer(std::shared_ptr<Keeper> keeper, std::unique_ptr<Link> link, bootstrap::Connection connection,
           End end)
    : keeper_(std::move(keeper)),
      connection_(std::move(connection)),
      name_(connection_.peer()),
      end_(end),
      link_(std::move(link)) {
  bootstrap::keep_alive(connection_.socket());
  keeper_->add(*this);
}

void Peer::close(std::unique_ptr<Peer> peer) {
  const auto keeper = peer->keeper_;
  {
    const std::lock_guard lock(peer->mutex_);
    peer->step(monotonic_ns());  // answers that are due go first
    const Link& link = *peer->link_;
    if (link.delivered() == 0 || !link.is_quiet() || link.failure() || peer->hung_up_) return;
    peer->say_bye();
    peer->closed_ns_ = monotonic_ns();
  }
  peer->keeper_ = nullptr;
  keeper->own(std::move(peer));
}

Peer::~Peer() {
  if (keeper_) keeper_->remove(*this);
  if (closed_ns_ == 0 && !hung_up_) say_bye();
  connection_.finish();
}

bool Peer::is_over() const {
  return hung_up_ || link_->failure() || monotonic_ns() - closed_ns_ > kMostGraceNs;
}

void Peer::say_bye() {
  MeetingMessage bye{};
  bye.version = bootstrap::kMeetingVersion;
  bye.kind = static_cast<std::uint32_t>(MeetingKind::kBye);
  bye.taken = link_->taken();
  bye.sent = link_->delivered();
  connection_.queue(meeting_frame(end_, bye));
  (void)connection_.flush();
}

Result<PortRegion> Peer::register_memory(std::byte* address, std::uint64_t bytes, bool remote) {
  const std::lock_guard lock(mutex_);
  return link_->register_memory(address, bytes, remote);
}

void Peer::forget_memory(const PortRegion& region, std::span<const std::byte> memory) {
  const std::lock_guard lock(mutex_);
  link_->forget_memory(region, memory);
}

Result<std::uint64_t> Peer::send(std::int32_t tag, std::uint64_t bytes, const PortSource& from) {
  const std::lock_guard lock(mutex_);
  auto number = link_->send(tag, bytes, from);
  step(monotonic_ns());
  return number;
}

Result<std::uint64_t> Peer::receive(std::span<const Part> parts) {
  const std::lock_guard lock(mutex_);
  auto group = link_->receive(parts);
  step(monotonic_ns());
  return group;
}

Result<bool> Peer::sent(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  step(monotonic_ns());
  return link_->sent(number);
}

Result<std::optional<Link::Received>> Peer::received(std::uint64_t group) {
  const std::lock_guard lock(mutex_);
  step(monotonic_ns());
  return link_->received(group);
}

void Peer::progress() {
  const std::lock_guard lock(mutex_);
  step(monotonic_ns());
}

void Peer::take_turn() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;
  const std::uint64_t now_ns = monotonic_ns();  // behind the lock, so that it is never before a caller's
  step(now_ns);
  look(now_ns);
}

void Peer::give_up(const char* why) {
  const std::lock_guard lock(mutex_);
  link_->lose({Status::kSystem, fmt::format("peer {}: this end failed: {}", name_, why)});
}

void Peer::step(std::uint64_t now_ns) {
  if (link_->is_lost()) return;
  grace_.on_look(link_->progress(now_ns));
  if (link_->failure()) begin_to_lose(*link_->failure(), now_ns);
  if (!losing_) return;
  // Sends that the peer has delivered lie in this end's queue. A wire that failed may yet be excused by the
  // peer's last words.
  const bool over = owed_ && link_->taken() >= *owed_;
  if (!over && !grace_.is_over(now_ns)) return;
  link_->lose({losing_->status, fmt::format("peer {}: {}", name_, losing_->message)});
  if (hung_up_) connection_ = bootstrap::Connection();  // by which a peer that closes is over
}

void Peer::begin_to_lose(Error error, std::uint64_t now_ns) {
  if (losing_) return;
  losing_ = std::move(error);
  grace_.begin(now_ns);
}

void Peer::look(std::uint64_t now_ns) {
  if (hung_up_) return;
  if (connection_.has_unsent()) (void)connection_.flush();
  const auto frame = connection_.receive({FrameType::kMeeting, FrameType::kFailed});
  if (frame && !*frame) return;
  hung_up_ = true;
  if (!frame)
    return begin_to_lose({Status::kPeerGone,
                          fmt::format("it {} without a word: its process has ended, or its network has; see "
                                      "its log",
                                      frame.error().message)},
                         now_ns);
  MeetingMessage message{};
  if ((*frame)->type == FrameType::kMeeting) std::memcpy(&message, (*frame)->payload.data(), sizeof message);
  if (message.kind != static_cast<std::uint32_t>(MeetingKind::kBye))
    return begin_to_lose({Status::kRemoteInvalid, "it sent words out of turn"}, now_ns);
  link_->peer_has_taken(message.taken);
  owed_ = message.sent;
  // Comes in place of the wire's words, which a peer that closes may cause before its own are here.
  const std::string before = losing_ ? fmt::format(" (before: {})", losing_->message) : std::string();
  losing_.reset();
  begin_to_lose({Status::kPeerGone, fmt::format("it has closed this communicator{}", before)}, now_ns);
}

}  // namespace gdx::messaging
