// One of the two ranks of a benchmark: its endpoints and memory, and one sample of one case.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/bench/load.h"
#include "host/bench/plan.h"
#include "host/bench/statistics.h"
#include "host/gdx.h"

namespace gdx::bench {

inline constexpr std::uint32_t kReportingRank = 0;  // sends, too
inline constexpr std::uint32_t kWorldSize = 2;
inline constexpr std::uint64_t kExchangeTimeoutNs = 120'000'000'000;
// Most messages of a sample, where the time decides: beyond it quantiles gain nothing.
inline constexpr std::uint64_t kMostTimedMessages = 20'000;

// One round of one case, as the reporting rank has it: sums over both ranks, unless it says otherwise.
struct Sample {
  std::uint64_t messages = 0;
  std::uint64_t elapsed_ns = 0;  // of this rank: from the first message that counts to the last flush
  double messages_per_s = 0;     // sum of both ranks' own rates
  double median_ns = 0;          // of a message; of latency only
  double mean_ns = 0;
  double mean_square_ns2 = 0;
  Histogram latency_ns;          // of latency only
  std::uint64_t cpu_ns[2] = {};  // of each rank's process
  std::uint64_t posted = 0;      // messages, answers included
  std::uint64_t credit_stalls = 0;
  std::uint64_t retransmissions = 0;
  std::optional<std::uint64_t> pcie_reads;  // that a ConnectX would have needed; none: not counted
  std::optional<std::uint64_t> pcie_writes;
  std::uint64_t checked_bytes = 0;
  std::uint64_t bad_bytes = 0;
};

class Rank {
 public:
  // `gpu`: runs the kernels; null on the CPU layer. Collective. Errors: those of making endpoints and memory,
  // and of the world.
  [[nodiscard]] static Result<Rank> connect(Hca hca, const Gpu* gpu, World& world, const Plan& plan,
                                            const std::vector<Case>& cases);

  // Collective. `messages` of the reporting rank counts; 0 there ends the benchmark, and the result has no
  // messages. `die`: this rank kills itself meanwhile. Errors: those of the kernel, naming the rank that
  // failed, and of the world.
  [[nodiscard]] Result<Sample> run(World& world, const Case& item, std::uint64_t messages, bool die);

  [[nodiscard]] const Hca& hca() const;
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
