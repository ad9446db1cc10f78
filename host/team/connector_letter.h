// Statements of two ranks of a team about one endpoint each, and their bytes (proto/bootstrap/connector.h).
// (proto/bootstrap/connector.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "host/queue/endpoint_address.h"
#include "proto/bootstrap/connector.h"

namespace gdx {

using bootstrap::ConnectorKind;

struct ConnectorLetter {
  ConnectorKind kind = ConnectorKind::kAsk;
  std::uint32_t from = 0;  // the sender's rank
  std::uint32_t lane = 0;
  std::uint32_t connected_qpn = 0;  // kAnswer, kDone
  EndpointAddress address{};        // kAsk, kAnswer, kDone; not validated
  Error why{};                      // kNotNow, kRefusal
};

// Place of a rank in its team.
struct ConnectorPlace {
  std::uint64_t team = 0;
  std::uint32_t rank = 0;
  std::uint32_t size = 1;
  std::uint32_t lanes = 1;
};

// Encodes a letter from the rank at `place` to rank `to`. A long reason is cut.
[[nodiscard]] bootstrap::ConnectorMessage encode_letter(const ConnectorLetter& letter,
                                                        const ConnectorPlace& place, std::uint32_t to);

// Decodes a payload of any sender for the rank at `place`. Errors: kVersionMismatch; kInvalidArgument naming
// the wrong field: length, team, ranks, lane, kind, or members that its kind does not have.
[[nodiscard]] Result<ConnectorLetter> decode_letter(std::span<const std::byte> payload,
                                                    const ConnectorPlace& place);

}  // namespace gdx
