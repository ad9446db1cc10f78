// Packets that tests send on a wire, and take from one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "driver-shim/softhca/wire/wire.h"

namespace gdx::softhca::wire {

using Bytes = std::vector<std::byte>;

inline void send(Wire& wire, const Address& to, std::uint8_t tag, std::size_t length_bytes) {
  std::fill_n(wire.begin_packet(to).begin(), length_bytes, std::byte{tag});
  wire.commit_packet(to, length_bytes);
}

// Polls until nothing has come for a while, because shared memory polls descriptors every 20 us only.
inline std::vector<Bytes> receive_all(Wire& wire) {
  std::vector<Bytes> arrivals;
  for (int empty = 0; empty < 20; ++empty) {
    static_cast<void>(wire.arm());  // the next receive() polls descriptors too
    while (wire.receive(7, [&](const Address&, std::span<const std::byte> datagram) {
      arrivals.emplace_back(datagram.begin(), datagram.end());
    }) > 0) {
      empty = 0;
    }
  }
  return arrivals;
}

}  // namespace gdx::softhca::wire
