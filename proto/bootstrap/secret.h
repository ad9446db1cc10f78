// The job's secret, and the keys of single connections that come from it. Integers are big-endian.
//
// Two ranks begin a connection by the handshake of TLS 1.3 with an external pre-shared key: psk_dhe_ke,
// TLS_AES_256_GCM_SHA384, no certificate, ticket or early data. The identity of that key is a ChannelIdentity
// in clear, and the key is HKDF-SHA384 of the secret with the salt kChannelSalt and the identity as `info`.
// So each direction between two ranks, at rank 0 and in each team, has a key of its own. Frames (messages.h)
// follow as TLS's application data. Source: RFC 8446, sections 2.2 and 4.2.11; RFC 5869.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/byte_order.h"

namespace gdx::bootstrap {

inline constexpr std::size_t kSecretBytes = 32;  // random
inline constexpr std::size_t kChannelKeyBytes = 48;
inline constexpr char kChannelSalt[] = "gdx channel";        // without its zero
inline constexpr std::uint32_t kIdentityMagic = 0x67647869;  // "gdxi"

struct ChannelIdentity {
  Be32 magic;
  Be16 version;      // messages.h
  Be16 first_frame;  // enum FrameType: kHello at rank 0, kConnector and kGroup in a team
  Be64 team;         // token of a team's rank 0; 0 outside of teams
  Be32 from;         // the rank that connects
  Be32 to;           // the rank that listens
};

static_assert(sizeof(ChannelIdentity) == 24);

}  // namespace gdx::bootstrap
