#include <fmt/format.h>

#include <array>

#include "tests/sim/world.h"

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

}  // namespace

void Outcome::add(const Outcome& other) {
  for (const auto counter : kCounters) this->*counter += other.*counter;
}

std::string summary(const Report<Outcome>& report) {
  const Outcome& sum = report.sum;
  return fmt::format(
      "{} seeds: {} packets, {} lost, {} damaged, {} repeated, {} delayed; {} pauses, {} deaths; {} resent, "
      "{} "
      "timeouts, {} NAKs, {} RNR NAKs; {} lost tails of patient queue pairs, {} resends, {} later than 100 "
      "ms; "
      "{} waits for credits, {} probes, {} updates; {} completions, {} directions failed as owed, {} of them "
      "out "
      "of RNR retries, {} out of retries; {} failed tries, {} for nothing; {} datagrams",
      report.seeds, sum.packets, sum.dropped, sum.damaged, sum.repeated, sum.delayed, sum.pauses, sum.deaths,
      sum.retransmitted, sum.timeouts, sum.sequence_naks, sum.receiver_not_ready, sum.lost_tails,
      sum.tail_resends, sum.late_tails, sum.credit_waits, sum.credit_probes, sum.credit_updates,
      sum.completions, sum.failures, sum.rnr_exhausted, sum.retries_exhausted, sum.failed_tries,
      sum.unexplained_tries, sum.loose_deliveries);
}

}  // namespace gdx::sim
