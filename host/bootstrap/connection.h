// One TCP connection that carries frames, without ever blocking.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/bootstrap/frame.h"
#include "host/bootstrap/socket.h"

namespace gdx::bootstrap {

class Connection {
 public:
  Connection() = default;
  explicit Connection(Descriptor socket) : socket_(std::move(socket)) {}

  [[nodiscard]] explicit operator bool() const { return static_cast<bool>(socket_); }
  [[nodiscard]] const Descriptor& socket() const { return socket_; }

  // The next frame if it is all there.
  // Errors: kPeerGone (closed or reset), and those of FrameParser::take.
  [[nodiscard]] Result<std::optional<Frame>> receive(FrameSet allowed);

  // Whether the other end still holds the connection and has sent nothing more.
  // Errors: kPeerGone, kInvalidArgument (it spoke out of turn).
  [[nodiscard]] Result<void> expect_silence() const;

  void queue(std::vector<std::byte> frame);
  // Sends what the socket takes now. Errors: kPeerGone.
  [[nodiscard]] Result<void> flush();
  [[nodiscard]] bool has_unsent() const { return !outgoing_.empty(); }

  // No more from this side; what was sent still arrives.
  void finish();

 private:
  Descriptor socket_;
  FrameParser parser_;
  std::deque<std::vector<std::byte>> outgoing_;
  std::size_t sent_ = 0;  // of the first
};

}  // namespace gdx::bootstrap
