// One TCP connection that carries frames and never blocks.
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

  // Returns the next frame if all of it has arrived.
  // Errors: kPeerGone (closed or reset), and those of FrameParser::take.
  [[nodiscard]] Result<std::optional<Frame>> receive(FrameSet allowed);

  // Checks that the other end still holds the connection and has sent nothing more.
  // Errors: kPeerGone, kInvalidArgument (it sent out of turn).
  [[nodiscard]] Result<void> expect_silence() const;

  void queue(std::vector<std::byte> frame);
  // Sends what the socket takes now. Errors: kPeerGone.
  [[nodiscard]] Result<void> flush();
  [[nodiscard]] bool has_unsent() const { return !outgoing_.empty(); }

  // Ends sending from this side; sent bytes still arrive.
  void finish();

  // Sends why this side ends the connection, unless a frame is half sent, and ends sending.
  void refuse(const Failure& failure);

 private:
  Descriptor socket_;
  FrameParser parser_;
  std::deque<std::vector<std::byte>> outgoing_;
  std::size_t sent_ = 0;  // bytes sent of the first
};

}  // namespace gdx::bootstrap
