// Messages by which two ranks of a team connect one endpoint each, on one lane. Each message is the payload
// of one frame of type kConnector (messages.h) on a TCP connection of the two ranks. Integers are big-endian.
//
//   asker -> answerer   kAsk     the endpoint of the asker
//   asker <- answerer   kAnswer  the endpoint of the answerer, which is connected to the asker's
//   asker -> answerer   kDone    both are connected
//
// Both ranks may ask at once. kNotNow or kRefusal may take the place of any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "proto/byte_order.h"

namespace gdx::bootstrap {

inline constexpr std::uint32_t kConnectorVersion = 1;
inline constexpr std::size_t kEndpointAddressBytes = 40;
inline constexpr std::size_t kConnectorReasonBytes = 160;
inline constexpr std::size_t kConnectorTextBytes = 64;

enum class ConnectorKind : std::uint32_t {
  kAsk = 1,
  kAnswer = 2,   // the sender's endpoint can receive
  kDone = 3,     // so can both
  kNotNow = 4,   // something is in use: the sender will ask once it is free
  kRefusal = 5,  // these two ranks will not be connected on this lane
};

struct ConnectorMessage {
  Be32 version;
  Be32 kind;  // enum ConnectorKind
  Be64 team;  // token of the team's rank 0
  Be32 from;  // ranks
  Be32 to;
  Be32 lane;
  Be32 connected_qpn;  // kAnswer, kDone: of the receiver's endpoint; else 0
  Be32 status;         // kNotNow, kRefusal: enum Status; else 0
  Be32 reserved;
  std::uint8_t address[kEndpointAddressBytes];  // kAsk, kAnswer, kDone: the sender's EndpointAddress
  char reason[kConnectorReasonBytes];           // kNotNow, kRefusal: text, then zeros
};

// Identity that each rank publishes, so that the others can reach it.
struct ConnectorIdentity {
  Be32 version;
  Be32 reserved;
  Be64 token;                         // random; rank 0's names the team
  char address[kConnectorTextBytes];  // numeric HOST:PORT, then zeros
};

static_assert(std::is_trivially_copyable_v<ConnectorIdentity>);
static_assert(sizeof(ConnectorMessage) == 240 && sizeof(ConnectorIdentity) == 80);

}  // namespace gdx::bootstrap
