// One connection that carries frames and never blocks, over TCP or a local socket, and encrypted where the
// job has a secret.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "host/bootstrap/channel_tls.h"
#include "host/bootstrap/frame.h"
#include "host/bootstrap/socket.h"

namespace gdx::bootstrap {

class Connection {
 public:
  Connection() = default;
  explicit Connection(Descriptor socket) : socket_(std::move(socket)) {}
  // Begin a handshake: dial() with rank `to`, answer() with the rank that connects. Without a secret neither
  // end proves anything. Errors: kSystem, kNoMemory.
  [[nodiscard]] static Result<Connection> dial(Descriptor socket, const Secret::Ptr& secret,
                                               const ChannelPlace& place, std::uint32_t to);
  [[nodiscard]] static Result<Connection> answer(Descriptor socket, const Secret::Ptr& secret,
                                                 const ChannelPlace& place);

  [[nodiscard]] explicit operator bool() const { return static_cast<bool>(socket_); }
  [[nodiscard]] const Descriptor& socket() const { return socket_; }
  // Returns the other end, for messages: of an answered connection as it was, even if it has closed.
  [[nodiscard]] std::string peer() const { return peer_.empty() ? peer_text(socket_) : peer_; }

  // Returns whether frames may be sent. Until then receive() continues the handshake.
  [[nodiscard]] bool is_open() const { return tls_ == nullptr || tls_->is_open(); }
  // Returns whether the other end is likely to have the secret, although the handshake goes on; false without
  // a secret.
  [[nodiscard]] bool is_likely() const { return tls_ != nullptr && tls_->is_likely(); }
  // Returns the rank whose key the other end has; nullopt without a secret.
  [[nodiscard]] std::optional<std::uint32_t> proven_rank() const;
  // Returns what poll() is to wait for.
  [[nodiscard]] short events() const;

  // Returns the next frame if all of it has arrived.
  // Errors: kPeerGone (closed or reset), kInvalidArgument (no secret, or another), and those of
  // FrameParser::take.
  [[nodiscard]] Result<std::optional<Frame>> receive(FrameSet allowed);

  // Checks that the other end still holds the connection and has sent nothing more.
  // Errors: kPeerGone, kInvalidArgument (it sent out of turn).
  [[nodiscard]] Result<void> expect_silence() const;

  // Appends a frame to what is sent. A frame that goes to many connections is shared by their queues.
  void queue(std::shared_ptr<const std::vector<std::byte>> frame) { outgoing_.push_back(std::move(frame)); }
  void queue(std::vector<std::byte> frame);
  // Sends what the socket takes now. Errors: kPeerGone.
  [[nodiscard]] Result<void> flush();
  [[nodiscard]] bool has_unsent() const { return !outgoing_.empty(); }

  // Ends sending from this side; sent bytes still arrive.
  void finish();

  // Sends why this side ends the connection, unless a frame is half sent, and ends sending.
  void refuse(const Failure& failure);
  // Does the same without encryption, for an other end that sent a frame where a handshake was due. It would
  // not read an encrypted answer.
  void refuse_in_clear(const Failure& failure);

 private:
  // Read and write as ChannelTls does, or the socket itself without a secret.
  [[nodiscard]] Result<std::size_t> read(std::span<std::byte> bytes) const;
  [[nodiscard]] Result<std::size_t> write(std::span<const std::byte> bytes) const;

  Descriptor socket_;
  std::string peer_;
  std::unique_ptr<ChannelTls> tls_;  // null without a secret
  FrameParser parser_;
  std::deque<std::shared_ptr<const std::vector<std::byte>>> outgoing_;
  std::size_t sent_ = 0;  // bytes sent of the first
};

}  // namespace gdx::bootstrap
