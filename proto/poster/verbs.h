// Data that ports by verbs of two ranks tell each other: in cards, when they connect, and in front of each
// message. Little-endian, but for IP addresses, ports and GIDs of the system's own structs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace gdx::verbs {

// Must rise on every change of a struct here, because a rank refuses another version.
inline constexpr std::uint32_t kVersion = 1;

// Address of a port, which its card holds. Only peers know `number`, of 64 random bits.
struct Address {
  std::uint32_t version;
  std::uint32_t transport;  // enum ibv_transport_type
  std::uint64_t number;
  std::array<std::byte, 32> socket;  // a sockaddr_in or sockaddr_in6
};

// Private data of a connection request. The caller has both numbers from cards.
struct Request {
  std::uint32_t version;
  std::uint32_t messages;  // that the caller's receives hold
  std::uint64_t to;
  std::uint64_t from;
};

// Private data of its acceptance.
struct Reply {
  std::uint32_t version;
  std::uint32_t messages;
};

// Head of each SEND. A message follows, unless the SEND returns credits alone.
struct Frame {
  std::uint32_t credits;  // receives that are free again
  std::uint32_t reserved;
};

static_assert(sizeof(Address) == 48 && sizeof(Request) == 24 && sizeof(Reply) == 8 && sizeof(Frame) == 8);

}  // namespace gdx::verbs
