// Bytes of the simulation's packets, BTH to padding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "proto/roce/codec.h"

namespace gdx::sim {

// Headers, room for the payload, and padding; `payload` is set to the room.
inline std::vector<std::byte> make_datagram(const roce::Headers& headers, std::size_t payload_bytes,
                                            std::span<std::byte>& payload) {
  const std::size_t header_bytes = roce::header_bytes(headers.bth.opcode);
  std::vector<std::byte> datagram(header_bytes + payload_bytes + headers.bth.pad_count);
  if (roce::encode(headers, datagram) != header_bytes) datagram.clear();
  payload = std::span(datagram).subspan(header_bytes, payload_bytes);
  return datagram;
}

inline std::uint32_t destination_qpn_of(std::span<const std::byte> datagram) {
  const auto decoded = roce::decode(datagram);
  return decoded ? decoded->headers.bth.destination_qpn : 0;
}

}  // namespace gdx::sim
