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

// Gives the bytes of a packet what an HCA's have: an opcode of a queue pair, and zeros where IBA reserves
// bits.
inline Bytes as_packet(Bytes bytes) {
  for (const std::size_t at : {0, 4, 8}) {
    if (at < bytes.size()) bytes[at] = std::byte{0};
  }
  return bytes;
}
inline Bytes tagged(std::uint8_t tag, std::size_t length_bytes) {
  return as_packet(Bytes(length_bytes, std::byte{tag}));
}

inline void send(Wire& wire, const Address& to, std::uint8_t tag, std::size_t length_bytes) {
  std::ranges::copy(tagged(tag, length_bytes), wire.begin_packet(to).begin());
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

// Lets two wires of this host give each other tokens, without which packets over UDP wait. Leaves no message
// of theirs behind.
inline void introduce(Wire& a, Wire& b) {
  const auto awaited = [&] { return int{a.awaits(b.local())} + int{b.awaits(a.local())} > 0; };
  for (int quiet = 0; quiet < 100; quiet = awaited() ? 0 : quiet + 1) {
    for (Wire* const wire : {&a, &b}) {
      static_cast<void>(wire->receive(7, [](const Address&, std::span<const std::byte>) {}));
      wire->flush();
    }
  }
}

}  // namespace gdx::softhca::wire
