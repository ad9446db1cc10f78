// gdx_exchange_sim FIRST LAST RANKS: the seeds of the exchange's world; the first that finds a problem is
// printed.
#include <fmt/format.h>

#include <cstdlib>

#include "tests/sim/exchange/seeds.h"

int main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "gdx_exchange_sim: which seeds? use gdx_exchange_sim FIRST LAST RANKS\n");
    return 2;
  }
  const auto number = [&](int i) { return std::strtoull(argv[i], nullptr, 10); };
  const auto report =
      gdx::sim::run_exchange_seeds(number(1), number(2), static_cast<std::uint32_t>(number(3)));
  const gdx::sim::ExchangeOutcome& sum = report.sum;
  fmt::print(
      "up to seed {}: {} runs were through, {} lost a rank, which rank 0 named in {}, and told {} ranks; "
      "rank 0 sent {} "
      "frames of {} bytes in all, and received {} of {}: {}\n",
      report.seed, sum.whole, sum.losses, sum.named, sum.told, sum.sent.frames, sum.sent.bytes,
      sum.received.frames, sum.received.bytes, sum.problem.empty() ? "every promise was kept" : sum.problem);
  return sum.problem.empty() ? 0 : 1;
}
