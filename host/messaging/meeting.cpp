#include "host/messaging/meeting.h"

#include <fmt/format.h>
#include <poll.h>

#include <cstring>
#include <random>

#include "base/log.h"
#include "host/bootstrap/admission.h"
#include "host/bootstrap/socket.h"

namespace gdx::messaging {
namespace {

using bootstrap::ChannelPlace;
using bootstrap::Connection;
using bootstrap::FrameType;
using bootstrap::MeetingKind;
using bootstrap::MeetingMessage;
using bootstrap::Secret;

constexpr int kMostRedials = 3;

ChannelPlace place_of(End end, std::uint64_t number) {
  return {FrameType::kMeeting, number, static_cast<std::uint32_t>(end)};
}

std::vector<std::byte> card_frame(End end, const Link& link) {
  MeetingMessage message{};
  message.version = bootstrap::kMeetingVersion;
  message.kind = static_cast<std::uint32_t>(MeetingKind::kCard);
  const agent::Card card = link.card();
  std::memcpy(message.card, &card, sizeof card);
  return meeting_frame(end, message);
}

Result<agent::Card> card_of(const bootstrap::Frame& frame) {
  MeetingMessage message{};
  std::memcpy(&message, frame.payload.data(), sizeof message);
  if (message.version != bootstrap::kMeetingVersion)
    return fail(Status::kVersionMismatch,
                fmt::format("it has meeting version {}, this end {}: run the same gdx",
                            std::uint32_t{message.version}, bootstrap::kMeetingVersion));
  if (message.kind != static_cast<std::uint32_t>(MeetingKind::kCard))
    return fail(Status::kRemoteInvalid, "it sent words out of turn");
  agent::Card card{};
  std::memcpy(&card, message.card, sizeof card);
  return card;
}

Result<std::unique_ptr<Link>> open_link(const Door& door, End end) {
  return Link::open(GDX_TRY(open_libfabric_port(door.port)), end);
}

std::uint64_t random_number() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random();
}

// A secret as it travels in an invitation.
Result<Secret::Ptr> secret_of(const Invitation& invitation) {
  std::string digits;
  for (const std::uint8_t byte : invitation.secret) digits += fmt::format("{:02x}", byte);
  auto secret = Secret::from_text(digits);
  bootstrap::wipe(std::as_writable_bytes(std::span(digits)));
  return secret;
}

void write_secret(const Secret& secret, Invitation& invitation) {
  std::string digits = secret.text();
  for (std::size_t i = 0; i < invitation.secret.size(); ++i)
    invitation.secret[i] = static_cast<std::uint8_t>(std::stoul(digits.substr(2 * i, 2), nullptr, 16));
  bootstrap::wipe(std::as_writable_bytes(std::span(digits)));
}

}  // namespace

Result<Inviting> invite(const Door& door) {
  Inviting inviting{};
  inviting.listener = GDX_TRY(bootstrap::listen_on(door.host));
  Invitation& invitation = inviting.invitation;
  invitation.magic = kInvitationMagic;
  invitation.version = kInvitationVersion;
  invitation.number = random_number();
  const std::string address = bootstrap::own_text(inviting.listener);
  if (address.size() >= invitation.address.size())
    return fail(Status::kInvalidArgument, fmt::format("the address {} is too long", address));
  address.copy(invitation.address.data(), address.size());
  inviting.told = GDX_TRY(bootstrap::secret_to_tell());
  if (inviting.told) {
    invitation.has_secret = 1;
    write_secret(*inviting.told, invitation);
  }
  return inviting;
}

Result<Invited> read_invitation(const Invitation& invitation) {
  if (invitation.magic != kInvitationMagic || invitation.version != kInvitationVersion ||
      invitation.has_secret > 1)
    return fail(Status::kVersionMismatch,
                fmt::format("the peer's handle is not of this gdx (magic {:#x}, version {}): load the same "
                            "plugin on all ranks",
                            invitation.magic, invitation.version));
  Invited invited;
  invited.address.assign(invitation.address.data(),
                         strnlen(invitation.address.data(), invitation.address.size()));
  if (invitation.has_secret != 0) invited.told = GDX_TRY(secret_of(invitation));
  return invited;
}

Host::Host(std::shared_ptr<Keeper> keeper, Door door, const Invitation& invitation,
           bootstrap::Reception reception)
    : keeper_(std::move(keeper)),
      door_(std::move(door)),
      invitation_(invitation),
      reception_(std::move(reception)) {
  keeper_->add(*this);
}

Host::~Host() { keeper_->remove(*this); }

Result<std::unique_ptr<Host>> Host::open(std::shared_ptr<Keeper> keeper, const Door& door) {
  auto inviting = GDX_TRY(invite(door));
  const std::string address = bootstrap::own_text(inviting.listener);
  const auto admission = GDX_TRY(bootstrap::choose_admission(address, inviting.told, kInvitationReaders));
  log::info("messaging: peers at {} are recognised {}", address, admission.text);
  bootstrap::Reception reception(std::move(inviting.listener),
                                 place_of(End::kAccepting, inviting.invitation.number), admission.secret);
  return std::unique_ptr<Host>(new Host(std::move(keeper), door, inviting.invitation, std::move(reception)));
}

