// One of the ranks of a benchmark: its endpoints and memory, and one sample of one case.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/gdx.h"
#include "host/programs/bench/load.h"
#include "host/programs/bench/occupancy.h"
#include "host/programs/bench/peer_ends.h"
#include "host/programs/bench/plan.h"
#include "host/programs/bench/statistics.h"

namespace gdx::bench {

// Most messages of a sample, where the time decides: beyond it quantiles gain nothing.
inline constexpr std::uint64_t kMostTimedMessages = 20'000;

// Messages of each endpoint that warm a sample of `counted` up: a tenth, in whole windows.
constexpr std::uint64_t warmup_of(std::uint64_t counted, std::uint32_t depth) {
  const std::uint64_t tenth = counted < 20 ? 1 : counted < 10'000 ? counted / 10 : 1000;
  return (tenth + depth - 1) / depth * depth;
}

// One round of one case, as the reporting rank has it: sums over all ranks, unless it says otherwise.
struct Sample {
  std::uint64_t messages = 0;
  std::uint64_t elapsed_ns = 0;  // of this rank: from the first message that counts to the last flush
  double messages_per_s = 0;     // sum of the sending ranks' own rates
  double median_ns = 0;          // of a message; of latency only
  double mean_ns = 0;
  double mean_square_ns2 = 0;
  Histogram latency_ns;               // of latency only
  std::vector<std::uint64_t> cpu_ns;  // of each rank's process
  std::uint64_t posted = 0;           // messages, answers included
  std::uint64_t credit_stalls = 0;
  std::uint64_t retransmissions = 0;
  std::optional<std::uint64_t> pcie_reads;         // that a ConnectX would have needed; none: not counted
  std::optional<std::uint64_t> pcie_record_reads;  // of pcie_reads, those of doorbell records
  std::optional<std::uint64_t> pcie_writes;
  std::uint64_t checked_bytes = 0;
  std::uint64_t bad_bytes = 0;
  std::uint64_t dropped_bad_bytes = 0;  // of the messages that warm up
  // Of this rank while they pass, so that nobody looks on during those that count. Of bandwidth by slots
  // only.
  std::vector<Occupancy> occupancy;
};

// Null on the CPU layer, and for payload in host memory.
struct Gpus {
  const Gpu* kernels = nullptr;
  const Gpu* payload = nullptr;
};

class Rank {
 public:
  // Collective. Leaves out pushes, with a warning, where the driver lets no kernel of a GPU store to the
  // NIC's memory. Errors: kUnsupported when no case is left; those of making endpoints and memory, and of the
  // world.
  [[nodiscard]] static Result<Rank> connect(Hca hca, const Gpus& gpus, World& world, const Plan& plan,
                                            const std::vector<Case>& cases);

  // Collective, with equal arguments but `die`. `counted`: messages; 0 runs nothing. `die`: this rank kills
  // itself meanwhile. Errors: those of the kernel, naming the rank that failed, and of the world.
  [[nodiscard]] Result<Sample> run(World& world, const Case& item, std::uint64_t counted, bool die);

  [[nodiscard]] const Hca& hca() const;
  [[nodiscard]] std::string payload_place() const;  // "host memory"
  [[nodiscard]] std::string queues_place() const;   // "kernels' in gpu memory, proxies' in host memory"
  [[nodiscard]] std::string signals() const;  // "fenced" or "unfenced"; empty without endpoints of its own
  // Most threads that run the blocks of one kernel, on the CPU layer.
  [[nodiscard]] std::uint32_t workers() const;
  // Returns false for pushes that were left out.
  [[nodiscard]] bool can_run(const Case& item) const;
  [[nodiscard]] const std::string& push_refusal() const;  // empty: none was left out
  // Slots that were written without a credit, of this HCA; none: nobody counts.
  [[nodiscard]] std::optional<std::uint64_t> staging_violations() const;

  Rank(Rank&&) noexcept;
  Rank& operator=(Rank&&) noexcept;
  ~Rank();

 private:
  struct Impl;
  explicit Rank(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gdx::bench
