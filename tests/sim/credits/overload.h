// Many senders push at a NIC with a slower link, and one peer stops answering for a while.
// In virtual time, with the production scheduler and the production device credit code.
#pragma once

#include <cstdint>

namespace gdx::sim {

enum class Staging : std::uint8_t {
  kCredits,
  kOverwrite,  // unlimited credits: slots are memory, whoever stores last wins
  kTailDrop,   // no credits, but a NIC that takes what fits and drops the rest: the best it could do alone
  kPartition,  // each endpoint has as many slots as every other, for good
  kPull,       // no slots: the NIC fetches the payload, of a window of puts at a time
};

struct OverloadCase {
  std::uint32_t senders = 8;
  std::uint32_t overload = 4;  // load of all senders, in multiples of the link
  Staging staging = Staging::kCredits;
  std::uint32_t endpoints = 0;  // with those that send nothing, at most kOverloadSlots; 0: all send
  bool has_silent_peer = true;
};

// The machine: 128 KiB of slots, a 100 Gb/s link, and a round trip within a rack. The scheduler's thread
// polls as often as host/staging/credit_service.cpp does.
inline constexpr std::uint32_t kOverloadSlots = 32;
inline constexpr std::uint32_t kOverloadSlotBytes = 4096;
inline constexpr std::uint32_t kPullWindow = 8;  // puts: they fill the link for a round trip
inline constexpr std::uint64_t kSlotOnLinkNs = 328;
inline constexpr std::uint64_t kRoundTripNs = 2'000;
inline constexpr std::uint64_t kPollNs = 20'000;
inline constexpr std::uint64_t kRunNs = 4'000'000;
inline constexpr std::uint64_t kStallBeginNs = 1'000'000;  // of the peer of sender 0
inline constexpr std::uint64_t kStallEndNs = 3'000'000;

struct OverloadResult {
  double goodput = 0;      // payload delivered whole, as a share of what the link can carry
  double worst_share = 0;  // of the senders with a live peer, from kStallBeginNs to kStallEndNs: the least,
                           // in fair shares (1 / senders)
  std::uint64_t pushed = 0;
  std::uint64_t dropped = 0;  // payloads refused, or stored over before the NIC was done with them
  std::uint64_t damaged = 0;  // packets that left with another payload than their own
};

[[nodiscard]] OverloadResult run_overload(const OverloadCase& shape);

}  // namespace gdx::sim
