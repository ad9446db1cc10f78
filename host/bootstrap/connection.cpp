#include "host/bootstrap/connection.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace gdx::bootstrap {
namespace {

constexpr std::size_t kReadBytes = 64 * 1024;

tl::unexpected<Error> closed() { return fail(Status::kPeerGone, "closed its connection"); }

bool must_wait(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace

Result<Connection> Connection::dial(Descriptor socket, const Secret::Ptr& secret, const ChannelPlace& place,
                                    std::uint32_t to) {
  Connection connection(std::move(socket));
  if (secret) connection.tls_ = GDX_TRY(ChannelTls::dial(secret, place, to, connection.socket_));
  return connection;
}

Result<Connection> Connection::answer(Descriptor socket, const Secret::Ptr& secret,
                                      const ChannelPlace& place) {
  Connection connection(std::move(socket));
  connection.peer_ = peer_text(connection.socket_);
  if (secret) connection.tls_ = GDX_TRY(ChannelTls::answer(secret, place, connection.socket_));
  return connection;
}

std::optional<std::uint32_t> Connection::proven_rank() const {
  return tls_ != nullptr && tls_->is_open() ? std::optional(tls_->peer()) : std::nullopt;
}

short Connection::events() const {
  const bool sends = is_open() ? has_unsent() : tls_->awaits_room();
  return sends ? POLLIN | POLLOUT : POLLIN;
}

Result<std::size_t> Connection::read(std::span<std::byte> bytes) const {
  if (tls_ != nullptr) return tls_->read(bytes);
  ssize_t got = 0;
  do {
    got = ::recv(socket_.value(), bytes.data(), bytes.size(), 0);
  } while (got < 0 && errno == EINTR);
  if (got > 0) return static_cast<std::size_t>(got);
  if (got < 0 && must_wait(errno)) return std::size_t{0};
  return closed();
}

Result<std::size_t> Connection::write(std::span<const std::byte> bytes) const {
  if (tls_ != nullptr) return tls_->write(bytes);
  ssize_t sent = 0;
  do {
    sent = ::send(socket_.value(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return static_cast<std::size_t>(sent);
  if (must_wait(errno)) return std::size_t{0};
  return closed();
}

Result<std::optional<Frame>> Connection::receive(FrameSet allowed) {
  std::array<std::byte, kReadBytes> chunk;
  for (;;) {
    auto frame = parser_.take(allowed);
    if (!frame || frame->has_value()) return frame;
    const std::size_t wanted = std::min(parser_.wanted_bytes(), chunk.size());
    const std::size_t got = GDX_TRY(read(std::span(chunk).first(wanted)));
    if (got == 0) return std::optional<Frame>{};
    parser_.feed(std::span(chunk).first(got));
  }
}

Result<void> Connection::expect_silence() const {
  std::byte next{};
  if (tls_ != nullptr) {
    const std::size_t got = GDX_TRY(tls_->peek(std::span(&next, 1)));
    if (got == 0) return {};
    return fail(Status::kInvalidArgument, "sent a frame out of turn");
  }
  const ssize_t got = ::recv(socket_.value(), &next, sizeof next, MSG_PEEK);
  if (got > 0) return fail(Status::kInvalidArgument, "sent a frame out of turn");
  if (got < 0 && (must_wait(errno) || errno == EINTR)) return {};
  return closed();
}

void Connection::queue(std::vector<std::byte> frame) {
  queue(std::make_shared<const std::vector<std::byte>>(std::move(frame)));
}

Result<void> Connection::flush() {
  while (has_unsent()) {
    const std::size_t sent = GDX_TRY(write(std::span(*outgoing_.front()).subspan(sent_)));
    if (sent == 0) return {};
    sent_ += sent;
    if (sent_ < outgoing_.front()->size()) continue;
    outgoing_.pop_front();
    sent_ = 0;
  }
  return {};
}

void Connection::finish() {
  if (socket_) ::shutdown(socket_.value(), SHUT_WR);
}

void Connection::refuse(const Failure& failure) {
  // Behind a half-sent frame no other can follow; the other end sees the connection close.
  if (!has_unsent()) {
    queue(encode_failure(failure));
    static_cast<void>(flush());
  }
  finish();
}

void Connection::refuse_in_clear(const Failure& failure) {
  tls_.reset();
  // Reads the rest, because what stays unread resets the connection, and the answer with it.
  std::array<std::byte, sizeof(FrameHeader) + sizeof(HelloBody)> rest;
  static_cast<void>(::recv(socket_.value(), rest.data(), rest.size(), 0));
  refuse(failure);
}

}  // namespace gdx::bootstrap
