#include "tests/sim/seeds.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <mutex>
#include <thread>
#include <vector>

namespace gdx::sim {
namespace {

constexpr std::array kCounters{&Outcome::packets,
                               &Outcome::dropped,
                               &Outcome::damaged,
                               &Outcome::repeated,
                               &Outcome::delayed,
                               &Outcome::pauses,
                               &Outcome::deaths,
                               &Outcome::completions,
                               &Outcome::retransmitted,
                               &Outcome::timeouts,
                               &Outcome::sequence_naks,
                               &Outcome::receiver_not_ready,
                               &Outcome::credit_waits,
                               &Outcome::credit_probes,
                               &Outcome::credit_updates,
                               &Outcome::failures,
                               &Outcome::rnr_exhausted,
                               &Outcome::loose_deliveries,
                               &Outcome::tail_resends,
                               &Outcome::lost_tails,
                               &Outcome::late_tails,
                               &Outcome::retries_exhausted,
                               &Outcome::failed_tries,
                               &Outcome::unexplained_tries,
                               &Outcome::calm};

void add(Outcome& sum, const Outcome& outcome) {
  for (const auto counter : kCounters) sum.*counter += outcome.*counter;
}

std::optional<std::uint64_t> parse_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Seeds are handed out in ascending order, so whoever fails first knows that all lower ones have begun.
class Runner {
 public:
  explicit Runner(SeedRange seeds) : next_(seeds.first), last_(seeds.last) {}

  void work() {
    Report mine;
    for (std::uint64_t seed = next_++; seed <= last_; seed = next_++) {
      Outcome outcome = run(seed);
      ++mine.seeds;
      add(mine.sum, outcome);
      if (outcome.problem.empty()) continue;
      mine.failure = {seed, std::move(outcome.problem), std::move(outcome.scenario)};
      next_ = last_ + 1;
      break;
    }
    const std::lock_guard lock(mutex_);
    report_.seeds += mine.seeds;
    add(report_.sum, mine.sum);
    if (!mine.failure) return;
    if (!report_.failure || mine.failure->seed < report_.failure->seed) report_.failure = mine.failure;
  }

  [[nodiscard]] const Report& report() const { return report_; }

 private:
  std::atomic<std::uint64_t> next_;
  const std::uint64_t last_;
  std::mutex mutex_;
  Report report_;
};

}  // namespace

std::optional<SeedRange> parse_seeds(std::string_view text) {
  const std::size_t dots = text.find("..");
  const auto first = parse_number(text.substr(0, dots));
  const auto last = dots == std::string_view::npos ? first : parse_number(text.substr(dots + 2));
  // The largest number of all is kept free: counting must be able to go past the last seed.
  if (!first || !last || *first > *last || *last > ~std::uint64_t{0} / 2) return std::nullopt;
  return SeedRange{*first, *last};
}

Report run_seeds(SeedRange seeds, unsigned jobs) {
  Runner runner(seeds);
  std::vector<std::jthread> helpers;
  for (unsigned i = 1; i < jobs; ++i) helpers.emplace_back([&runner] { runner.work(); });
  runner.work();
  helpers.clear();
  return runner.report();
}

std::string summary(const Report& report) {
  const Outcome& sum = report.sum;
  return fmt::format(
      "{} seeds: {} packets, {} lost, {} damaged, {} repeated, {} delayed; {} pauses, {} deaths; "
      "{} resent, {} timeouts, {} NAKs, {} RNR NAKs; {} lost tails of patient queue pairs, {} resends, {} "
      "later "
      "than 100 ms; {} waits for credits, {} probes, {} updates; {} "
      "completions, {} directions failed as owed, {} of "
      "them out of RNR retries, {} out of retries; {} failed tries, {} for nothing; {} datagrams",
      report.seeds, sum.packets, sum.dropped, sum.damaged, sum.repeated, sum.delayed, sum.pauses, sum.deaths,
      sum.retransmitted, sum.timeouts, sum.sequence_naks, sum.receiver_not_ready, sum.lost_tails,
      sum.tail_resends, sum.late_tails, sum.credit_waits, sum.credit_probes, sum.credit_updates,
      sum.completions, sum.failures, sum.rnr_exhausted, sum.retries_exhausted, sum.failed_tries,
      sum.unexplained_tries, sum.loose_deliveries);
}

}  // namespace gdx::sim
