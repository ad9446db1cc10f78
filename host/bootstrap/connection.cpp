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

Result<std::optional<Frame>> Connection::receive(FrameSet allowed) {
  std::array<std::byte, kReadBytes> chunk;
  for (;;) {
    auto frame = parser_.take(allowed);
    if (!frame || frame->has_value()) return frame;
    const std::size_t wanted = std::min(parser_.wanted_bytes(), chunk.size());
    const ssize_t got = ::recv(socket_.value(), chunk.data(), wanted, 0);
    if (got > 0) {
      parser_.feed(std::span(chunk).first(static_cast<std::size_t>(got)));
    } else if (got == 0) {
      return closed();
    } else if (must_wait(errno)) {
      return std::optional<Frame>{};
    } else if (errno != EINTR) {
      return closed();
    }
  }
}

Result<void> Connection::expect_silence() const {
  std::byte next{};
  const ssize_t got = ::recv(socket_.value(), &next, sizeof next, MSG_PEEK);
  if (got > 0) return fail(Status::kInvalidArgument, "sent a frame out of turn");
  if (got < 0 && (must_wait(errno) || errno == EINTR)) return {};
  return closed();
}

void Connection::queue(std::vector<std::byte> frame) { outgoing_.push_back(std::move(frame)); }

Result<void> Connection::flush() {
  while (has_unsent()) {
    const std::span<const std::byte> unsent = std::span(outgoing_.front()).subspan(sent_);
    const ssize_t sent = ::send(socket_.value(), unsent.data(), unsent.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      sent_ += static_cast<std::size_t>(sent);
      if (sent_ == outgoing_.front().size()) {
        outgoing_.pop_front();
        sent_ = 0;
      }
    } else if (must_wait(errno)) {
      return {};
    } else if (errno != EINTR) {
      return closed();
    }
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

}  // namespace gdx::bootstrap
