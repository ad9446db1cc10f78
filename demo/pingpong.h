// Interface between the demo's kernels and its host program.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/options.h"
#include "proto/gpu/team.h"
#include "proto/status.h"

namespace gdx::demo {

struct Case {
  Mode mode;
  std::uint64_t bytes;  // of one message; a multiple of 8
  std::uint32_t messages;
  std::uint32_t warmup;          // the first of them, which are checked and not timed
  std::uint64_t first_sequence;  // of the first message; grows through the whole run
  bool break_memory;             // the receiver damages one byte before it checks
};

// A rank's view of the exchange. Buffer and signals are pieces of the team's heap, so one pointer names this
// rank's and the peer's.
struct Exchange {
  TeamHandle team;
  std::uint32_t peer;      // rank
  std::byte* buffer;       // source of messages, and their destination at the peer
  std::uint64_t* signals;  // [kArrived], [kVerified] at the sender, [kData] at the receiver
};

enum SignalWord : std::uint32_t { kData = 0, kArrived = 1, kVerified = 2, kSignalWords = 3 };

struct Outcome {
  Status status;
  std::uint32_t messages_done;
  std::uint64_t bad_bytes;      // receiver: bytes that were not what they must be
  std::uint64_t round_trip_ns;  // sender: put+signal until the peer's answering signal, summed; of timed ones
  std::uint64_t completion_ns;  // sender: put+signal until the local flush, summed; of timed ones
  std::uint64_t credit_stalls;  // pushes and bounces that waited for a slot
};

// False on the CPU layer.
[[nodiscard]] bool kernels_run_on_gpu();

// Run one case's kernel to its end. `outcome` is memory that the kernel can write.
// Errors: what launch() returns; the kernel's own status is outcome->status.
[[nodiscard]] Status run_sender(const Exchange& exchange, const Case& shape, Outcome* outcome,
                                int (*progress)());
[[nodiscard]] Status run_receiver(const Exchange& exchange, const Case& shape, Outcome* outcome,
                                  int (*progress)());

}  // namespace gdx::demo
