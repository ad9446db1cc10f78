// Runs of packets for the kernel: consecutive datagrams that one system call sends, and their control data.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "driver-shim/softhca/wire/host_tokens.h"
#include "driver-shim/softhca/wire/icrc_check.h"
#include "driver-shim/softhca/wire/wire.h"
#include "proto/roce/headers.h"
#include "proto/roce/ip_header.h"

namespace gdx::softhca::wire {

inline constexpr std::size_t kMaxSegments =
    IcrcChecker::kIpIds;                            // in one GSO send, and so many ids are possible
inline constexpr std::size_t kMaxGsoBytes = 65000;  // one IP packet before the kernel cuts it
inline constexpr std::size_t kMaxRuns = 64;         // messages in one sendmmsg
// Size of the arena. It is sent once it holds a full message, while the gathered bytes are still in the
// cache.
inline constexpr std::size_t kArenaBytes = kMaxGsoBytes + kMaxPacketBytes + roce::kIcrcBytes;

// Consecutive datagrams for one peer, equal in size except that the last may be shorter: one GSO send.
struct Run {
  Address destination;
  std::size_t offset = 0;
  std::size_t length_bytes = 0;
  std::size_t segment_bytes = 0;
  std::size_t segments = 0;
  bool closed = false;
  bool marked = false;   // they leave as if a switch had marked them
  Seal seal;             // of its packets, which the receiver takes off
  bool of_host = false;  // the ICRC of each has id 0, because receiver and sender are of one host
  bool bare = false;     // four unset bytes take the place of each ICRC, which nothing would read
};

// Control data of a run for the kernel, beyond its destination.
struct alignas(cmsghdr) SendControl {
  void describe(const Run& run, msghdr& header);

  std::byte bytes[CMSG_SPACE(sizeof(std::uint16_t)) + CMSG_SPACE(sizeof(int))];
};

// Returns the ECN field that a control message tells of, or nothing.
[[nodiscard]] std::optional<roce::Ecn> ecn_of(const cmsghdr& control);

}  // namespace gdx::softhca::wire
