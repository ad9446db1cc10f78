// Counters of a rank's process and HCA, that a sample is the difference of.
#pragma once

#include <cstdint>

#include "host/gdx.h"

namespace gdx::bench {

struct Counters {
  std::uint64_t cpu_ns;
  std::uint64_t stalls;
  std::uint64_t retransmissions;
  std::uint64_t pcie_reads;
  std::uint64_t pcie_record_reads;
  std::uint64_t pcie_writes;
  bool has_pcie;
};

// Reads those of the HCA.
[[nodiscard]] Counters read_counters(const Hca& hca);

// Returns what was counted between two readings.
[[nodiscard]] Counters operator-(Counters after, const Counters& before);

[[nodiscard]] std::uint64_t stalls_of(const QueueState& state);

}  // namespace gdx::bench
