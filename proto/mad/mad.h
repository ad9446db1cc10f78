// Management datagrams: 256 bytes, sent as UD packets between QP 1s.
// Source: InfiniBand Architecture Specification 1.4, sections 13.4.3 (MAD header) and 3.5.3.1 (QP 1).
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/byte_order.h"

namespace gdx::mad {

inline constexpr std::size_t kMadBytes = 256;
inline constexpr std::size_t kHeaderBytes = 24;
inline constexpr std::uint32_t kGsiQpn = 1;
inline constexpr std::uint32_t kGsiQkey = 0x80010000;
inline constexpr std::uint8_t kBaseVersion = 1;
inline constexpr std::uint8_t kMethodSend = 0x03;

struct Header {
  std::uint8_t base_version;
  std::uint8_t management_class;
  std::uint8_t class_version;
  std::uint8_t method;
  Be16 status;
  Be16 class_specific;
  Be64 transaction_id;
  Be16 attribute_id;
  Be16 reserved;
  Be32 attribute_modifier;
};

static_assert(sizeof(Header) == kHeaderBytes);

}  // namespace gdx::mad
