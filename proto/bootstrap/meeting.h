// Messages of the two ends of a link, beside what carries its payload: each is the payload of one frame of
// type kMeeting (messages.h). The end that connects is rank 0 of the frames, the other is rank 1. Integers
// are big-endian; the card is as proto/poster/agent.h has it.
//
//   connecting -> accepting   kCard  its card, first
//   connecting <- accepting   kCard  its card: messages may begin
//   either     -> other       kBye   it closes: so many sends of the other it has, and so many of its own are
//                                    delivered; then the connection closes
//
// A connection that closes without kBye means that the other process has ended.
#pragma once

#include <cstdint>

#include "proto/byte_order.h"
#include "proto/poster/agent.h"

namespace gdx::bootstrap {

inline constexpr std::uint32_t kMeetingVersion = 1;

enum class MeetingKind : std::uint32_t { kCard = 1, kBye = 2 };

struct MeetingMessage {
  Be32 version;
  Be32 kind;   // enum MeetingKind
  Be64 taken;  // kBye; else 0, as the next
  Be64 sent;
  std::uint8_t card[sizeof(agent::Card)];  // kCard; else 0
};

static_assert(sizeof(MeetingMessage) == 24 + sizeof(agent::Card));

}  // namespace gdx::bootstrap
