// The bootstrap protocol: ranks meet over TCP at rank 0. Every message is a FrameHeader and
// `length_bytes` of payload, all integers big-endian.
//
//   rank r -> rank 0   kHello   HelloBody      once, first
//   rank 0 -> rank r   kWelcome                once, when all ranks are there
//   rank r -> rank 0   kContribution           one per collective, sequence 1, 2, 3, ...
//   rank 0 -> rank r   kGathered               all contributions in rank order, same sequence
//   rank 0 -> rank r   kFailed  FailedBody     the job has ended; then the connection closes
//   rank r -> rank 0   kFailed  FailedBody     this rank has ended its part; then the connection closes
//
// A connection of two ranks of a team has frames of type kConnector alone: connector.h; one of two
// ends of a link frames of type kMeeting: meeting.h. One of two members of a group begins so, where ranks are
// the team's, and then goes on as above, where ranks are the group's:
//
//   member -> first member   kGroup  GroupBody, ranks   once, first
//   first member -> member   kWelcome                   once, when all members are there; or kFailed
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/byte_order.h"

namespace gdx::bootstrap {

inline constexpr std::uint32_t kMagic = 0x67647862;  // "gdxb"
inline constexpr std::uint16_t kVersion = 2;
inline constexpr std::uint32_t kMaxRanks = 16'384;
inline constexpr std::uint32_t kMaxContributionBytes = 1u << 20;
inline constexpr std::uint32_t kMaxGatheredBytes = 64u << 20;
inline constexpr std::uint32_t kMaxReasonBytes = 480;

enum class FrameType : std::uint16_t {
  kHello = 1,
  kWelcome = 2,
  kContribution = 3,
  kGathered = 4,
  kFailed = 5,
  kConnector = 6,
  kMeeting = 7,
  kGroup = 8,
};

struct FrameHeader {
  Be32 magic;
  Be16 version;
  Be16 type;
  Be32 rank;      // the sender's
  Be32 sequence;  // of the collective; 0 outside of one
  Be32 length_bytes;
};

struct HelloBody {
  Be32 world_size;
};

// Body before the ranks of all members, in their order, each a Be32.
struct GroupBody {
  Be64 team;  // the first team's name, because in clear a member of another job may come
  Be64 of;    // number of the group whose ranks make this one; 0: the whole team
  Be64 tag;   // of the call
  Be32 call;  // by which it is made: calls of one kind alone meet
  Be32 reserved;
};

// Body before the reason, a text of at most kMaxReasonBytes.
struct FailedBody {
  Be32 status;  // enum Status
  Be32 rank;    // the rank at fault
};

static_assert(sizeof(FrameHeader) == 20 && sizeof(HelloBody) == 4 && sizeof(FailedBody) == 8);
static_assert(sizeof(GroupBody) == 32);

}  // namespace gdx::bootstrap
