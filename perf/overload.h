// The overload experiment on the software HCA, in processes of their own. Rank 0 pushes to every other rank
// at once. The peer of its first sender is stopped (SIGSTOP) for a while, as any program's process can be.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "host/gdx.h"

namespace gdx::perf {

inline constexpr std::uint32_t kOverloadChunkBytes = kDefaultSlotBytes;  // of a put: one slot, one packet
inline constexpr std::uint32_t kMaxOverloadSenders = 31;

enum class Stall : std::uint8_t {
  kNone,
  kForAWhile,  // from a quarter to three quarters of the run
  kToTheEnd,   // until every sender has ended, so that the transport gives the peer up
};

struct OverloadOptions {
  std::uint64_t chunks = 32768;  // the run's length: what all senders together push before they are stopped
  Stall stall = Stall::kForAWhile;
  bool without_credits = false;
  std::uint8_t ack_timeout = 14;  // of every endpoint, as are the retries
  std::uint8_t retry_count = 7;
};

struct OverloadFigures {
  std::uint32_t senders = 0;
  std::uint32_t failed_senders = 0;
  std::string failure = {};         // of the first of them; empty where none failed
  std::uint64_t pushed = 0;         // chunks
  std::uint64_t whole = 0;          // chunks that the peers hold as they were pushed
  std::uint64_t damaged = 0;        // chunks of senders that did not fail, and that the peers hold otherwise
  std::uint64_t violations = 0;     // slots used without their credit, by the HCA's audit
  std::uint64_t lost_slots = 0;     // that have not come back to the pool when all endpoints are gone
  std::uint64_t retransmitted = 0;  // packets
  double goodput_gbps = 0;          // payload of whole chunks, from the first push to the last flush
  double worst_other_gbps = 0;      // pushed during the stall by the slowest sender with a live peer
};

// Rank 0. Errors: as World, Hca, StagingPool and Endpoint; kSystem when the peer cannot be stopped.
// Threads: one experiment in a process at a time.
[[nodiscard]] Result<OverloadFigures> push_to_all(World& world, const Hca& hca,
                                                  const OverloadOptions& options);
// Every other rank.
[[nodiscard]] Result<void> receive_pushes(World& world, const Hca& hca, const OverloadOptions& options);

}  // namespace gdx::perf