Result<std::unique_ptr<Peer>> Host::accept() {
  std::unique_lock lock(mutex_);
  GDX_TRY(receive());
  if (arrivals_.empty()) return std::unique_ptr<Peer>();
  auto arrival = std::move(arrivals_.front());
  arrivals_.pop_front();
  lock.unlock();
  return answer(std::move(arrival));
}

Result<void> Host::receive() {
  auto arrived = GDX_TRY(reception_.receive());
  for (auto& arrival : arrived) arrivals_.push_back(std::move(arrival));
  return {};
}

void Host::take_turn() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock) (void)receive();  // the listener reports its error again
}

Result<std::unique_ptr<Peer>> Host::answer(bootstrap::Reception::Arrival arrival) {
  const auto made = [&]() -> Result<std::unique_ptr<Link>> {
    const agent::Card card = GDX_TRY(card_of(arrival.hello));
    auto link = GDX_TRY(open_link(door_, End::kAccepting));
    GDX_TRY(link->connect(card));
    return link;
  };
  auto link = made();
  if (!link) {
    arrival.connection.refuse(
        {link.error().status, static_cast<std::uint32_t>(End::kAccepting), link.error().message});
    return fail(link.error().status,
                fmt::format("peer {}: {}", arrival.connection.peer(), link.error().message));
  }
  arrival.connection.queue(card_frame(End::kAccepting, **link));
  (void)arrival.connection.flush();  // the peer's turns send the rest
  return std::make_unique<Peer>(keeper_, std::move(*link), std::move(arrival.connection), End::kAccepting);
}

Guest::Guest(std::shared_ptr<Keeper> keeper, std::string address, std::uint64_t number, Secret::Ptr secret,
             Descriptor socket, std::unique_ptr<Link> link)
    : keeper_(std::move(keeper)),
      address_(std::move(address)),
      number_(number),
      secret_(std::move(secret)),
      socket_(std::move(socket)),
      link_(std::move(link)) {
  keeper_->add(*this);
}

Guest::~Guest() { keeper_->remove(*this); }

Result<std::unique_ptr<Guest>> Guest::begin(std::shared_ptr<Keeper> keeper, const Door& door,
                                            const Invitation& invitation) {
  const Invited invited = GDX_TRY(read_invitation(invitation));
  const auto admission =
      GDX_TRY(bootstrap::choose_admission(invited.address, invited.told, kInvitationReaders));
  auto link = GDX_TRY(open_link(door, End::kConnecting));
  auto socket = GDX_TRY(bootstrap::begin_connect(invited.address));
  return std::unique_ptr<Guest>(new Guest(std::move(keeper), invited.address, invitation.number,
                                          admission.secret, std::move(socket), std::move(link)));
}

void Guest::take_turn() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock) try_to_advance();
}

void Guest::give_up(const char* why) {
  // Else step() has it, and may wait for the keeper.
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock) error_ = Error{Status::kSystem, why};
}

void Guest::try_to_advance() {
  if (answered_ || error_) return;
  const auto advanced = advance();
  if (advanced) return;
  error_ = advanced.error();
  const bool was_dropped = error_->status == Status::kPeerGone && connection_;
  if (!was_dropped || redials_ == kMostRedials) return;
  ++redials_;
  connection_ = Connection();
  auto socket = bootstrap::begin_connect(address_);
  if (!socket) return;
  socket_ = std::move(*socket);
  error_.reset();
}

Result<void> Guest::advance() {
  if (socket_) {
    pollfd waiting{socket_.value(), POLLOUT, 0};
    if (::poll(&waiting, 1, 0) <= 0) return {};
    GDX_TRY(bootstrap::finish_connect(socket_));
    bootstrap::keep_alive(socket_);
    connection_ = GDX_TRY(Connection::dial(std::move(socket_), secret_, place_of(End::kConnecting, number_),
                                           static_cast<std::uint32_t>(End::kAccepting)));
    connection_.queue(card_frame(End::kConnecting, *link_));
  }
  const auto frame = GDX_TRY(connection_.receive({FrameType::kMeeting, FrameType::kFailed}));
  if (connection_.is_open()) GDX_TRY(connection_.flush());
  if (!frame) return {};
  if (frame->type == FrameType::kFailed) {
    const auto failure = bootstrap::decode_failure(*frame);
    return fail(failure.status, fmt::format("it refuses: {}", failure.reason));
  }
  const agent::Card card = GDX_TRY(card_of(*frame));
  GDX_TRY(link_->connect(card));
  answered_ = true;
  return {};
}

Result<std::unique_ptr<Peer>> Guest::step() {
  const std::lock_guard lock(mutex_);
  try_to_advance();
  if (error_) return fail(error_->status, fmt::format("peer {}: {}", address_, error_->message));
  if (!answered_ || !link_) return std::unique_ptr<Peer>();
  return std::make_unique<Peer>(keeper_, std::move(link_), std::move(connection_), End::kConnecting);
}

}  // namespace gdx::messaging
