#include "host/ipc/message.h"

#include <fmt/format.h>

#include <algorithm>

#include "host/bootstrap/frame.h"

namespace gdx::ipc {

Result<Parsed> parse_message(std::span<const std::byte> bytes) {
  Header header{};
  if (bytes.size() < sizeof header || bytes.size() > kMaxMessageBytes) {
    return fail(Status::kInvalidArgument,
                fmt::format("a message of {} bytes is none of gdxd's", bytes.size()));
  }
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kMagic) {
    return fail(Status::kInvalidArgument,
                fmt::format("a message begins with {:#x}, not gdxd's", header.magic));
  }
  if (header.version != kVersion) {
    return fail(
        Status::kVersionMismatch,
        fmt::format("a message of protocol version {} came, and this side has {}: use gdxd and libgdx of one "
                    "release",
                    header.version, kVersion));
  }
  if (header.kind == 0 || header.kind > kLastKind) {
    return fail(Status::kInvalidArgument, fmt::format("a message is of the unknown kind {}", header.kind));
  }
  const Status status = header.status == 0 ? Status::kOk : bootstrap::decode_status(header.status);
  return Parsed{static_cast<Kind>(header.kind), status, bytes.subspan(sizeof header)};
}

std::vector<std::byte> encode_message(Kind kind, Status status, std::span<const std::byte> body) {
  const Header header{kMagic, kVersion, static_cast<std::uint16_t>(kind), static_cast<std::uint32_t>(status),
                      0};
  std::vector<std::byte> bytes(sizeof header + body.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  if (!body.empty()) std::memcpy(bytes.data() + sizeof header, body.data(), body.size());
  return bytes;
}

std::vector<std::byte> encode_refusal(Kind kind, const Error& error) {
  const std::string_view reason = std::string_view(error.message).substr(0, kMaxReasonBytes);
  return encode_message(kind, error.status, std::as_bytes(std::span(reason)));
}

Error decode_refusal(const Parsed& message) { return {message.status, bootstrap::decode_text(message.body)}; }

}  // namespace gdx::ipc
