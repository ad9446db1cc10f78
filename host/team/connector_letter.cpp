#include "host/team/connector_letter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "host/bootstrap/frame.h"

namespace gdx {

using bootstrap::ConnectorMessage;

namespace {

static_assert(sizeof(EndpointAddress) == bootstrap::kEndpointAddressBytes);

tl::unexpected<Error> refuse(const char* field, std::uint64_t value) {
  return fail(Status::kInvalidArgument,
              fmt::format("sent a connector message with the impossible {} {}", field, value));
}

bool has_address(ConnectorKind kind) {
  return kind == ConnectorKind::kAsk || kind == ConnectorKind::kAnswer || kind == ConnectorKind::kDone;
}

Result<void> check(const ConnectorMessage& message, const ConnectorPlace& place) {
  if (message.version != bootstrap::kConnectorVersion) {
    return fail(Status::kVersionMismatch,
                fmt::format("sent a connector message of version {}, this side has "
                            "{}: run the same gdx on all ranks",
                            std::uint32_t{message.version}, bootstrap::kConnectorVersion));
  }
  if (message.team != place.team) {
    return fail(Status::kInvalidArgument,
                "is of another team: each team's ranks meet by their own addresses");
  }
  if (message.to != place.rank) return refuse("receiver", message.to);
  if (message.from >= place.size || message.from == place.rank) return refuse("sender", message.from);
  if (message.lane >= place.lanes) return refuse("lane", message.lane);
  const std::uint32_t kind = message.kind;
  if (kind < static_cast<std::uint32_t>(ConnectorKind::kAsk) ||
      kind > static_cast<std::uint32_t>(ConnectorKind::kRefusal)) {
    return refuse("kind", kind);
  }
  const bool connected = kind == static_cast<std::uint32_t>(ConnectorKind::kAnswer) ||
                         kind == static_cast<std::uint32_t>(ConnectorKind::kDone);
  if ((message.connected_qpn != 0) != connected) return refuse("connected QPN", message.connected_qpn);
  return {};
}

}  // namespace

ConnectorMessage encode_letter(const ConnectorLetter& letter, const ConnectorPlace& place, std::uint32_t to) {
  ConnectorMessage message{};
  message.version = bootstrap::kConnectorVersion;
  message.kind = static_cast<std::uint32_t>(letter.kind);
  message.team = place.team;
  message.from = place.rank;
  message.to = to;
  message.lane = letter.lane;
  if (has_address(letter.kind)) {
    message.connected_qpn = letter.connected_qpn;
    std::memcpy(message.address, &letter.address, sizeof letter.address);
    return message;
  }
  message.status = static_cast<std::uint32_t>(letter.why.status);
  std::memcpy(message.reason, letter.why.message.data(),
              std::min(letter.why.message.size(), sizeof message.reason));
  return message;
}

Result<ConnectorLetter> decode_letter(std::span<const std::byte> payload, const ConnectorPlace& place) {
  if (payload.size() != sizeof(ConnectorMessage)) return refuse("length", payload.size());
  ConnectorMessage message{};
  std::memcpy(&message, payload.data(), sizeof message);
  GDX_TRY(check(message, place));
  ConnectorLetter letter;
  letter.kind = static_cast<ConnectorKind>(std::uint32_t{message.kind});
  letter.from = message.from;
  letter.lane = message.lane;
  letter.connected_qpn = message.connected_qpn;
  if (has_address(letter.kind)) {
    std::memcpy(&letter.address, message.address, sizeof letter.address);
    return letter;
  }
  const std::size_t length = strnlen(message.reason, sizeof message.reason);
  letter.why = {bootstrap::decode_status(message.status),
                bootstrap::decode_text(std::as_bytes(std::span(message.reason).first(length)))};
  return letter;
}

}  // namespace gdx
