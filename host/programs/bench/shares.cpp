#include "host/programs/bench/shares.h"

#include <algorithm>
#include <cmath>

#include "host/programs/bench/experts.h"
#include "host/programs/bench/kernels.h"

namespace gdx::bench {
namespace {

constexpr bool has_pcie(const Share& share) { return share.spent.has_pcie; }

// Returns the processor time of the process from the first block's begin to the last one's end.
std::uint64_t cpu_of_blocks(const Load& load, const LaneOutcome* outcomes) {
  std::uint64_t begin_ns = outcomes[0].begin_cpu_ns;
  std::uint64_t end_ns = outcomes[0].end_cpu_ns;
  for (std::uint32_t i = 1; i < load.posters; ++i) {
    begin_ns = std::min(begin_ns, outcomes[i].begin_cpu_ns);
    end_ns = std::max(end_ns, outcomes[i].end_cpu_ns);
  }
  return end_ns - begin_ns;
}

}  // namespace

Share share_of(const Load& load, const LaneOutcome* outcomes, Counters spent) {
  if (!kernels_run_on_gpu()) spent.cpu_ns = cpu_of_blocks(load, outcomes);
  Share share{0, 0, 0, spent, 0, 0, 0};
  const bool answers = load.latency && load.operation == Operation::kPutSignal;
  if (load.sends || answers) share.posted = load.posters * load.messages;
  if (is_of_experts(load.operation))
    share.posted = messages_to_others(load.operation, load.rank, load.ranks) * load.messages;
  if (!load.sends) return share;
  std::uint64_t begin_ns = ~std::uint64_t{0};
  std::uint64_t end_ns = 0;
  for (std::uint32_t i = 0; i < load.posters; ++i) {
    share.messages += outcomes[i].messages;
    begin_ns = std::min(begin_ns, outcomes[i].begin_ns);
    end_ns = std::max(end_ns, outcomes[i].end_ns);
  }
  share.elapsed_ns = end_ns - begin_ns;
  return share;
}

void add_shares(const std::vector<Share>& shares, Sample& into) {
  for (const Share& share : shares) {
    into.messages += share.messages;
    if (share.elapsed_ns != 0)
      into.messages_per_s +=
          static_cast<double>(share.messages) * 1e9 / static_cast<double>(share.elapsed_ns);
    into.cpu_ns.push_back(share.spent.cpu_ns);
    into.posted += share.posted;
    into.credit_stalls += share.spent.stalls;
    into.retransmissions += share.spent.retransmissions;
    into.checked_bytes += share.checked_bytes;
    into.bad_bytes += share.bad_bytes;
    into.dropped_bad_bytes += share.dropped_bad_bytes;
  }
  if (!std::ranges::all_of(shares, has_pcie)) return;
  into.pcie_reads = into.pcie_record_reads = into.pcie_writes = 0;
  for (const Share& share : shares) {
    *into.pcie_reads += share.spent.pcie_reads;
    *into.pcie_record_reads += share.spent.pcie_record_reads;
    *into.pcie_writes += share.spent.pcie_writes;
  }
}

void add_latencies(const Load& load, const Lane* lanes, const LaneOutcome* outcomes, Sample& into) {
  const double of_round_trip = load.operation == Operation::kPutSignal ? 2 : 1;
  std::vector<double> all;
  all.reserve(load.posters * load.messages);
  for (std::uint32_t i = 0; i < load.posters; ++i) {
    const double tick_ns = kernels_run_on_gpu() ? ns_per_tick(outcomes[i]) : 1;
    for (std::uint64_t m = 0; m < load.messages; ++m) {
      const double ns = std::round(lanes[i].latencies[m] * tick_ns / of_round_trip);
      into.latency_ns.add(static_cast<std::uint64_t>(ns));
      all.push_back(ns);
    }
  }
  const auto count = static_cast<double>(all.size());
  for (const double ns : all) {
    into.mean_ns += ns / count;
    into.mean_square_ns2 += ns * ns / count;
  }
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
  std::nth_element(all.begin(), middle, all.end());
  into.median_ns = *middle;
}

}  // namespace gdx::bench
