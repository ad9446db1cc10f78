// Messages of two software HCAs about the receive socket that all their connections share. Format of gdx: a
// standard peer never gets these packets. They are a BTH for QP 0 and 32 bytes of payload.
//
//   sender    marker: all units before sent_units have left ----------> receiver
//   sender    <------------- grant: marker read, count up to limit_units  receiver
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "proto/byte_order.h"

namespace gdx::roce {

// Statement that all units counted before `sent_units` left before this packet.
struct WindowMarker {
  std::uint64_t incarnation = 0;  // of the sender, random: counts of another incarnation are void
  std::uint64_t sent_units = 0;
  std::uint64_t sent_at_ns = 0;  // the sender's clock, opaque to the receiver

  bool operator==(const WindowMarker&) const = default;
};

// Statement that the receiver has read that marker, and that the sender may count up to `limit_units`.
struct WindowGrant {
  WindowMarker marker;
  std::uint64_t limit_units = 0;  // kNoWindow: unlimited

  bool operator==(const WindowGrant&) const = default;
};

inline constexpr std::uint64_t kNoWindow = ~std::uint64_t{0};
inline constexpr std::size_t kWindowBytes = 32;

namespace detail {

struct WindowLayout {
  Be64 incarnation;
  Be64 sent_units;
  Be64 sent_at_ns;
  Be64 limit_units;  // 0 in a marker
};
static_assert(sizeof(WindowLayout) == kWindowBytes);

}  // namespace detail

// Encodes a grant; `out` has kWindowBytes at least.
inline void encode_grant(const WindowGrant& grant, std::span<std::byte> out) {
  const detail::WindowLayout layout{grant.marker.incarnation, grant.marker.sent_units,
                                    grant.marker.sent_at_ns, grant.limit_units};
  std::memcpy(out.data(), &layout, sizeof layout);
}
inline void encode_marker(const WindowMarker& marker, std::span<std::byte> out) {
  encode_grant({.marker = marker}, out);
}

// Decodes a marker or grant; nullopt for a payload of another length. A marker's limit is 0.
[[nodiscard]] inline std::optional<WindowGrant> decode_window(std::span<const std::byte> payload) {
  detail::WindowLayout layout;
  if (payload.size() != sizeof layout) return std::nullopt;
  std::memcpy(&layout, payload.data(), sizeof layout);
  return WindowGrant{{layout.incarnation, layout.sent_units, layout.sent_at_ns}, layout.limit_units};
}

}  // namespace gdx::roce
