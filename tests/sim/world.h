// Two hosts that may pause or die, with one to three queue pairs each, in virtual time. Their link loses,
// damages, repeats, delays and reorders. A run is a function of its seed and of nothing else.
#pragma once

#include <cstdint>
#include <string>

#include "tests/sim/random.h"
#include "tests/sim/seeds.h"

namespace gdx::sim {

struct Outcome {
  std::string problem;   // empty: the run kept every promise
  std::string scenario;  // the seed's choices, for a person who replays it
  bool finished = false;
  std::uint64_t calm = 0;  // runs in which nothing goes wrong, so that nothing may be mended
  std::uint64_t packets = 0;
  std::uint64_t dropped = 0;
  std::uint64_t damaged = 0;
  std::uint64_t repeated = 0;
  std::uint64_t delayed = 0;
  std::uint64_t pauses = 0;
  std::uint64_t deaths = 0;
  std::uint64_t retransmitted = 0;
  std::uint64_t timeouts = 0;
  std::uint64_t tail_resends = 0;
  std::uint64_t lost_tails = 0;  // bursts of patient queue pairs that only a timer completed
  std::uint64_t late_tails = 0;  // of these, later than after 100 ms
  std::uint64_t sequence_naks = 0;
  std::uint64_t receiver_not_ready = 0;
  std::uint64_t credit_waits = 0;
  std::uint64_t credit_probes = 0;
  std::uint64_t credit_updates = 0;
  std::uint64_t completions = 0;
  std::uint64_t failures = 0;           // directions that ended in an error, as owed
  std::uint64_t loose_deliveries = 0;   // on UC and UD
  std::uint64_t rnr_exhausted = 0;      // of the failures: no receive came within the retries
  std::uint64_t retries_exhausted = 0;  // of the failures: the link spoilt each try
  std::uint64_t failed_tries = 0;       // of all that retries count
  std::uint64_t unexplained_tries = 0;  // of these, those that nothing spoilt
  std::uint64_t digest = 0;             // of the time, sender and bytes of every packet

  void add(const Outcome& other);
};

// The counters for a person, in one line.
[[nodiscard]] std::string summary(const Report<Outcome>& report);

// RC: nothing may be lost.
[[nodiscard]] Outcome run_connected(Random random);

// UC and UD: nothing may arrive torn, at the wrong queue pair or, on UC, twice.
[[nodiscard]] Outcome run_unacknowledged(Random random);

// Threads: any; runs share nothing.
[[nodiscard]] Outcome run(std::uint64_t seed);

}  // namespace gdx::sim
