// TLS below the frames of one connection, by the key of its two ranks (proto/bootstrap/secret.h). Never
// blocks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/descriptor.h"
#include "base/result.h"
#include "host/bootstrap/secret.h"
#include "proto/bootstrap/messages.h"

struct ssl_st;

namespace gdx::bootstrap {

// One rank's place on its channels.
struct ChannelPlace {
  FrameType first_frame = FrameType::kHello;
  std::uint64_t team = 0;
  std::uint32_t rank = 0;
};

// Threads: externally synchronised.
class ChannelTls {
 public:
  // The end of the rank at `place`, which has connected to rank `to`. Errors: kSystem, kNoMemory.
  [[nodiscard]] static Result<std::unique_ptr<ChannelTls>> dial(Secret::Ptr secret, const ChannelPlace& place,
                                                                std::uint32_t to, const Descriptor& socket);
  // The end of the rank at `place`, which has accepted. Errors: kSystem, kNoMemory.
  [[nodiscard]] static Result<std::unique_ptr<ChannelTls>> answer(Secret::Ptr secret,
                                                                  const ChannelPlace& place,
                                                                  const Descriptor& socket);
  ChannelTls(const ChannelTls&) = delete;
  ChannelTls& operator=(const ChannelTls&) = delete;
  ~ChannelTls();

  // Both return how many bytes passed: 0 when the socket must be waited for. Both begin the handshake and
  // continue it. Errors: kPeerGone (closed); kInvalidArgument (the other end lacks the secret, or has
  // another), kUnsupported (it speaks frames in clear).
  [[nodiscard]] Result<std::size_t> read(std::span<std::byte> bytes);
  [[nodiscard]] Result<std::size_t> write(std::span<const std::byte> bytes);
  // As read(), and the bytes stay. Errors: those of read().
  [[nodiscard]] Result<std::size_t> peek(std::span<std::byte> bytes);

  // Returns whether both ends have shown that they have the key.
  [[nodiscard]] bool is_open() const;
  // At the end that has accepted: the first message came from one who has the key, or recorded it.
  [[nodiscard]] bool is_likely() const;
  // Returns the rank at the other end, whose key it has.
  [[nodiscard]] std::uint32_t peer() const { return peer_; }
  // Waits for room to send, and not only for bytes.
  [[nodiscard]] bool awaits_room() const { return awaits_room_; }

 private:
  friend struct Callbacks;
  struct Delete {
    void operator()(ssl_st* tls) const;
  };

  ChannelTls(Secret::Ptr secret, const ChannelPlace& place, std::uint32_t peer)
      : secret_(std::move(secret)), place_(place), peer_(peer) {}
  [[nodiscard]] Result<void> begin(bool dials, const Descriptor& socket);
  [[nodiscard]] Result<std::size_t> passed(int done, std::size_t bytes);
  [[nodiscard]] Error failure(int done) const;

  Secret::Ptr secret_;
  ChannelPlace place_;
  std::uint32_t peer_;
  ChannelIdentity identity_{};
  int socket_ = -1;
  bool awaits_room_ = false;
  std::array<std::byte, sizeof kMagic> first_{};  // bytes that came first
  std::size_t first_bytes_ = 0;
  std::string refusal_;  // reason for which the other end's identity was refused
  std::optional<Error> broken_;
  std::unique_ptr<ssl_st, Delete> tls_;
};

}  // namespace gdx::bootstrap
