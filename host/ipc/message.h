// Messages of proto/ipc/messages.h as bytes, and back: pure, no sockets.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "proto/ipc/messages.h"

namespace gdx::ipc {

// A received message, whose header is valid. `body` lies in the received bytes.
struct Parsed {
  Kind kind;
  Status status;
  std::span<const std::byte> body;
};

// Errors: kInvalidArgument (too short or too long, another magic, an unknown kind), kVersionMismatch.
[[nodiscard]] Result<Parsed> parse_message(std::span<const std::byte> bytes);

// Returns the body as the structure that it must be. Errors: kInvalidArgument.
template <typename Body>
[[nodiscard]] Result<Body> parse_body(const Parsed& message) {
  Body body{};
  const std::size_t bytes = std::is_empty_v<Body> ? 0 : sizeof body;
  if (message.body.size() != bytes) {
    return fail(Status::kInvalidArgument, "a message between gdxd and a client has the wrong length");
  }
  if constexpr (!std::is_empty_v<Body>) std::memcpy(&body, message.body.data(), sizeof body);
  return body;
}

[[nodiscard]] std::vector<std::byte> encode_message(Kind kind, Status status,
                                                    std::span<const std::byte> body);

template <typename Body>
[[nodiscard]] std::vector<std::byte> encode(Kind kind, const Body& body) {
  if constexpr (std::is_empty_v<Body>) return encode_message(kind, Status::kOk, {});
  return encode_message(kind, Status::kOk, std::as_bytes(std::span(&body, 1)));
}
[[nodiscard]] std::vector<std::byte> encode_refusal(Kind kind, const Error& error);
// Returns the error that a refusal holds. An unknown status becomes kSystem, unprintable bytes '?'.
[[nodiscard]] Error decode_refusal(const Parsed& message);

// Stores `text`, cut to fit, with a zero behind it.
template <std::size_t Bytes>
void set_text(char (&to)[Bytes], std::string_view text) {
  std::memset(to, 0, Bytes);
  std::memcpy(to, text.data(), text.size() < Bytes ? text.size() : Bytes - 1);
}
// Returns the text up to its zero; a sender may have left that out.
template <std::size_t Bytes>
[[nodiscard]] std::string text_of(const char (&from)[Bytes]) {
  return {from, strnlen(from, Bytes)};
}

}  // namespace gdx::ipc
