// gdx_exchange_sim FIRST LAST RANKS: the seeds of the exchange's world.
#include <cstdlib>
#include <functional>

#include "tests/sim/exchange/world.h"

int main(int argc, char** argv) {
  using namespace gdx::sim;
  using Run = std::function<ExchangeOutcome(std::uint64_t)>;
  const auto world_of = [](const std::string& choice) {
    const auto ranks = static_cast<std::uint32_t>(std::strtoul(choice.c_str(), nullptr, 10));
    return ranks == 0 ? Run() : Run([ranks](std::uint64_t seed) { return ExchangeWorld(seed, ranks).run(); });
  };
  return run_seed_program(argc, argv, "./run sim exchange FIRST LAST RANKS", world_of,
                          [](const ExchangeOutcome& sum) {
                            return fmt::format(
                                "{} runs were through, {} lost a rank, which rank 0 named in {}, and told {} "
                                "ranks; in the last whole one rank 0 sent {} frames of {} bytes in all, and "
                                "received {} of {}",
                                sum.whole, sum.losses, sum.named, sum.told, sum.sent.frames, sum.sent.bytes,
                                sum.received.frames, sum.received.bytes);
                          });
}
