// Messages by which two software HCAs of one host give each other tokens for their UDP packets. Format of
// gdx, as window.h: a BTH for QP 0 and 24 bytes of payload.
//
//   one     request: my incarnation, a challenge --------------------> other
//   one     <------- answer: my incarnation, that challenge, your token  other
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "proto/byte_order.h"

namespace gdx::roce {

struct HostToken {
  std::uint64_t incarnation = 0;  // of the HCA that sends the message, random
  std::uint64_t challenge = 0;    // in an answer that of the request
  std::uint64_t token = 0;        // 0 in a request

  bool operator==(const HostToken&) const = default;
};

namespace detail {

struct HostTokenLayout {
  Be64 incarnation;
  Be64 challenge;
  Be64 token;
};

}  // namespace detail

inline constexpr std::size_t kHostTokenBytes = sizeof(detail::HostTokenLayout);

// Encodes a message; `out` has kHostTokenBytes at least.
inline void encode_host_token(const HostToken& message, std::span<std::byte> out) {
  const detail::HostTokenLayout layout{message.incarnation, message.challenge, message.token};
  std::memcpy(out.data(), &layout, sizeof layout);
}

// Decodes a message; nullopt for a payload of another length.
[[nodiscard]] inline std::optional<HostToken> decode_host_token(std::span<const std::byte> payload) {
  detail::HostTokenLayout layout;
  if (payload.size() != sizeof layout) return std::nullopt;
  std::memcpy(&layout, payload.data(), sizeof layout);
  return HostToken{layout.incarnation, layout.challenge, layout.token};
}

}  // namespace gdx::roce
